// segmentio kafka-go: arguments are bootstrap, scenario, topic.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"

	"compat/flows"
)

type client struct{ bootstrap string }

func main() {
	flows.Main(func(bootstrap string) flows.Client { return client{bootstrap} })
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

func (c client) api() *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(c.bootstrap), Timeout: 20 * time.Second}
}

func (c client) Codecs() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

func (c client) Produce(topic string, rows []flows.Row, codec string, partition int32) error {
	codecs := map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy,
		"lz4": kafka.Lz4, "zstd": kafka.Zstd}
	writer := kafka.Writer{Addr: kafka.TCP(c.bootstrap), Topic: topic,
		AllowAutoTopicCreation: true, RequiredAcks: kafka.RequireAll, Compression: codecs[codec],
		BatchTimeout: 20 * time.Millisecond,
		Balancer:     kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(partition) })}
	var messages []kafka.Message
	for _, row := range rows {
		messages = append(messages, kafka.Message{Key: row.Key, Value: row.Value,
			Time: time.UnixMilli(row.TimestampMs)})
	}
	ctx, cancel := limited()
	defer cancel()
	err := writer.WriteMessages(ctx, messages...)
	for errors.Is(err, kafka.UnknownTopicOrPartition) && ctx.Err() == nil {
		// The topic is being created: the library's documentation tells applications to retry.
		time.Sleep(200 * time.Millisecond)
		err = writer.WriteMessages(ctx, messages...)
	}
	return errors.Join(err, writer.Close())
}

func rowOf(message kafka.Message) flows.Row {
	return flows.Row{Key: message.Key, Value: message.Value, Offset: message.Offset,
		TimestampMs: message.Time.UnixMilli()}
}

func (c client) Read(topic string, start int64, count int) ([]flows.Row, error) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{c.bootstrap}, Topic: topic,
		Partition: 0, MaxWait: 500 * time.Millisecond})
	defer reader.Close()
	if err := reader.SetOffset(start); err != nil {
		return nil, err
	}
	return take(count, func(ctx context.Context) (kafka.Message, error) {
		return reader.ReadMessage(ctx)
	})
}

func take(count int, read func(context.Context) (kafka.Message, error)) ([]flows.Row, error) {
	ctx, cancel := limited()
	defer cancel()
	var rows []flows.Row
	for len(rows) < count {
		message, err := read(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, rowOf(message))
	}
	return rows, nil
}

// Join uses the library's ConsumerGroup, because its Reader does not report its partitions.
func (c client) Join(topic, group string, member *flows.Member, ending <-chan struct{}) error {
	members, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{ID: group,
		Brokers: []string{c.bootstrap}, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: time.Second, SessionTimeout: 6 * time.Second,
		RebalanceTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-ending; cancel() }()
	for {
		generation, err := members.Next(ctx)
		if ctx.Err() != nil {
			return members.Close()
		}
		if err != nil {
			// The library's own Reader also retries while the application calls it.
			time.Sleep(200 * time.Millisecond)
			continue
		}
		var ids []int32
		for _, one := range generation.Assignments[topic] {
			ids = append(ids, int32(one.ID))
			generation.Start(func(ctx context.Context) {
				c.follow(ctx, topic, one, generation, member)
			})
		}
		member.Assigned(ids)
	}
}

// follow reads one partition until the generation ends, and commits after each record.
func (c client) follow(ctx context.Context, topic string, one kafka.PartitionAssignment,
	generation *kafka.Generation, member *flows.Member) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{c.bootstrap}, Topic: topic,
		Partition: one.ID, MaxWait: 500 * time.Millisecond})
	defer reader.Close()
	if reader.SetOffset(one.Offset) != nil {
		return
	}
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return
		}
		member.Saw(message.Key)
		offsets := map[string]map[int]int64{topic: {one.ID: message.Offset + 1}}
		if generation.CommitOffsets(offsets) != nil {
			return
		}
	}
}

