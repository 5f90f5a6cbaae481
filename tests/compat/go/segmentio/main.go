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
		RequiredAcks: kafka.RequireAll, Compression: codecs[codec],
		BatchTimeout: 20 * time.Millisecond,
		Balancer:     kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(partition) })}
	var messages []kafka.Message
	for _, row := range rows {
		messages = append(messages, kafka.Message{Key: row.Key, Value: row.Value,
			Time: time.UnixMilli(row.TimestampMs)})
	}
	ctx, cancel := limited()
	defer cancel()
	return errors.Join(writer.WriteMessages(ctx, messages...), writer.Close())
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

// Join uses the library's ConsumerGroup, because its Reader does not tell what it was assigned.
func (c client) Join(topic, group string, member *flows.Member, ending <-chan struct{}) error {
	members, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{ID: group,
		Brokers: []string{c.bootstrap}, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: time.Second, SessionTimeout: 10 * time.Second,
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
			members.Close()
			return err
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

// follow reads one partition until the generation ends, and commits what it read.
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
