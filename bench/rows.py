"""Everything that is measured, one row each, and the bars of each figure.

A row's id is what `make bench ROWS=...` takes, as is the name of a set: quick (the default), all (everything but
large), object, gateway and large.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.clients.programs import Client, Java, Rdkafka
from bench.field import OURS, THEIRS
from bench.figures import LIMIT, Bar
from bench.loads import Load
from bench.loads.clients import Clients, ManyTopics
from bench.loads.cluster import Ring, Workers
from bench.loads.flush import Batched, Single
from bench.loads.gateway import KafkaSingles, SocketSubscribers, SocketWriters
from bench.loads.growth import LogGrowth
from bench.loads.life import Fixture, LoadedMemory, Restart, Start
from bench.loads.objects import FOLDER, ObjectBrokers, ObjectLatency, ObjectProduce, ObjectRead
from bench.loads.raw import Fetch, Latency, Produce

QUICK, MORE, LARGE, OBJECT, GATEWAY = "quick", "more", "large", "object", "gateway"
BOTH = (OURS, THEIRS)


@dataclass(frozen=True)
class Row:
    id: str
    title: str
    load: Load
    figures: Sequence[str]
    bars: Mapping[str, Bar] = field(default_factory=dict)
    sides: Sequence[str] = BOTH
    set: str = QUICK


SMALL = ("cpu_us_per_request", "requests_per_s", "p50_us", "p99_us")
LARGE_REQUESTS = ("mb_per_s", "cpu_s_per_gb", "cpu_us_per_request")
LATENCY = (
    "p50_us",
    "p99_us",
    "p999_us",
    "end_to_end_p50_us",
    "end_to_end_p99_us",
    "end_to_end_p999_us",
    "cpu_us_per_request",
)

SMALL_ROWS = (
    Row(
        "small-1",
        "batch of 1 x 100 B, 1 connection",
        Produce(),
        SMALL,
        {"cpu_us_per_request": Bar(0.35, 0.12)},
    ),
    Row(
        "small-10",
        "batch of 1 x 100 B, 10 connections",
        Produce(connections=10),
        SMALL,
        {"cpu_us_per_request": Bar(0.45, 0.15)},
    ),
    Row(
        "small-100",
        "batch of 1 x 100 B, 100 connections",
        Produce(connections=100),
        SMALL,
        {"cpu_us_per_request": Bar(0.7, 0.25), "requests_per_s": Bar(1.2, 3.0)},
    ),
    Row(
        "small-10-pipelined",
        "batch of 1 x 100 B, 10 connections, 5 in flight each",
        Produce(connections=10, in_flight=5),
        SMALL,
    ),
    Row(
        "small-100-pipelined",
        "batch of 1 x 100 B, 100 connections, 5 in flight each",
        Produce(connections=100, in_flight=5),
        SMALL,
    ),
)

LARGE_BARS = {"cpu_s_per_gb": Bar(0.8, 0.5), "mb_per_s": Bar(1.0)}
MIDDLE_BARS = {"mb_per_s": Bar(1.8, 3.0), "cpu_us_per_request": Bar(0.45, 0.25)}
# 16 records of 1,000 B are a batch of 16 KB, 1,000 of them one of 1 MB.
LARGE_ROWS = (
    Row(
        "16kb",
        "16 KB requests, 4 connections",
        Produce(connections=4, records=16, record_bytes=1000, requests=24_000),
        LARGE_REQUESTS,
        MIDDLE_BARS,
    ),
    Row(
        "16kb-pipelined",
        "16 KB requests, 4 connections, 5 in flight each",
        Produce(connections=4, in_flight=5, records=16, record_bytes=1000, requests=24_000),
        LARGE_REQUESTS,
    ),
    Row(
        "produce-1mb",
        "1 MB requests, 1 connection",
        Produce(records=1000, record_bytes=1000, requests=800),
        LARGE_REQUESTS,
        LARGE_BARS,
    ),
    Row("fetch-1mb", "fetch 1 MB, 1 connection", Fetch(), LARGE_REQUESTS, LARGE_BARS),
)

LATENCY_ROWS = (
    Row(
        "latency",
        "1,000 records/s of 100 B, one each",
        Latency(),
        LATENCY,
        {"end_to_end_p50_us": Bar(0.7, 0.5), "end_to_end_p99_us": Bar(1.0, 0.7)},
    ),
)

CLIENT = ("records_per_s", "consumed_per_s", "cpu_us_per_record", "consume_cpu_us_per_record")
CLIENT_BARS = {"records_per_s": Bar(1.0, 1.5), "consumed_per_s": Bar(1.0, 1.5)}


def _client_rows(id: str, name: str, client: Client, small_records: int) -> Iterator[Row]:
    """A client's rows: 100 B and 1 KB, without compression and with lz4."""
    for size, record_bytes, records in (("100b", 100, small_records), ("1kb", 1000, small_records // 5)):
        for codec in ("none", "lz4"):
            yield Row(
                f"{id}-{size}" + ("" if codec == "none" else f"-{codec}"),
                f"{name}, {record_bytes:,} B, compression {codec}",
                Clients(client, records, record_bytes, codec),
                CLIENT,
                CLIENT_BARS,
                set=QUICK if codec == "none" and size == "1kb" else MORE,
            )


CLIENT_ROWS = (
    *_client_rows("rdkafka", "librdkafka", Rdkafka(), 2_000_000),
    *_client_rows("java", "Java clients", Java(), 1_500_000),
    Row(
        "topics-50x20",
        "50 topics x 20 partitions, one librdkafka producer and one consumer together",
        ManyTopics(topics=50, partitions=20, records=500_000, record_bytes=100),
        ("records_per_s", "through_per_s", "cpu_us_per_record"),
        set=MORE,
    ),
)

OURS_ONLY = (OURS,)
LIFE_ROWS = (
    Row(
        "start",
        "start on an empty folder, then a second of rest",
        Start(),
        ("start_s", "idle_mb"),
        {"start_s": Bar(0.5, 0.25, LIMIT), "idle_mb": Bar(80, 45, LIMIT)},
    ),
    Row("memory", "memory of a new process after a mixed load", LoadedMemory(), ("loaded_mb",), set=MORE),
    Row("fixture", "the broker of the pytest plugin", Fixture(), ("ready_s",), sides=OURS_ONLY, set=MORE),
    Row(
        "restart-100mb-1",
        "restart after kill -9, 100 MB of 1 x 100 B",
        Restart(1),
        ("restart_s",),
        sides=OURS_ONLY,
        set=MORE,
    ),
    Row(
        "restart-100mb-100",
        "restart after kill -9, 100 MB of 100 x 100 B",
        Restart(100),
        ("restart_s",),
        sides=OURS_ONLY,
        set=MORE,
    ),
)

PARTITION_COUNTS = (1, 100, 1000, 5000)
PARTITION_ROWS = tuple(
    Row(
        f"partitions-{count}",
        f"batch of 1 x 100 B, 10 connections, {count:,} partition{'s in turn' if count > 1 else ''}",
        Produce(connections=10, partitions=count),
        SMALL,
        {"cpu_us_per_request": Bar(1.3, 1.1, "partitions-1")} if count == max(PARTITION_COUNTS) else {},
        set=MORE,
    )
    for count in PARTITION_COUNTS
)

ALONE_ROWS = tuple(
    Row(
        f"partitions-{count}-alone",
        f"batch of 1 x 100 B, 1 connection, {count:,} partition{'s in turn' if count > 1 else ''}",
        Produce(connections=1, partitions=count),
        SMALL,
        {"cpu_us_per_request": Bar(1.3, 1.1, "partitions-1-alone")} if count > 1 else {},
        set=MORE,
    )
    for count in (1, max(PARTITION_COUNTS))
)

FLUSH_ROWS = (
    Row(
        "always-batched",
        "flush=always: librdkafka, 1 KiB, acks=all",
        Batched(),
        ("records_per_s",),
        {"records_per_s": Bar(100_000, None, LIMIT)},
        OURS_ONLY,
    ),
    Row(
        "always-single",
        "flush=always: one record at a time, acks=all",
        Single(),
        ("times_disk", "p50_us", "p99_us", "disk_p50_us", "cpu_us_per_request"),
        {"times_disk": Bar(1.5, None, LIMIT)},
        OURS_ONLY,
    ),
)

RING_ROWS = (
    Row(
        "ring-16kb",
        "a ring of 3, acks=all, 16 KB requests, 6 connections, 5 in flight each, nobody syncs",
        Ring(),
        ("mb_per_s", "cpu_s_per_gb"),
        {"mb_per_s": Bar(1.0), "cpu_s_per_gb": Bar(0.6)},
    ),
    Row(
        "ring-16kb-always",
        "the same with flush=always, next to flush.messages=1",
        Ring(flush="always", requests=6000),
        ("mb_per_s", "cpu_s_per_gb"),
    ),
)

WORKERS = ("requests_per_s", "cpu_us_per_request", "generator_cores")
WORKERS_ROWS = (
    Row(
        "workers-1",
        "batch of 1 x 100 B, 100 connections, 8 partitions, one process",
        Workers(1),
        WORKERS,
        sides=OURS_ONLY,
    ),
    Row(
        "workers-2",
        "the same with --workers 2",
        Workers(2),
        WORKERS,
        {"requests_per_s": Bar(1.4, None, "workers-1")},
        OURS_ONLY,
    ),
)

GATEWAY_FIGURES = (
    "records_per_cpu_s",
    "records_per_s",
    "records_per_batch",
    "bytes_per_record",
    "p50_us",
    "p99_us",
)
GATEWAY_ROWS = (
    Row(
        "gateway-sockets",
        "gateway: 100 WebSocket writers of single 100 B messages, each as fast as it is acknowledged",
        SocketWriters(),
        (*GATEWAY_FIGURES, "generator_cores"),
        {"records_per_batch": Bar(20, 50, LIMIT)},
        OURS_ONLY,
        GATEWAY,
    ),
    Row(
        "gateway-kafka",
        "the same records as Kafka batches of one: 100 raw connections, acks=all",
        KafkaSingles(),
        GATEWAY_FIGURES,
        sides=OURS_ONLY,
        set=GATEWAY,
    ),
    Row(
        "gateway-subscribers",
        "gateway: 1,000 WebSocket subscribers each hear 400 records of 100 B, written in bursts of 20",
        SocketSubscribers(),
        ("records_per_cpu_s", "consumed_per_s", "generator_cores"),
        sides=OURS_ONLY,
        set=GATEWAY,
    ),
)

GROWTH = (
    "append_mb_per_s",
    "append_cpu_s_per_gb",
    "end_fetch_p50_us",
    "end_fetch_cpu_us",
    "middle_fetch_p50_us",
    "middle_fetch_cpu_us",
    "restart_s",
)
GROWTH_BARS = {
    "middle_fetch_p50_us": Bar(1.2, None, "log-1gb"),
    "middle_fetch_cpu_us": Bar(1.2, None, "log-1gb"),
    "restart_s": Bar(2.0, 1.0, LIMIT),
}
GROWTH_ROWS = tuple(
    Row(
        f"log-{size}gb",
        f"a partition of {size} GB",
        LogGrowth(size),
        GROWTH,
        GROWTH_BARS if size == 10 else {},
        set=LARGE,
    )
    for size in (1, 5, 10)
)

OBJECT_PRODUCE = (
    "mb_per_s",
    "p50_ms",
    "p99_ms",
    "cpu_s_per_gb",
    "generator_cores",
    "store_cores",
    "puts_per_gb",
    "gets_per_gb",
)
OBJECT_LATENCY = (
    "p50_ms",
    "p99_ms",
    "end_to_end_p50_ms",
    "end_to_end_p99_ms",
    "cpu_us_per_request",
    "puts_per_s",
    "gets_per_s",
)
OBJECT_BROKERS = ("mb_per_s", "p50_ms", "p99_ms", "cpu_s_per_gb", "generator_cores", "store_cores")
OBJECT_READ = (
    "puts_per_gb",
    "gets_per_gb",
    "gets_per_object",
    "mb_per_s",
    "cpu_s_per_gb",
    "generator_cores",
    "store_cores",
)
ACKNOWLEDGED = {"p99_ms": Bar(500, 250, LIMIT)}
SLOW_MS = 50
OBJECT_ROWS = (
    Row(
        "object-file",
        "mode object on a folder: 16 KB requests, 200 connections, 5 in flight each, 12 partitions",
        ObjectProduce(FOLDER),
        [name for name in OBJECT_PRODUCE if name not in ("store_cores", "puts_per_gb", "gets_per_gb")],
        ACKNOWLEDGED,
        OURS_ONLY,
        OBJECT,
    ),
    Row(
        "object-s3",
        "the same on an S3 that takes 50 ms longer for a PUT",
        ObjectProduce(SLOW_MS),
        OBJECT_PRODUCE,
        ACKNOWLEDGED,
        OURS_ONLY,
        OBJECT,
    ),
    Row(
        "object-latency-file",
        "mode object on a folder: 200 records/s of 100 B, one each",
        ObjectLatency(FOLDER),
        [name for name in OBJECT_LATENCY if name not in ("puts_per_s", "gets_per_s")],
        ACKNOWLEDGED,
        OURS_ONLY,
        OBJECT,
    ),
    Row(
        "object-latency-s3",
        "the same on an S3 that takes 50 ms longer for a PUT",
        ObjectLatency(SLOW_MS),
        OBJECT_LATENCY,
        ACKNOWLEDGED,
        OURS_ONLY,
        OBJECT,
    ),
    Row(
        "object-brokers-1",
        "one broker, one PUT of 256 KiB at a time, 50 ms each",
        ObjectBrokers(1),
        OBJECT_BROKERS,
        sides=OURS_ONLY,
        set=OBJECT,
    ),
    Row(
        "object-brokers-3",
        "the same with three brokers",
        ObjectBrokers(3),
        OBJECT_BROKERS,
        {"mb_per_s": Bar(2.5, 2.9, "object-brokers-1")},
        OURS_ONLY,
        OBJECT,
    ),
    Row(
        "object-read",
        "what one broker of three wrote, 12 partitions, read by one consumer from another broker",
        ObjectRead(),
        OBJECT_READ,
        {"gets_per_object": Bar(2.0, 1.0, LIMIT)},
        OURS_ONLY,
        OBJECT,
    ),
)

ROWS: Sequence[Row] = (
    *SMALL_ROWS,
    *LARGE_ROWS,
    *LATENCY_ROWS,
    *CLIENT_ROWS,
    *LIFE_ROWS,
    *PARTITION_ROWS,
    *ALONE_ROWS,
    *FLUSH_ROWS,
    *RING_ROWS,
    *WORKERS_ROWS,
    *OBJECT_ROWS,
    *GATEWAY_ROWS,
    *GROWTH_ROWS,
)
SETS: Mapping[str, Sequence[str]] = {
    "quick": (QUICK,),
    "all": (QUICK, MORE, OBJECT, GATEWAY),
    "object": (OBJECT,),
    "gateway": (GATEWAY,),
    "large": (LARGE,),
}


def chosen(words: Sequence[str]) -> list[Row]:
    """The rows that ids and names of sets stand for, in the order of the table; an unknown word raises KeyError."""
    by_id = {row.id: row for row in ROWS}
    ids: set[str] = set()
    for word in words:
        if word in SETS:
            ids |= {row.id for row in ROWS if row.set in SETS[word]}
        else:
            ids.add(by_id[word].id)
    return [row for row in ROWS if row.id in ids]
