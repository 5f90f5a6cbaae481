// Package flows contains the steps of each scenario, shared by all clients written in Go.
package flows

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// BaseMs is the timestamp of the first record of each stem.
const BaseMs = 1_760_000_000_000

const partitions = 4

// The last row of a full set is longer than any codec's block.
const fullSet, bigBytes = 51, 390_000

// Instance is the static member id (KIP-345) that the driver assigns to this program, if any.
var Instance = os.Getenv("COMPAT_INSTANCE")

// Security contains the security settings that the driver requests: paths of PEM files, a SASL
// mechanism and its credentials. Nil: plain text.
var Security = security()

// Way is the driver's COMPAT_SECURITY.
type Way struct {
	Trusted, Certificate, Key, Mechanism, User, Password, Token string
}

func security() *Way {
	given := os.Getenv("COMPAT_SECURITY")
	if given == "" {
		return nil
	}
	way := &Way{}
	if err := json.Unmarshal([]byte(given), way); err != nil {
		panic(err)
	}
	return way
}

// TLS returns the TLS configuration.
func (w *Way) TLS() (*tls.Config, error) {
	trusted, err := os.ReadFile(w.Trusted)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1"}
	config.RootCAs.AppendCertsFromPEM(trusted)
	if w.Certificate != "" {
		own, err := tls.LoadX509KeyPair(w.Certificate, w.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// The driver prepares the topic of the scenario "reset" with offsets 3 to 19.
const resetStart, resetEnd = 3, 20

// Row is a record.
type Row struct {
	Key, Value  []byte
	TimestampMs int64
	Offset      int64
}

// Member is a group member. Run returns after ending was closed and the member has left.
type Member struct {
	mutex   sync.Mutex
	share   map[int32]bool
	keys    map[string]bool
	ending  chan struct{}
	ended   chan struct{}
	failure error
}

// Assigned reports the member's current partitions.
func (m *Member) Assigned(ids []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.share = map[int32]bool{}
	for _, id := range ids {
		m.share[id] = true
	}
}

// Added and Lost report changes of the member's partitions.
func (m *Member) Added(ids []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, id := range ids {
		m.share[id] = true
	}
}

// Lost removes partitions.
func (m *Member) Lost(ids []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, id := range ids {
		delete(m.share, id)
	}
}

// Saw reports a record's key.
func (m *Member) Saw(key []byte) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.keys[string(key)] = true
}

// Client is the interface that each library implements.
type Client interface {
	Codecs() []string
	Produce(topic string, rows []Row, codec string, partition int32) error
	Read(topic string, start int64, count int) ([]Row, error)
	Join(topic, group string, member *Member, ending <-chan struct{}) error
	Take(topic, group string, count int) ([]Row, error)
	OffsetAt(topic string, timestampMs int64) (int64, error)
	Create(topic string, partitions int32) error
	PartitionCount(topic string) (int, error)
	Grow(topic string, partitions int32) error
	Delete(topic string) error
	// First returns the first offset that a new group reads; nudge is called between polls.
	First(topic, group, policy string, nudge func() error) (int64, error)
	// Lost returns the first offset read after seeking to start, which is deleted.
	Lost(topic string, start int64) (int64, error)
	SetConfig(topic, key, value string) error
	Config(topic, key string) (string, error)
	BrokerConfig(key string) (string, error)
	Groups() ([]string, error)
	GroupState(group string) (string, error)
	Committed(topic, group string) (int64, error)
	SetCommitted(topic, group string, offset int64) error
	DeleteGroup(group string) error
}

// Trimmer is a Client that can delete records.
type Trimmer interface {
	Trim(topic string, offset int64) error
}

// Mover is a Client with transactions.
type Mover interface {
	Client
	// Move reads count records of topic from the group's position, sends them to goal and commits
	// the group's position, in one transaction.
	Move(topic, goal, group string, count int, commit bool) error
	// Overtaken opens a transaction, starts a second producer with the same id, and returns the
	// error of the first producer's commit.
	Overtaken(topic, id string) error
	ReadIsolated(topic string, count int, committed bool) ([]Row, error)
}

// Rows returns records whose values cover every byte and whose timestamps are a second apart.
func Rows(stem string, count int) []Row {
	rows := make([]Row, count)
	for number := range rows {
		length := number * 13
		if number == fullSet-1 {
			length = bigBytes
		}
		value := make([]byte, length)
		for place := range value {
			value[place] = byte(number*7 + place)
		}
		rows[number] = Row{Key: []byte(fmt.Sprintf("%s-%d", stem, number)), Value: value,
			TimestampMs: BaseMs + 1000*int64(number)}
	}
	return rows
}

// Main runs the scenario of the arguments bootstrap, scenario, topic; the last line is JSON.
func Main(open func(bootstrap string) Client) {
	client := open(os.Args[1])
	flow := map[string]func(Client, string) (string, error){
		"codecs": codecs, "create": create, "group": group, "member": living,
		"resume": resume, "seek": seek, "reset": reset, "topics": topics, "configs": configs, "groups": groups,
		"transactions": transactions,
	}[os.Args[2]]
	note, err := flow(client, os.Args[3])
	if err != nil {
		note = err.Error()
	}
	line, _ := json.Marshal(map[string]any{"ok": err == nil, "note": note})
	fmt.Println(string(line))
	if err != nil {
		os.Exit(1)
	}
}

func same(got, want []Row, start int64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records, not %d", len(got), len(want))
	}
	for place, row := range got {
		if row.Offset != start+int64(place) || !bytes.Equal(row.Key, want[place].Key) ||
			!bytes.Equal(row.Value, want[place].Value) ||
			row.TimestampMs != want[place].TimestampMs {
			return fmt.Errorf("another record at offset %d (key %q, %d bytes, timestamp %d)",
				row.Offset, row.Key, len(row.Value), row.TimestampMs)
		}
	}
	return nil
}

func codecs(client Client, topic string) (string, error) {
	offset := int64(0)
	for _, codec := range client.Codecs() {
		sent := Rows(codec, fullSet)
		if err := client.Produce(topic, sent, codec, 0); err != nil {
			return "", fmt.Errorf("%s: produce: %w", codec, err)
		}
		got, err := client.Read(topic, offset, len(sent))
		if err == nil {
			err = same(got, sent, offset)
		}
		if err != nil {
			return "", fmt.Errorf("%s: read: %w", codec, err)
		}
		offset += int64(len(sent))
	}
	return strings.Join(client.Codecs(), " "), nil
}

// create sends a first record, which creates its topic.
func create(client Client, topic string) (string, error) {
	sent := Rows("new", 5)
	if err := client.Produce(topic+"-new", sent, "none", 0); err != nil {
		return "", err
	}
	got, err := client.Read(topic+"-new", 0, len(sent))
	if err != nil {
		return "", err
	}
	return "", same(got, sent, 0)
}

func join(client Client, topic string) *Member {
	member := &Member{share: map[int32]bool{}, keys: map[string]bool{},
		ending: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		err := client.Join(topic, topic+"-group", member, member.ending)
		member.mutex.Lock()
		member.failure = err
		member.mutex.Unlock()
		close(member.ended)
	}()
	return member
}

func (m *Member) leave() error {
	close(m.ending)
	select {
	case <-m.ended:
		return m.failure
	case <-time.After(45 * time.Second):
		return fmt.Errorf("a member did not leave")
	}
}

func (m *Member) holds(count int) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return len(m.share) == count
}

