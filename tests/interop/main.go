// Speaks to a server as a jxt-core event bus does, so that the tests of laneway can check that both
// understand each other. What is special to NATS and to Kafka is in files of their names.
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
)

const patience = 2 * time.Minute

// The wire format that both share. The tenant is a number since jxt-core 1.1.36; before it was text.
type envelope struct {
	EventID       string          `json:"event_id"`
	AggregateID   string          `json:"aggregate_id"`
	EventType     string          `json:"event_type"`
	EventVersion  int64           `json:"event_version"`
	Timestamp     time.Time       `json:"timestamp"`
	TraceID       string          `json:"trace_id,omitempty"`
	CorrelationID string          `json:"correlation_id,omitempty"`
	TenantID      int             `json:"tenant_id,omitempty"`
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
	numbers := make([]int, 0, 2)
	for _, arg := range args[3:] {
		number, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	var bus bus
	var err error
	if servers, found := strings.CutPrefix(server, "kafka://"); found {
		bus, err = openKafka(servers, topic)
	} else {
		bus, err = openNats(server, topic)
	}
	if err != nil {
		return err
	}
	defer bus.close()
	switch {
	case command == "publish" && len(numbers) == 2:
		return publish(bus, numbers[0], numbers[1])
	case command == "consume" && len(numbers) == 1:
		return bus.consume(numbers[0])
	}
	return fmt.Errorf("unknown command %q", command)
}

// A topic on a server.
type bus interface {
	// Makes the topic.
	declare() error
	publish(key string, body []byte) error
	// Waits until everything is acknowledged.
	flush() error
	// Prints so many envelopes.
	consume(count int) error
	close()
}

func publish(bus bus, aggregates, events int) error {
	if err := bus.declare(); err != nil {
		return fmt.Errorf("making the topic: %w", err)
	}
	for event := range events {
		for aggregate := range aggregates {
			id := fmt.Sprintf("order-%d", aggregate)
			body, err := json.Marshal(&envelope{
				EventID:      fmt.Sprintf("go-%d-%d", aggregate, event),
				AggregateID:  id,
				EventType:    "OrderChanged",
				EventVersion: int64(event) + 1,
				Timestamp:    time.Now(),
				TenantID:     42,
				Payload:      json.RawMessage(fmt.Sprintf(`{"number":%d}`, event)),
			})
			if err != nil {
				return err
			}
			if err := bus.publish(id, body); err != nil {
				return fmt.Errorf("publishing: %w", err)
			}
		}
	}
	return bus.flush()
}

// Prints an envelope on a line.
func show(body []byte) error {
	var read envelope
	if err := json.Unmarshal(body, &read); err != nil {
		return fmt.Errorf("decoding %q: %w", body, err)
	}
	if err := read.check(); err != nil {
		return fmt.Errorf("%q: %w", body, err)
	}
	fmt.Printf("%s %d %d %s\n", read.AggregateID, read.EventVersion, read.TenantID, read.Payload)
	return nil
}
