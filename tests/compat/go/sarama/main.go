// Sarama: arguments are bootstrap, scenario, topic.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"compat/flows"
)

type client struct{ bootstrap string }

func main() {
	flows.Main(func(bootstrap string) flows.Client { return client{bootstrap} })
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Heartbeat.Interval = time.Second
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.InstanceId = flows.Instance
	secure(config)
	return config
}

// The security settings that the driver requests.
func secure(config *sarama.Config) {
	way := flows.Security
	if way == nil {
		return
	}
	tls, err := way.TLS()
	if err != nil {
		panic(err)
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = true, tls
	if way.Mechanism == "" {
		return
	}
	sasl := &config.Net.SASL
	sasl.Enable, sasl.Mechanism = true, sarama.SASLMechanism(way.Mechanism)
	sasl.User, sasl.Password = way.User, way.Password
	sasl.TokenProvider = token(way.Token)
	hash := scram.SHA256
	if way.Mechanism == sarama.SASLTypeSCRAMSHA512 {
		hash = scram.SHA512
	}
	sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &login{hash: hash} }
}

type token string

func (t token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

// login implements SCRAM with the library xdg-go/scram, as in Sarama's own examples.
type login struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (l *login) Begin(user, password, authzID string) error {
	client, err := l.hash.NewClient(user, password, authzID)
	if err == nil {
		l.conversation = client.NewConversation()
	}
	return err
}

func (l *login) Step(challenge string) (string, error) { return l.conversation.Step(challenge) }

func (l *login) Done() bool { return l.conversation.Done() }

func (c client) brokers() []string { return []string{c.bootstrap} }

func (c client) Codecs() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

func (c client) Produce(topic string, rows []flows.Row, codec string, partition int32) error {
	config := settings()
	if err := config.Producer.Compression.UnmarshalText([]byte(codec)); err != nil {
		return err
	}
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(c.brokers(), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, row := range rows {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: partition,
			Key: sarama.ByteEncoder(row.Key), Value: sarama.ByteEncoder(row.Value),
			Timestamp: time.UnixMilli(row.TimestampMs)})
	}
	return producer.SendMessages(messages)
}

func rowOf(message *sarama.ConsumerMessage) flows.Row {
	return flows.Row{Key: message.Key, Value: message.Value, Offset: message.Offset,
		TimestampMs: message.Timestamp.UnixMilli()}
}

func (c client) Read(topic string, start int64, count int) ([]flows.Row, error) {
	return c.read(topic, start, count, settings())
}

// ReadIsolated, Move and Overtaken implement flows.Mover.
func (c client) ReadIsolated(topic string, count int, committed bool) ([]flows.Row, error) {
	config := settings()
	if committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return c.read(topic, 0, count, config)
}

func (c client) transactional(id string) (sarama.SyncProducer, error) {
	config := settings()
	config.Producer.Idempotent, config.Producer.Transaction.ID = true, id
	config.Net.MaxOpenRequests = 1
	// Applications must wait themselves until an older transaction is aborted.
	for {
		producer, err := sarama.NewSyncProducer(c.brokers(), config)
		if !errors.Is(err, sarama.ErrConcurrentTransactions) {
			return producer, err
		}
	}
}

func (c client) Move(topic, goal, group string, count int, commit bool) error {
	start, err := c.Committed(topic, group)
	if err != nil {
		return err
	}
	rows, err := c.Read(topic, max(start, 0), count)
	if err != nil {
		return err
	}
	producer, err := c.transactional(group + "-id")
	if err != nil {
		return err
	}
	defer producer.Close()
	if err = producer.BeginTxn(); err != nil {
		return err
	}
	var messages []*sarama.ProducerMessage
	for _, row := range rows {
		messages = append(messages, &sarama.ProducerMessage{Topic: goal,
			Key: sarama.ByteEncoder(row.Key), Value: sarama.ByteEncoder(row.Value),
			Timestamp: time.UnixMilli(row.TimestampMs)})
	}
	if err = producer.SendMessages(messages); err != nil {
		return err
	}
	offsets := map[string][]*sarama.PartitionOffsetMetadata{
		topic: {{Partition: 0, Offset: rows[len(rows)-1].Offset + 1}}}
	if err = producer.AddOffsetsToTxn(offsets, group); err != nil {
		return err
	}
	if commit {
		return producer.CommitTxn()
	}
	return producer.AbortTxn()
}