func (m *Member) has(keys []string, other *Member) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if other != nil {
		other.mutex.Lock()
		defer other.mutex.Unlock()
	}
	for _, key := range keys {
		if !m.keys[key] && (other == nil || !other.keys[key]) {
			return false
		}
	}
	return true
}

func waitFor(what string, condition func() bool, members ...*Member) error {
	for end := time.Now().Add(45 * time.Second); !condition(); time.Sleep(50 * time.Millisecond) {
		for _, member := range members {
			member.mutex.Lock()
			failure := member.failure
			member.mutex.Unlock()
			if failure != nil {
				return fmt.Errorf("a member failed: %w", failure)
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited 45 s for: %s", what)
		}
	}
	return nil
}

func group(client Client, topic string) (string, error) {
	first := join(client, topic)
	err := waitFor("one member with all partitions",
		func() bool { return first.holds(partitions) }, first)
	if err != nil {
		return "", err
	}
	second := join(client, topic)
	if err = waitFor("two members with half each", func() bool {
		return first.holds(partitions/2) && second.holds(partitions/2)
	}, first, second); err != nil {
		return "", err
	}
	var sent []string
	for partition := int32(0); partition < partitions; partition++ {
		rows := Rows(fmt.Sprintf("two%d", partition), 10)
		if err = client.Produce(topic, rows, "none", partition); err != nil {
			return "", err
		}
		for _, row := range rows {
			sent = append(sent, string(row.Key))
		}
	}
	if err = waitFor("every record at one of two members",
		func() bool { return first.has(sent, second) }, first, second); err != nil {
		return "", err
	}
	if err = second.leave(); err != nil {
		return "", err
	}
	if err = waitFor("all partitions back",
		func() bool { return first.holds(partitions) }, first); err != nil {
		return "", err
	}
	if err = client.Produce(topic, Rows("one", 10), "none", partitions-1); err != nil {
		return "", err
	}
	if err = waitFor("the records after the leave",
		func() bool { return first.has([]string{"one-9"}, nil) }, first); err != nil {
		return "", err
	}
	return "1 > 2 > 1 members", first.leave()
}

func resume(client Client, topic string) (string, error) {
	sent := Rows("resume", 30)
	if err := client.Produce(topic, sent, "none", 0); err != nil {
		return "", err
	}
	start := 0
	for _, count := range []int{10, 20} {
		got, err := client.Take(topic, topic+"-group", count)
		if err == nil {
			err = same(got, sent[start:start+count], int64(start))
		}
		if err != nil {
			return "", fmt.Errorf("records from %d: %w", start, err)
		}
		start += count
	}
	return "", nil
}

func seek(client Client, topic string) (string, error) {
	sent := Rows("seek", 20)
	if err := client.Produce(topic, sent, "none", 0); err != nil {
		return "", err
	}
	offset, err := client.OffsetAt(topic, BaseMs+6_500)
	if err != nil {
		return "", err
	}
	if offset != 7 {
		return "", fmt.Errorf("offset %d, not 7", offset)
	}
	got, err := client.Read(topic, offset, 13)
	if err != nil {
		return "", err
	}
	return "", same(got, sent[7:], offset)
}

// living runs a member until it is killed. It prints its partitions and the keys it reads.
func living(client Client, topic string) (string, error) {
	one := join(client, topic)
	told, last := map[string]bool{}, ""
	for ; ; time.Sleep(50 * time.Millisecond) {
		one.mutex.Lock()
		share := "share"
		for id := int32(0); id < partitions; id++ {
			if one.share[id] {
				share += fmt.Sprintf(" %d", id)
			}
		}
		for key := range one.keys {
			if !told[key] {
				fmt.Println("key", key)
				told[key] = true
			}
		}
		failure := one.failure
		one.mutex.Unlock()
		if share != last {
			fmt.Println(share)
			last = share
		}
		if failure != nil {
			return "", failure
		}
	}
}

// First calls poll, which returns -1 if no record arrives soon, until it has an offset.
func First(poll func() (int64, error), nudge func() error) (int64, error) {
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end); {
		if offset, err := poll(); err != nil || offset >= 0 {
			return offset, err
		}
		if nudge != nil {
			if err := nudge(); err != nil {
				return 0, err
			}
		}
	}
	return 0, fmt.Errorf("no record in 45 s")
}

