package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// The aggregate id as the key, and in a header; partitions by sarama's hash of it.
type onKafka struct {
	client   sarama.Client
	producer sarama.SyncProducer
	topic    string
}

const partitions = 4

func openKafka(servers, topic string) (bus, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	// A topic that was just made is led by nobody for a moment, and on a busy machine for longer.
	config.Producer.Retry.Max = 50
	config.Metadata.Retry.Max = 50
	config.Net.MaxOpenRequests = 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	client, err := sarama.NewClient(strings.Split(servers, ","), config)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return nil, err
	}
	return &onKafka{client, producer, topic}, nil
}

func (b *onKafka) close() {
	_ = b.producer.Close()
	_ = b.client.Close()
}

func (b *onKafka) declare() error {
	admin, err := sarama.NewClusterAdminFromClient(b.client)
	if err != nil {
		return err
	}
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
	return admin.CreateTopic(b.topic, detail, false)
}

func (b *onKafka) publish(key string, body []byte) error {
	_, _, err := b.producer.SendMessage(&sarama.ProducerMessage{
		Topic: b.topic,
		Key:   sarama.StringEncoder(key),
		Value: sarama.ByteEncoder(body),
		Headers: []sarama.RecordHeader{
			{Key: []byte("X-Aggregate-ID"), Value: []byte(key)},
		},
	})
	return err
}

func (b *onKafka) flush() error { return nil }

func (b *onKafka) consume(count int) error {
	consumer, err := sarama.NewConsumerFromClient(b.client)
	if err != nil {
		return err
	}
	numbers, err := consumer.Partitions(b.topic)
	if err != nil {
		return err
	}
	bodies := make(chan []byte)
	for _, number := range numbers {
		partition, err := consumer.ConsumePartition(b.topic, number, sarama.OffsetOldest)
		if err != nil {
			return fmt.Errorf("subscribing: %w", err)
		}
		go func() {
			for message := range partition.Messages() {
				bodies <- message.Value
			}
		}()
	}
	deadline := time.After(patience)
	for seen := range count {
		select {
		case body := <-bodies:
			if err := show(body); err != nil {
				return err
			}
		case <-deadline:
			return fmt.Errorf("only %d of %d events came", seen, count)
		}
	}
	return nil
}
