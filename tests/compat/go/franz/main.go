// franz-go: arguments are bootstrap, scenario, topic.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"compat/flows"
)

type client struct{ bootstrap string }

func main() {
	flows.Main(func(bootstrap string) flows.Client { return client{bootstrap} })
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

func (c client) open(options ...kgo.Opt) (*kgo.Client, error) {
	more, err := security()
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(append(options, more...), kgo.SeedBrokers(c.bootstrap))...)
}

// The security options that the driver requests.
func security() ([]kgo.Opt, error) {
	way := flows.Security
	if way == nil {
		return nil, nil
	}
	config, err := way.TLS()
	if err != nil {
		return nil, err
	}
	options := []kgo.Opt{kgo.DialTLSConfig(config)}
	secret := scram.Auth{User: way.User, Pass: way.Password}
	switch way.Mechanism {
	case "PLAIN":
		auth := plain.Auth{User: way.User, Pass: way.Password}
		options = append(options, kgo.SASL(auth.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(secret.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(secret.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: way.Token}.AsMechanism()))
	}
	return options, nil
}

func (c client) Codecs() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

func (c client) Produce(topic string, rows []flows.Row, codec string, partition int32) error {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(),
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	kafka, err := c.open(kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.AllowAutoTopicCreation())
	if err != nil {
		return err
	}
	defer kafka.Close()
	var records []*kgo.Record
	for _, row := range rows {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Key: row.Key,
			Value: row.Value, Timestamp: time.UnixMilli(row.TimestampMs)})
	}
	ctx, cancel := limited()
	defer cancel()
	return kafka.ProduceSync(ctx, records...).FirstErr()
}

func take(kafka *kgo.Client, count int) ([]flows.Row, []*kgo.Record, error) {
	ctx, cancel := limited()
	defer cancel()
	var rows []flows.Row
	var records []*kgo.Record
	for len(rows) < count {
		fetches := kafka.PollRecords(ctx, count-len(rows))
		if err := fetches.Err(); err != nil {
			return nil, nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, record)
			rows = append(rows, flows.Row{Key: record.Key, Value: record.Value,
				TimestampMs: record.Timestamp.UnixMilli(), Offset: record.Offset})
		})
	}
	return rows, records, nil
}

func (c client) Read(topic string, start int64, count int) ([]flows.Row, error) {
	kafka, err := c.open(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {0: kgo.NewOffset().At(start)}}))
	if err != nil {
		return nil, err
	}
	defer kafka.Close()
	rows, _, err := take(kafka, count)
	return rows, err
}

// ReadIsolated, Move and Overtaken implement flows.Mover.
func (c client) ReadIsolated(topic string, count int, committed bool) ([]flows.Row, error) {
	isolation := kgo.ReadUncommitted()
	if committed {
		isolation = kgo.ReadCommitted()
	}
	kafka, err := c.open(kgo.FetchIsolationLevel(isolation), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, err
	}
	defer kafka.Close()
	rows, _, err := take(kafka, count)
	return rows, err
}

func (c client) Move(topic, goal, group string, count int, commit bool) error {
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(c.bootstrap),
		kgo.TransactionalID(group+"-id"), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := limited()
	defer cancel()
	if err = session.Begin(); err != nil {
		return err
	}
	var records []*kgo.Record
	for taken := 0; taken < count; {
		fetches := session.PollRecords(ctx, count-taken)
		if err = fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			taken++
			records = append(records, &kgo.Record{Topic: goal, Key: record.Key,
				Value: record.Value, Timestamp: record.Timestamp})
		})
	}
	if err = session.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	committed, err := session.End(ctx, kgo.TransactionEndTry(commit))
	if err == nil && committed != commit {
		err = errors.New("the transaction ended another way than it was asked to")
	}
	return err
}

func (c client) Overtaken(topic, id string) error {
	first, err := c.open(kgo.TransactionalID(id))
	if err != nil {
		panic(err)
	}
	defer first.Close()
	second, err := c.open(kgo.TransactionalID(id))
	if err != nil {
		panic(err)
	}
	defer second.Close()
	ctx, cancel := limited()
	defer cancel()
	if err = first.BeginTransaction(); err != nil {
		panic(err)
	}
	open := &kgo.Record{Topic: topic, Value: []byte("open")}
	if err = first.ProduceSync(ctx, open).FirstErr(); err != nil {
		panic(err)
	}
	// Applications must wait themselves until the first producer's transaction is aborted.
	for {
		_, _, err = second.ProducerID(ctx)
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			break
		}
	}
	if err != nil {
		panic(err)
	}
	return first.EndTransaction(ctx, kgo.TryCommit)
}