func reset(client Client, topic string) (string, error) {
	note, start := "", int64(resetStart)
	if one, can := client.(Trimmer); can {
		note, start = ", delete records", resetStart+2
		if err := one.Trim(topic, start); err != nil {
			return "", fmt.Errorf("delete records: %w", err)
		}
	}
	offset, err := client.First(topic, topic+"-early", "earliest", nil)
	if err != nil || offset != start {
		return "", fmt.Errorf("earliest is %d, not %d: %v", offset, start, err)
	}
	offset, err = client.Lost(topic, 0)
	if err != nil || offset != start {
		return "", fmt.Errorf("out of range goes to %d, not %d: %v", offset, start, err)
	}
	offset, err = client.First(topic, topic+"-late", "latest", func() error {
		return client.Produce(topic, Rows("late", 1), "none", 0)
	})
	if err != nil || offset < resetEnd {
		return "", fmt.Errorf("latest is %d, below %d: %v", offset, resetEnd, err)
	}
	return "earliest, latest, out of range" + note, nil
}

func topics(client Client, topic string) (string, error) {
	name := topic + "-made"
	if err := client.Create(name, 3); err != nil {
		return "", fmt.Errorf("create: %w", err)
	}
	counts := func(want int) func() bool {
		return func() bool {
			count, err := client.PartitionCount(name)
			return err == nil && count == want
		}
	}
	if err := waitFor("three partitions", counts(3)); err != nil {
		return "", err
	}
	if err := client.Grow(name, 5); err != nil {
		return "", fmt.Errorf("add partitions: %w", err)
	}
	if err := waitFor("five partitions", counts(5)); err != nil {
		return "", err
	}
	if err := client.Delete(name); err != nil {
		return "", fmt.Errorf("delete: %w", err)
	}
	return "create, describe, delete, add partitions", waitFor("the topic to be gone", counts(0))
}

