package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// A stream of its own for the topic, the topic as the subject, no headers, a durable consumer that
// acknowledges every message.
type onNats struct {
	connection *nats.Conn
	js         nats.JetStreamContext
	topic      string
}

func openNats(server, topic string) (bus, error) {
	connection, err := nats.Connect(server, nats.Timeout(patience))
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	js, err := connection.JetStream(nats.MaxWait(patience))
	if err != nil {
		return nil, err
	}
	return &onNats{connection, js, topic}, nil
}

func (b *onNats) close() { b.connection.Close() }

func (b *onNats) declare() error {
	_, err := b.js.AddStream(&nats.StreamConfig{
		Name:     "STREAM_" + strings.ReplaceAll(b.topic, ".", "_"),
		Subjects: []string{b.topic},
		Storage:  nats.FileStorage,
	})
	return err
}

func (b *onNats) publish(_ string, body []byte) error {
	_, err := b.js.PublishAsync(b.topic, body)
	return err
}

func (b *onNats) flush() error {
	select {
	case <-b.js.PublishAsyncComplete():
		return nil
	case <-time.After(patience):
		return errors.New("not all events were acknowledged in time")
	}
}

func (b *onNats) consume(count int) error {
	subscription, err := b.js.PullSubscribe(b.topic, "interop", nats.AckExplicit())
	if err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	deadline := time.Now().Add(patience)
	for seen := 0; seen < count; {
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d events came", seen, count)
		}
		messages, err := subscription.Fetch(count-seen, nats.MaxWait(time.Second))
		if err != nil && !errors.Is(err, nats.ErrTimeout) {
			return fmt.Errorf("fetching: %w", err)
		}
		for _, message := range messages {
			if err := show(message.Data); err != nil {
				return err
			}
			if err := message.Ack(); err != nil {
				return fmt.Errorf("acknowledging: %w", err)
			}
			seen++
		}
	}
	return nil
}