func (c client) Join(topic, group string, member *flows.Member, ending <-chan struct{}) error {
	options := []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(time.Second),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
			member.Added(got[topic])
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			member.Lost(lost[topic])
		})}
	if flows.Instance != "" {
		options = append(options, kgo.InstanceID(flows.Instance))
	}
	kafka, err := c.open(options...)
	if err != nil {
		return err
	}
	defer kafka.Close()
	for {
		select {
		case <-ending:
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := kafka.PollFetches(ctx)
		cancel()
		// Other errors are reported for logging only: the library itself retries.
		if err := fetches.Err(); errors.Is(err, kgo.ErrClientClosed) {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) { member.Saw(record.Key) })
	}
}

func (c client) Take(topic, group string, count int) ([]flows.Row, error) {
	kafka, err := c.open(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer kafka.Close()
	rows, records, err := take(kafka, count)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limited()
	defer cancel()
	return rows, kafka.CommitRecords(ctx, records...)
}

// poll returns the first offset of the records that arrive soon, or -1.
func poll(kafka *kgo.Client) func() (int64, error) {
	return func() (int64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		fetches := kafka.PollRecords(ctx, 1)
		if records := fetches.Records(); len(records) > 0 {
			return records[0].Offset, nil
		}
		if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return -1, err
		}
		return -1, nil
	}
}

func (c client) First(topic, group, policy string, nudge func() error) (int64, error) {
	start := kgo.NewOffset().AtStart()
	if policy == "latest" {
		start = kgo.NewOffset().AtEnd()
	}
	kafka, err := c.open(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(start))
	if err != nil {
		return 0, err
	}
	defer kafka.Close()
	return flows.First(poll(kafka), nudge)
}

func (c client) Lost(topic string, start int64) (int64, error) {
	kafka, err := c.open(kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			topic: {0: kgo.NewOffset().At(start)}}))
	if err != nil {
		return 0, err
	}
	defer kafka.Close()
	return flows.First(poll(kafka), nil)
}

func (c client) admin(use func(context.Context, *kadm.Client) error) error {
	kafka, err := c.open()
	if err != nil {
		return err
	}
	defer kafka.Close()
	ctx, cancel := limited()
	defer cancel()
	return use(ctx, kadm.NewClient(kafka))
}

func (c client) OffsetAt(topic string, timestampMs int64) (offset int64, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		listed, err := admin.ListOffsetsAfterMilli(ctx, timestampMs, topic)
		if err != nil {
			return err
		}
		row, _ := listed.Lookup(topic, 0)
		offset = row.Offset
		return row.Err
	})
	return offset, err
}

func (c client) Create(topic string, partitions int32) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		_, err := admin.CreateTopic(ctx, partitions, 1, nil, topic)
		return err
	})
}

func (c client) PartitionCount(topic string) (count int, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		details, err := admin.ListTopics(ctx)
		count = len(details[topic].Partitions)
		return err
	})
	return count, err
}

func (c client) Delete(topic string) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	})
}

func (c client) Grow(topic string, partitions int32) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		answer, err := admin.UpdatePartitions(ctx, int(partitions), topic)
		return errors.Join(err, answer.Error())
	})
}

func (c client) SetConfig(topic, key, value string) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		answer, err := admin.AlterTopicConfigs(ctx,
			[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
		if err != nil {
			return err
		}
		return answer[0].Err
	})
}

func valueOf(all kadm.ResourceConfigs, err error, key string) (string, error) {
	if err != nil {
		return "", err
	}
	for _, one := range all[0].Configs {
		if one.Key == key {
			return *one.Value, nil
		}
	}
	return "", all[0].Err
}

func (c client) Config(topic, key string) (value string, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		all, err := admin.DescribeTopicConfigs(ctx, topic)
		value, err = valueOf(all, err, key)
		return err
	})
	return value, err
}

func (c client) BrokerConfig(key string) (value string, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		all, err := admin.DescribeBrokerConfigs(ctx, 1)
		value, err = valueOf(all, err, key)
		return err
	})
	return value, err
}

func (c client) Groups() (names []string, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		all, err := admin.ListGroups(ctx)
		names = all.Groups()
		return err
	})
	return names, err
}

func (c client) GroupState(group string) (state string, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		all, err := admin.DescribeGroups(ctx, group)
		state = all[group].State
		return err
	})
	return state, err
}

func (c client) Committed(topic, group string) (offset int64, err error) {
	err = c.admin(func(ctx context.Context, admin *kadm.Client) error {
		all, err := admin.FetchOffsets(ctx, group)
		row, _ := all.Lookup(topic, 0)
		offset = row.At
		return err
	})
	return offset, err
}

func (c client) SetCommitted(topic, group string, offset int64) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, offset, -1)
		return admin.CommitAllOffsets(ctx, group, offsets)
	})
}

func (c client) DeleteGroup(group string) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		answer, err := admin.DeleteGroup(ctx, group)
		return errors.Join(err, answer.Err)
	})
}

// Trim implements flows.Trimmer.
func (c client) Trim(topic string, offset int64) error {
	return c.admin(func(ctx context.Context, admin *kadm.Client) error {
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, offset, -1)
		answer, err := admin.DeleteRecords(ctx, offsets)
		return errors.Join(err, answer.Error())
	})
}
