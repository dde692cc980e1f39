"""The bytes of Kafka's RecordBatch v2: headers, records, checksums, codecs and index entries.

This room is pure. It knows buffers and numbers, and nothing of files, sockets, clocks, settings or topics;
limits, times and levels are handed in. It raises what a batch can be guilty of, from `anabranch.errors`, and
leaves the judgement to its callers. On the hot path a batch is bytes with a 61-byte header:
`batch.check_batch` and `record_check.check_records` make no object per record.
"""
