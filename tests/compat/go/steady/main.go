// franz-go that runs continuously: arguments are produce or consume, bootstrap, topic.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const pause = 10 * time.Millisecond

func main() {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(os.Args[2], ",")...)}
	run := produce
	if os.Args[1] == "produce" {
		options = append(options, kgo.DefaultProduceTopic(os.Args[3]))
	} else {
		run = consume
		options = append(options, kgo.ConsumerGroup(os.Args[3]+"-group"),
			kgo.ConsumeTopics(os.Args[3]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	run(client)
}

func produce(client *kgo.Client) {
	for number := 0; ; number++ {
		text := strconv.Itoa(number)
		client.Produce(context.Background(), kgo.StringRecord(text),
			func(_ *kgo.Record, err error) {
				if err != nil {
					fmt.Println("failed", text, err)
				} else {
					fmt.Println("acknowledged", text)
				}
			})
		time.Sleep(pause)
	}
}

func consume(client *kgo.Client) {
	for {
		client.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
			fmt.Println("record", string(record.Value))
		})
	}
}