func (c client) Take(topic, group string, count int) ([]flows.Row, error) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{c.bootstrap}, Topic: topic,
		GroupID: group, StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond})
	defer reader.Close()
	return take(count, func(ctx context.Context) (kafka.Message, error) {
		message, err := reader.FetchMessage(ctx)
		if err == nil {
			err = reader.CommitMessages(ctx, message)
		}
		return message, err
	})
}

// poll returns the offset of the next message, or -1 if none arrives soon.
func poll(reader *kafka.Reader) func() (int64, error) {
	return func() (int64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		message, err := reader.FetchMessage(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return -1, nil
		}
		return message.Offset, err
	}
}

func (c client) First(topic, group, policy string, nudge func() error) (int64, error) {
	start := kafka.FirstOffset
	if policy == "latest" {
		start = kafka.LastOffset
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{c.bootstrap}, Topic: topic,
		GroupID: group, StartOffset: start, MaxWait: 500 * time.Millisecond})
	defer reader.Close()
	return flows.First(poll(reader), nudge)
}

func (c client) Lost(topic string, start int64) (int64, error) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{c.bootstrap}, Topic: topic,
		Partition: 0, MaxWait: 500 * time.Millisecond})
	defer reader.Close()
	if err := reader.SetOffset(start); err != nil {
		return 0, err
	}
	return flows.First(poll(reader), nil)
}

func (c client) OffsetAt(topic string, timestampMs int64) (int64, error) {
	ctx, cancel := limited()
	defer cancel()
	connection, err := kafka.DialLeader(ctx, "tcp", c.bootstrap, topic, 0)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	return connection.ReadOffset(time.UnixMilli(timestampMs))
}

func (c client) Create(topic string, partitions int32) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: int(partitions),
			ReplicationFactor: 1}}})
	if err != nil {
		return err
	}
	return answer.Errors[topic]
}

func (c client) PartitionCount(topic string) (int, error) {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return 0, err
	}
	for _, one := range answer.Topics {
		if one.Name == topic {
			return len(one.Partitions), nil
		}
	}
	return 0, nil
}

func (c client) Delete(topic string) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return answer.Errors[topic]
}

func (c client) Grow(topic string, partitions int32) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: partitions}}})
	if err != nil {
		return err
	}
	return answer.Errors[topic]
}

func (c client) SetConfig(topic, key, value string) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: key, Value: value,
				ConfigOperation: kafka.ConfigOperationSet}}}}})
	if err != nil {
		return err
	}
	return answer.Resources[0].Error
}

func (c client) valueOf(kind kafka.ResourceType, name, key string) (string, error) {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kind, ResourceName: name}}})
	if err != nil {
		return "", err
	}
	for _, one := range answer.Resources[0].ConfigEntries {
		if one.ConfigName == key {
			return one.ConfigValue, nil
		}
	}
	return "", answer.Resources[0].Error
}

func (c client) Config(topic, key string) (string, error) {
	return c.valueOf(kafka.ResourceTypeTopic, topic, key)
}

func (c client) BrokerConfig(key string) (string, error) {
	return c.valueOf(kafka.ResourceTypeBroker, "1", key)
}

func (c client) Groups() ([]string, error) {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, one := range answer.Groups {
		names = append(names, one.GroupID)
	}
	return names, answer.Error
}

func (c client) GroupState(group string) (string, error) {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().DescribeGroups(ctx,
		&kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return "", err
	}
	return answer.Groups[0].GroupState, answer.Groups[0].Error
}

func (c client) Committed(topic, group string) (int64, error) {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group,
		Topics: map[string][]int{topic: {0}}})
	if err != nil {
		return 0, err
	}
	row := answer.Topics[topic][0]
	return row.CommittedOffset, errors.Join(answer.Error, row.Error)
}

func (c client) SetCommitted(topic, group string, offset int64) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: group,
		GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{topic: {{Offset: offset}}}})
	if err != nil {
		return err
	}
	return answer.Topics[topic][0].Error
}

func (c client) DeleteGroup(group string) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := c.api().DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return err
	}
	return answer.Errors[group]
}
