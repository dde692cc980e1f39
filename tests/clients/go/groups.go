package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const partitionCount = 4

func groupChecks() []check {
	balancers := []kgo.GroupBalancer{
		kgo.RangeBalancer(), kgo.RoundRobinBalancer(), kgo.StickyBalancer(), kgo.CooperativeStickyBalancer(),
	}
	var checks []check
	for _, balancer := range balancers {
		checks = append(checks, check{"group_" + balancer.ProtocolName(), func(ctx context.Context, topic string) error {
			return sharesAndResumes(ctx, topic, balancer)
		}})
	}
	return append(checks, check{"group_static_member", staticMemberReturns})
}

// member is a group consumer that knows which partitions it owns right now.
type member struct {
	*kgo.Client
	mutex sync.Mutex
	owned map[int32]bool
}

func join(topic string, options ...kgo.Opt) (*member, error) {
	m := &member{owned: map[int32]bool{}}
	take := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) { m.set(partitions[topic], true) }
	drop := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) { m.set(partitions[topic], false) }
	options = append(options,
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.OnPartitionsAssigned(take), kgo.OnPartitionsRevoked(drop), kgo.OnPartitionsLost(drop),
	)
	var err error
	m.Client, err = client(options...)
	return m, err
}

func (m *member) set(partitions []int32, owned bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partition := range partitions {
		if owned {
			m.owned[partition] = true
		} else {
			delete(m.owned, partition)
		}
	}
}

func (m *member) share() map[int32]bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	share := map[int32]bool{}
	for partition := range m.owned {
		share[partition] = true
	}
	return share
}

// poll waits briefly, so that several members can be polled in turn.
func (m *member) poll(ctx context.Context) ([]*kgo.Record, error) {
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	fetches := m.PollFetches(short)
	if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return fetches.Records(), ctx.Err()
}

func waitForShares(ctx context.Context, each int, members ...*member) error {
	for {
		all, even := map[int32]bool{}, true
		for _, m := range members {
			records, err := m.poll(ctx)
			if err != nil {
				return fmt.Errorf("waiting for shares of %d: %w", each, err)
			}
			if len(records) > 0 {
				return fmt.Errorf("a record before anything new was sent: %s", records[0].Value)
			}
			share := m.share()
			even = even && len(share) == each
			for partition := range share {
				all[partition] = true
			}
		}
		if even && len(all) == partitionCount {
			return nil
		}
	}
}

func send(ctx context.Context, topic, round string) error {
	var records []*kgo.Record
	for partition := range int32(partitionCount) {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(round)})
	}
	return produce(ctx, records)
}

// sendAndRead sends one record to each partition and has the members read and commit exactly those.
func sendAndRead(ctx context.Context, topic, round string, members ...*member) error {
	if err := send(ctx, topic, round); err != nil {
		return err
	}
	return read(ctx, round, members...)
}

func read(ctx context.Context, round string, members ...*member) error {
	seen := map[int32]int{}
	for count := 0; count < partitionCount; {
		for _, m := range members {
			records, err := m.poll(ctx)
			if err != nil {
				return fmt.Errorf("reading round %s: %w", round, err)
			}
			for _, record := range records {
				if string(record.Value) != round {
					return differ("round", round, string(record.Value))
				}
				seen[record.Partition]++
				count++
			}
		}
	}
	if len(seen) != partitionCount {
		return differ("partitions seen", partitionCount, seen)
	}
	for _, m := range members {
		if err := m.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
	}
	return nil
}

func sharesAndResumes(ctx context.Context, topic string, balancer kgo.GroupBalancer) error {
	if err := createTopic(ctx, topic, partitionCount); err != nil {
		return err
	}
	first, err := join(topic, kgo.Balancers(balancer))
	if err != nil {
		return err
	}
	defer first.Close()
	if err := waitForShares(ctx, 4, first); err != nil {
		return err
	}
	second, err := join(topic, kgo.Balancers(balancer))
	if err != nil {
		return err
	}
	defer second.Close()
	if err := waitForShares(ctx, 2, first, second); err != nil {
		return err
	}
	if err := sendAndRead(ctx, topic, "both", first, second); err != nil {
		return err
	}
	second.Close()
	if err := waitForShares(ctx, 4, first); err != nil {
		return err
	}
	if err := sendAndRead(ctx, topic, "alone", first); err != nil {
		return err
	}
	first.Close()
	return resumes(ctx, topic, balancer)
}

func resumes(ctx context.Context, topic string, balancer kgo.GroupBalancer) error {
	if err := send(ctx, topic, "later"); err != nil {
		return err
	}
	third, err := join(topic, kgo.Balancers(balancer))
	if err != nil {
		return err
	}
	defer third.Close()
	return read(ctx, "later", third)
}

func staticMemberReturns(ctx context.Context, topic string) error {
	if err := createTopic(ctx, topic, partitionCount); err != nil {
		return err
	}
	stays, err := join(topic, kgo.InstanceID("stays"))
	if err != nil {
		return err
	}
	defer stays.Close()
	goes, err := join(topic, kgo.InstanceID("goes"))
	if err != nil {
		return err
	}
	defer goes.Close()
	if err := waitForShares(ctx, 2, stays, goes); err != nil {
		return err
	}
	share := goes.share()
	_, generation := stays.GroupMetadata()
	goes.Close()
	back, err := join(topic, kgo.InstanceID("goes"))
	if err != nil {
		return err
	}
	defer back.Close()
	if err := waitForShares(ctx, 2, stays, back); err != nil {
		return err
	}
	if _, now := stays.GroupMetadata(); now != generation {
		return differ("generation", generation, now)
	}
	if fmt.Sprint(back.share()) != fmt.Sprint(share) {
		return differ("share", share, back.share())
	}
	return nil
}