func configs(client Client, topic string) (string, error) {
	if err := client.SetConfig(topic, "retention.ms", "4711000"); err != nil {
		return "", fmt.Errorf("alter: %w", err)
	}
	value, err := client.Config(topic, "retention.ms")
	if err != nil || value != "4711000" {
		return "", fmt.Errorf("retention.ms is %q: %v", value, err)
	}
	value, err = client.BrokerConfig("node.id")
	if err != nil || value != "1" {
		return "", fmt.Errorf("the broker's node.id is %q: %v", value, err)
	}
	return "describe, alter", nil
}

func groups(client Client, topic string) (string, error) {
	name := topic + "-group"
	if err := client.Produce(topic, Rows("groups", 30), "none", 0); err != nil {
		return "", err
	}
	if _, err := client.Take(topic, name, 10); err != nil {
		return "", err
	}
	listed := func() bool {
		all, err := client.Groups()
		return err == nil && slices.Contains(all, name)
	}
	if !listed() {
		return "", fmt.Errorf("the group is not listed")
	}
	if err := waitFor("the group to be empty", func() bool {
		state, err := client.GroupState(name)
		return err == nil && state == "Empty"
	}); err != nil {
		return "", err
	}
	offset, err := client.Committed(topic, name)
	if err != nil || offset != 10 {
		return "", fmt.Errorf("committed is %d, not 10: %v", offset, err)
	}
	if err = client.SetCommitted(topic, name, 4); err != nil {
		return "", fmt.Errorf("alter offsets: %w", err)
	}
	offset, err = client.Committed(topic, name)
	if err != nil || offset != 4 {
		return "", fmt.Errorf("committed is %d, not 4: %v", offset, err)
	}
	if err = client.DeleteGroup(name); err != nil {
		return "", fmt.Errorf("delete: %w", err)
	}
	if listed() {
		return "", fmt.Errorf("a deleted group is listed")
	}
	return "list, describe, offsets, alter, delete", nil
}

// transactions moves records and positions to another topic in transactions, and aborts some.
// Before that, a producer is fenced by another one with the same id.
func transactions(given Client, topic string) (string, error) {
	client := given.(Mover)
	goal, group := topic+"-goal", topic+"-group"
	moves := []struct {
		count  int
		commit bool
	}{{10, false}, {10, true}, {15, false}, {30, true}}
	const moved, everything = 40, 66
	sent := Rows("moved", moved)
	if err := client.Produce(topic, sent, "none", 0); err != nil {
		return "", err
	}
	if err := client.Create(goal, 1); err != nil {
		return "", err
	}
	if client.Overtaken(goal, group+"-id") == nil {
		return "", fmt.Errorf("a producer that was overtaken could commit")
	}
	for _, move := range moves {
		if err := client.Move(topic, goal, group, move.count, move.commit); err != nil {
			return "", fmt.Errorf("move: %w", err)
		}
	}
	got, err := client.ReadIsolated(goal, moved, true)
	if err != nil {
		return "", err
	}
	for place := range got {
		// The offsets between them belong to markers and aborted records.
		got[place].Offset = int64(place)
	}
	if err := same(got, sent, 0); err != nil {
		return "", err
	}
	if _, err = client.ReadIsolated(goal, everything, false); err != nil {
		return "", err
	}
	offset, err := client.Committed(topic, group)
	if err != nil || offset != moved {
		return "", fmt.Errorf("committed is %d, not %d: %v", offset, moved, err)
	}
	return "positions with the records, aborted ones unseen, a second producer of the same id", nil
}
