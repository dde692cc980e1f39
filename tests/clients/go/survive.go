package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	sendPause     = 10 * time.Millisecond
	tellPause     = 500 * time.Millisecond
	finishTimeMax = 60 * time.Second
)

// survivor is a producer and a member of a group with their default settings, through whatever happens to the cluster.
// What it does and prints is described in clients/survivors.py.
type survivor struct {
	topic  string
	mutex  sync.Mutex
	acked  []int
	read   []int
	errors []string
}

func survive(topic string) error {
	s := &survivor{topic: topic, acked: []int{}, read: []int{}, errors: []string{}}
	ending, produced := make(chan struct{}), make(chan error, 1)
	go func() {
		io.Copy(io.Discard, os.Stdin) // How it ends does not matter, only that it does.
		close(ending)
	}()
	go s.tell(ending)
	go func() { produced <- s.produce(ending) }()
	if err := s.consume(produced); err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return say(map[string]any{"acked": s.acked, "read": s.read, "errors": s.errors})
}

func say(message map[string]any) error {
	line, err := json.Marshal(message)
	if err == nil {
		_, err = fmt.Println(string(line))
	}
	return err
}

func (s *survivor) tell(ending chan struct{}) {
	for {
		select {
		case <-ending:
			return
		case <-time.After(tellPause):
			s.mutex.Lock()
			say(map[string]any{"acked": len(s.acked), "read": len(s.read)})
			s.mutex.Unlock()
		}
	}
}

func (s *survivor) failed(where string, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.errors = append(s.errors, where+": "+err.Error())
}

func (s *survivor) produce(ending chan struct{}) error {
	producer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer producer.Close()
	ctx := context.Background()
	for number := 0; ; number++ {
		value := []byte(strconv.Itoa(number))
		producer.Produce(ctx, &kgo.Record{Topic: s.topic, Key: value, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				s.failed("produce", err)
				return
			}
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.acked = append(s.acked, number)
		})
		select {
		case <-ending:
			return producer.Flush(ctx)
		case <-time.After(sendPause):
		}
	}
}

func (s *survivor) consume(produced chan error) error {
	consumer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumerGroup(s.topic), kgo.ConsumeTopics(s.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer consumer.Close()
	var deadline time.Time
	for deadline.IsZero() || !(s.isAllRead() || time.Now().After(deadline)) {
		select {
		case err := <-produced:
			if err != nil {
				return err
			}
			deadline = time.Now().Add(finishTimeMax)
		default:
		}
		s.poll(consumer)
	}
	return nil
}

func (s *survivor) poll(consumer *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	fetches := consumer.PollFetches(ctx)
	fetches.EachError(func(_ string, _ int32, err error) {
		if err != context.DeadlineExceeded {
			s.failed("consume", err)
		}
	})
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fetches.EachRecord(func(record *kgo.Record) {
		number, err := strconv.Atoi(string(record.Value))
		if err == nil {
			s.read = append(s.read, number)
		}
	})
}

func (s *survivor) isAllRead() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	read := map[int]bool{}
	for _, number := range s.read {
		read[number] = true
	}
	for _, number := range s.acked {
		if !read[number] {
			return false
		}
	}
	return true
}