func (c client) Overtaken(topic, id string) error {
	first, err := c.transactional(id)
	if err != nil {
		panic(err)
	}
	defer first.Close()
	if err = first.BeginTxn(); err != nil {
		panic(err)
	}
	message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("open")}
	if _, _, err = first.SendMessage(message); err != nil {
		panic(err)
	}
	second, err := c.transactional(id)
	if err != nil {
		panic(err)
	}
	defer second.Close()
	return first.CommitTxn()
}

func (c client) read(topic string, start int64, count int, config *sarama.Config,
) ([]flows.Row, error) {
	consumer, err := sarama.NewConsumer(c.brokers(), config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	reader, err := consumer.ConsumePartition(topic, 0, start)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var rows []flows.Row
	late := time.After(30 * time.Second)
	for len(rows) < count {
		select {
		case message := <-reader.Messages():
			rows = append(rows, rowOf(message))
		case <-late:
			return nil, fmt.Errorf("%d of %d records in 30 s", len(rows), count)
		}
	}
	return rows, nil
}

// handler passes the partitions and records of each session to its functions.
type handler struct {
	assigned func([]int32)
	saw      func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage)
	topic    string
}

func (h handler) Setup(session sarama.ConsumerGroupSession) error {
	h.assigned(session.Claims()[h.topic])
	return nil
}

func (h handler) Cleanup(sarama.ConsumerGroupSession) error {
	h.assigned(nil)
	return nil
}

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession,
	claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			h.saw(session, message)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (c client) consume(ctx context.Context, topic, group string, one handler,
	config *sarama.Config) error {
	members, err := sarama.NewConsumerGroup(c.brokers(), group, config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := members.Consume(ctx, []string{topic}, one); err != nil {
			members.Close()
			return err
		}
	}
	return members.Close()
}

func (c client) Join(topic, group string, member *flows.Member, ending <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-ending; cancel() }()
	one := handler{assigned: member.Assigned, topic: topic,
		saw: func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
			session.MarkMessage(message, "")
			member.Saw(message.Key)
		}}
	for {
		err := c.consume(ctx, topic, group, one, settings())
		if ctx.Err() != nil {
			return err
		}
		// The library gives up after a few attempts; applications must retry.
		time.Sleep(200 * time.Millisecond)
	}
}

func (c client) Take(topic, group string, count int) ([]flows.Row, error) {
	config := settings()
	config.Consumer.Offsets.AutoCommit.Enable = false
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var rows []flows.Row
	err := c.consume(ctx, topic, group, handler{assigned: func([]int32) {}, topic: topic,
		saw: func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
			if len(rows) == count {
				return
			}
			rows = append(rows, rowOf(message))
			if len(rows) == count {
				session.MarkMessage(message, "")
				session.Commit()
				cancel()
			}
		}}, config)
	return rows, err
}

func (c client) OffsetAt(topic string, timestampMs int64) (int64, error) {
	kafka, err := sarama.NewClient(c.brokers(), settings())
	if err != nil {
		return 0, err
	}
	defer kafka.Close()
	return kafka.GetOffset(topic, 0, timestampMs)
}

