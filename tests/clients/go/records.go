package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var timestampFirst = time.UnixMilli(1_700_000_000_123)

func recordChecks() []check {
	codecs := []struct {
		name  string
		codec kgo.CompressionCodec
	}{
		{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()}, {"snappy", kgo.SnappyCompression()},
		{"lz4", kgo.Lz4Compression()}, {"zstd", kgo.ZstdCompression()},
	}
	var checks []check
	for _, c := range codecs {
		compressed := kgo.ProducerBatchCompression(c.codec)
		checks = append(checks, check{"records_" + c.name, func(ctx context.Context, topic string) error {
			return comesBack(ctx, topic, compressed)
		}})
	}
	return append(checks,
		check{"records_without_idempotence", func(ctx context.Context, topic string) error {
			return comesBack(ctx, topic, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
		}},
		check{"idempotent_production", idempotent},
	)
}

func noise(count int) []byte {
	noise := make([]byte, count)
	rand.New(rand.NewSource(int64(count))).Read(noise)
	return noise
}

func samples(topic string) []*kgo.Record {
	headers := []kgo.RecordHeader{
		{Key: "first", Value: []byte("1")}, {Key: "nothing", Value: nil}, {Key: "", Value: []byte{}},
		{Key: "first", Value: noise(300)}, {Key: "schlüssel", Value: []byte("2")},
	}
	shapes := [][2][]byte{
		{[]byte("plain"), []byte("value")}, {nil, []byte("no key")}, {[]byte("tombstone"), nil}, {nil, nil},
		{{}, {}}, {noise(256), noise(20_000)}, {[]byte("long"), []byte(strings.Repeat("anabranch ", 2_000))},
	}
	var records []*kgo.Record
	for n, shape := range shapes {
		record := &kgo.Record{Topic: topic, Key: shape[0], Value: shape[1]}
		record.Timestamp = timestampFirst.Add(time.Duration(7*n) * time.Millisecond)
		if n%2 == 1 {
			record.Headers = headers
		}
		records = append(records, record)
	}
	return records
}

func comesBack(ctx context.Context, topic string, options ...kgo.Opt) error {
	if err := createTopic(ctx, topic, 1); err != nil {
		return err
	}
	sent := samples(topic)
	if err := produce(ctx, sent, options...); err != nil {
		return err
	}
	found, err := consume(ctx, topic, len(sent))
	if err != nil {
		return err
	}
	for n := range sent {
		if err := same(int64(n), samples(topic)[n], found[n]); err != nil {
			return err
		}
	}
	return nil
}

func produce(ctx context.Context, records []*kgo.Record, options ...kgo.Opt) error {
	producer, err := client(options...)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.ProduceSync(ctx, records...).FirstErr()
}

// consume reads partition 0 from the start, without a group; more records than asked for are an error.
func consume(ctx context.Context, topic string, count int) ([]*kgo.Record, error) {
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	consumer, err := client(kgo.ConsumePartitions(start))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var found []*kgo.Record
	for len(found) < count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		found = append(found, fetches.Records()...)
	}
	if len(found) > count {
		return nil, differ("count of records", count, len(found))
	}
	return found, nil
}

// equal tells a missing value from an empty one, which bytes.Equal does not.
func equal(one, other []byte) bool {
	return (one == nil) == (other == nil) && bytes.Equal(one, other)
}

func same(offset int64, wanted, found *kgo.Record) error {
	switch {
	case found.Offset != offset:
		return differ("offset", offset, found.Offset)
	case !found.Timestamp.Equal(wanted.Timestamp):
		return differ("timestamp", wanted.Timestamp, found.Timestamp)
	case found.Attrs.TimestampType() != 0:
		return differ("kind of timestamp", 0, found.Attrs.TimestampType())
	case !equal(wanted.Key, found.Key):
		return fmt.Errorf("key of record %d is not the one sent", offset)
	case !equal(wanted.Value, found.Value):
		return fmt.Errorf("value of record %d is not the one sent", offset)
	case len(wanted.Headers) != len(found.Headers):
		return differ("count of headers", len(wanted.Headers), len(found.Headers))
	}
	for n, header := range wanted.Headers {
		if header.Key != found.Headers[n].Key || !equal(header.Value, found.Headers[n].Value) {
			return differ("header", header, found.Headers[n])
		}
	}
	return nil
}

func idempotent(ctx context.Context, topic string) error {
	if err := createTopic(ctx, topic, 1); err != nil {
		return err
	}
	var records []*kgo.Record
	for n := range 2_000 {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(n))})
	}
	if err := produce(ctx, records, kgo.ProducerBatchMaxBytes(1024), kgo.ProducerLinger(0)); err != nil {
		return err
	}
	found, err := consume(ctx, topic, len(records))
	if err != nil {
		return err
	}
	for n, record := range found {
		if record.Offset != int64(n) || string(record.Value) != strconv.Itoa(n) || records[n].Offset != int64(n) {
			return differ("record", n, fmt.Sprintf("%s at %d, acknowledged at %d", record.Value, record.Offset, records[n].Offset))
		}
		if record.ProducerID < 0 {
			return fmt.Errorf("record %d was not written by an idempotent producer", n)
		}
	}
	return nil
}
