package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func adminChecks() []check {
	with := func(run func(context.Context, *kadm.Client, string) error) func(context.Context, string) error {
		return func(ctx context.Context, topic string) error {
			adm, err := admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			return run(ctx, adm, topic)
		}
	}
	return []check{
		{"admin_topics", with(topics)}, {"admin_configs", with(configs)}, {"admin_offsets", with(offsets)},
		{"admin_groups", with(groups)}, {"admin_cluster", with(cluster)},
	}
}

func topics(ctx context.Context, adm *kadm.Client, topic string) error {
	if _, err := adm.ValidateCreateTopics(ctx, 3, 1, nil, topic); err != nil {
		return err
	}
	if listed, err := adm.ListTopics(ctx); err != nil || listed.Has(topic) {
		return differ("topics after validation", "without "+topic, fmt.Sprint(listed.Names(), err))
	}
	if _, err := adm.CreateTopic(ctx, 3, 1, nil, topic); err != nil {
		return err
	}
	if _, err := adm.CreateTopic(ctx, 3, 1, nil, topic); !errors.Is(err, kerr.TopicAlreadyExists) {
		return differ("second creation", kerr.TopicAlreadyExists, err)
	}
	if _, err := adm.CreatePartitions(ctx, 2, topic); err != nil {
		return err
	}
	if err := hasPartitions(ctx, adm, topic, 5); err != nil {
		return err
	}
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	for ctx.Err() == nil {
		listed, err := adm.ListTopics(ctx)
		if err != nil {
			return err
		}
		if !listed.Has(topic) {
			return nil
		}
	}
	return ctx.Err()
}

func hasPartitions(ctx context.Context, adm *kadm.Client, topic string, count int) error {
	for ctx.Err() == nil {
		listed, err := adm.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		if len(listed[topic].Partitions) == count {
			return nil
		}
	}
	return fmt.Errorf("waiting for %d partitions: %w", count, ctx.Err())
}

func configs(ctx context.Context, adm *kadm.Client, topic string) error {
	if err := createTopic(ctx, topic, 1); err != nil {
		return err
	}
	day := "86400000"
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &day}}
	altered, err := adm.AlterTopicConfigs(ctx, change, topic)
	if err != nil {
		return err
	}
	if altered[0].Err != nil {
		return altered[0].Err
	}
	for found := ""; found != day; {
		described, err := adm.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		for _, config := range described[0].Configs {
			if config.Key == "retention.ms" {
				found = config.MaybeValue()
			}
		}
	}
	wrong := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "no.such.config", Value: &day}}
	altered, err = adm.AlterTopicConfigs(ctx, wrong, topic)
	if err != nil {
		return err
	}
	if !errors.Is(altered[0].Err, kerr.InvalidConfig) || !strings.Contains(altered[0].ErrMessage, "no.such.config") {
		return differ("refusal", kerr.InvalidConfig, fmt.Sprint(altered[0].Err, altered[0].ErrMessage))
	}
	return nil
}

func offsets(ctx context.Context, adm *kadm.Client, topic string) error {
	if err := comesBack(ctx, topic); err != nil { // seven records, 7 ms apart
		return err
	}
	var wanted, deleteBelow kadm.Offsets = kadm.Offsets{}, kadm.Offsets{}
	deleteBelow.Add(kadm.Offset{Topic: topic, Partition: 0, At: 2})
	deleted, err := adm.DeleteRecords(ctx, deleteBelow)
	if err != nil {
		return err
	}
	if answer := deleted[topic][0]; answer.Err != nil || answer.LowWatermark != 2 {
		return differ("low watermark", 2, fmt.Sprint(answer.LowWatermark, answer.Err))
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	times, err := adm.ListOffsetsAfterMilli(ctx, timestampFirst.UnixMilli()+22, topic)
	if err != nil {
		return err
	}
	found := [3]int64{starts[topic][0].Offset, times[topic][0].Offset, ends[topic][0].Offset}
	if found != [3]int64{2, 4, 7} {
		return differ("start, after 22 ms, end", [3]int64{2, 4, 7}, found)
	}
	wanted.Add(kadm.Offset{Topic: topic, Partition: 0, At: 5, LeaderEpoch: -1, Metadata: "note"})
	if _, err := adm.CommitOffsets(ctx, topic, wanted); err != nil {
		return err
	}
	committed, err := adm.FetchOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if offset, _ := committed.Lookup(topic, 0); offset.At != 5 || offset.Metadata != "note" {
		return differ("committed", wanted, offset)
	}
	return nil
}

func groups(ctx context.Context, adm *kadm.Client, topic string) error {
	if err := createTopic(ctx, topic, partitionCount); err != nil {
		return err
	}
	m, err := join(topic)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := waitForShares(ctx, 4, m); err != nil {
		return err
	}
	if err := sendAndRead(ctx, topic, "g", m); err != nil {
		return err
	}
	described, err := adm.DescribeGroups(ctx, topic)
	if err != nil {
		return err
	}
	if group := described[topic]; group.State != "Stable" || len(group.Members) != 1 {
		return differ("group", "Stable with one member", fmt.Sprint(group.State, len(group.Members), group.Err))
	}
	lags, err := adm.Lag(ctx, topic)
	if err != nil {
		return err
	}
	if lag := lags[topic].Lag.Total(); lag != 0 {
		return differ("lag", 0, lag)
	}
	m.Close()
	if _, err := adm.DeleteGroup(ctx, topic); err != nil {
		return err
	}
	listed, err := adm.ListGroups(ctx)
	if err != nil {
		return err
	}
	if _, there := listed[topic]; there {
		return errors.New("the deleted group is still listed")
	}
	return nil
}

func cluster(ctx context.Context, adm *kadm.Client, topic string) error {
	metadata, err := adm.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	if metadata.Cluster == "" || len(metadata.Brokers) == 0 || metadata.Controller < 0 {
		return differ("cluster", "an id, brokers and a controller", metadata)
	}
	if err := createTopic(ctx, topic, 1); err != nil {
		return err
	}
	record := &kgo.Record{Topic: topic, Value: noise(1000)}
	if err := produce(ctx, []*kgo.Record{record}, kgo.ProducerBatchCompression(kgo.NoCompression())); err != nil {
		return err
	}
	folders, err := adm.DescribeAllLogDirs(ctx, kadm.TopicsSet{topic: {0: {}}})
	if err != nil {
		return err
	}
	var size int64
	folders.Each(func(folder kadm.DescribedLogDir) { size += folder.Size() })
	if size < 1000 {
		return differ("size of the partition's log", "over 1000", size)
	}
	return nil
}