func (c client) First(topic, group, policy string, nudge func() error) (int64, error) {
	config := settings()
	if policy == "latest" {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	offsets, failed := make(chan int64, 1000), make(chan error, 1)
	go func() {
		failed <- c.consume(ctx, topic, group, handler{assigned: func([]int32) {}, topic: topic,
			saw: func(_ sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
				select {
				case offsets <- message.Offset:
				default:
				}
			}}, config)
	}()
	return flows.First(func() (int64, error) {
		select {
		case offset := <-offsets:
			return offset, nil
		case err := <-failed:
			return -1, err
		case <-time.After(500 * time.Millisecond):
			return -1, nil
		}
	}, nudge)
}

// Lost: the library reports an offset out of range, and the application seeks to the oldest.
func (c client) Lost(topic string, start int64) (int64, error) {
	_, err := c.Read(topic, start, 1)
	if !errors.Is(err, sarama.ErrOffsetOutOfRange) {
		return 0, fmt.Errorf("a read from %d: %w", start, err)
	}
	rows, err := c.Read(topic, sarama.OffsetOldest, 1)
	if err != nil {
		return 0, err
	}
	return rows[0].Offset, nil
}

func (c client) admin(use func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(c.brokers(), settings())
	if err != nil {
		return err
	}
	defer admin.Close()
	return use(admin)
}

func (c client) Create(topic string, partitions int32) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		return admin.CreateTopic(topic,
			&sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
	})
}

// PartitionCount lists the topics, which also describes each topic's settings.
func (c client) PartitionCount(topic string) (count int, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		topics, err := admin.ListTopics()
		count = int(topics[topic].NumPartitions)
		return err
	})
	return count, err
}

func (c client) Grow(topic string, partitions int32) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		return admin.CreatePartitions(topic, partitions, nil, false)
	})
}

func (c client) Delete(topic string) error {
	return c.admin(func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) })
}

// SetConfig uses AlterConfigs and IncrementalAlterConfigs.
func (c client) SetConfig(topic, key, value string) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		other := "1000"
		err := admin.AlterConfig(sarama.TopicResource, topic,
			map[string]*string{key: &other}, false)
		return errors.Join(err, admin.IncrementalAlterConfig(sarama.TopicResource, topic,
			map[string]sarama.IncrementalAlterConfigsEntry{key: {
				Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}}, false))
	})
}

func (c client) valueOf(resource sarama.ConfigResource, key string) (value string, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		all, err := admin.DescribeConfig(resource)
		for _, one := range all {
			if one.Name == key {
				value = one.Value
			}
		}
		return err
	})
	return value, err
}

func (c client) Config(topic, key string) (string, error) {
	return c.valueOf(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic}, key)
}

func (c client) BrokerConfig(key string) (string, error) {
	return c.valueOf(sarama.ConfigResource{Type: sarama.BrokerResource, Name: "1"}, key)
}

func (c client) Groups() (names []string, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		all, err := admin.ListConsumerGroups()
		for name := range all {
			names = append(names, name)
		}
		return err
	})
	return names, err
}

func (c client) GroupState(group string) (state string, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		all, err := admin.DescribeConsumerGroups([]string{group})
		if err == nil {
			state = all[0].State
		}
		return err
	})
	return state, err
}

func (c client) Committed(topic, group string) (offset int64, err error) {
	err = c.admin(func(admin sarama.ClusterAdmin) error {
		all, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})
		if err == nil {
			offset = all.GetBlock(topic, 0).Offset
		}
		return err
	})
	return offset, err
}

func (c client) SetCommitted(topic, group string, offset int64) error {
	kafka, err := sarama.NewClient(c.brokers(), settings())
	if err != nil {
		return err
	}
	defer kafka.Close()
	manager, err := sarama.NewOffsetManagerFromClient(group, kafka)
	if err != nil {
		return err
	}
	defer manager.Close()
	one, err := manager.ManagePartition(topic, 0)
	if err != nil {
		return err
	}
	one.ResetOffset(offset, "")
	manager.Commit()
	return one.Close()
}

func (c client) DeleteGroup(group string) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		return admin.DeleteConsumerGroup(group)
	})
}

// Trim implements flows.Trimmer.
func (c client) Trim(topic string, offset int64) error {
	return c.admin(func(admin sarama.ClusterAdmin) error {
		return admin.DeleteRecords(topic, map[int32]int64{0: offset})
	})
}
