// Speaks to a NATS server as a jxt-core event bus does, so that the tests of laneway can check that
// both understand each other: a stream of its own for the topic, the topic as the subject, envelopes
// as JSON, no headers, a durable consumer that acknowledges every message.
//
//	interop publish SERVER TOPIC AGGREGATES EVENTS   publishes events 0..EVENTS of each aggregate
//	interop consume SERVER TOPIC COUNT               prints COUNT envelopes, one on a line
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const patience = 20 * time.Second

// The wire format that both share.
type envelope struct {
	EventID       string          `json:"event_id"`
	AggregateID   string          `json:"aggregate_id"`
	EventType     string          `json:"event_type"`
	EventVersion  int64           `json:"event_version"`
	Timestamp     time.Time       `json:"timestamp"`
	TraceID       string          `json:"trace_id,omitempty"`
	CorrelationID string          `json:"correlation_id,omitempty"`
	TenantID      string          `json:"tenant_id,omitempty"`
	Payload       json.RawMessage `json:"payload"`
}

// What the other side demands of an envelope before it handles it.
func (e *envelope) check() error {
	switch {
	case e.EventID == "":
		return errors.New("event_id is missing")
	case e.AggregateID == "":
		return errors.New("aggregate_id is missing")
	case e.EventType == "":
		return errors.New("event_type is missing")
	case e.EventVersion <= 0:
		return errors.New("event_version is not positive")
	case e.Timestamp.IsZero():
		return errors.New("timestamp is missing")
	case len(e.Payload) == 0:
		return errors.New("payload is missing")
	}
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 4 {
		return errors.New("usage: interop publish SERVER TOPIC AGGREGATES EVENTS | consume SERVER TOPIC COUNT")
	}
	command, server, topic := args[0], args[1], args[2]
	connection, err := nats.Connect(server, nats.Timeout(patience))
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer connection.Close()
	js, err := connection.JetStream(nats.MaxWait(patience))
	if err != nil {
		return err
	}
	numbers := make([]int, 0, 2)
	for _, arg := range args[3:] {
		number, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	switch {
	case command == "publish" && len(numbers) == 2:
		return publish(js, topic, numbers[0], numbers[1])
	case command == "consume" && len(numbers) == 1:
		return consume(js, topic, numbers[0])
	}
	return fmt.Errorf("unknown command %q", command)
}

func streamOf(topic string) string {
	return "STREAM_" + strings.ReplaceAll(topic, ".", "_")
}

func publish(js nats.JetStreamContext, topic string, aggregates, events int) error {
	config := &nats.StreamConfig{
		Name:     streamOf(topic),
		Subjects: []string{topic},
		Storage:  nats.FileStorage,
	}
	if _, err := js.AddStream(config); err != nil {
		return fmt.Errorf("making the stream: %w", err)
	}
	for event := range events {
		for aggregate := range aggregates {
			body, err := json.Marshal(&envelope{
				EventID:      fmt.Sprintf("go-%d-%d", aggregate, event),
				AggregateID:  fmt.Sprintf("order-%d", aggregate),
				EventType:    "OrderChanged",
				EventVersion: int64(event) + 1,
				Timestamp:    time.Now(),
				TenantID:     "shop",
				Payload:      json.RawMessage(fmt.Sprintf(`{"number":%d}`, event)),
			})
			if err != nil {
				return err
			}
			if _, err := js.PublishAsync(topic, body); err != nil {
				return fmt.Errorf("publishing: %w", err)
			}
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-time.After(patience):
		return errors.New("not all events were acknowledged in time")
	}
}

func consume(js nats.JetStreamContext, topic string, count int) error {
	subscription, err := js.PullSubscribe(topic, "interop", nats.AckExplicit())
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
			var read envelope
			if err := json.Unmarshal(message.Data, &read); err != nil {
				return fmt.Errorf("decoding %q: %w", message.Data, err)
			}
			if err := read.check(); err != nil {
				return fmt.Errorf("%q: %w", message.Data, err)
			}
			fmt.Printf("%s %d %s\n", read.AggregateID, read.EventVersion, read.Payload)
			if err := message.Ack(); err != nil {
				return err
			}
			seen++
		}
	}
	return nil
}
