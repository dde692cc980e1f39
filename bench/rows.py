"""Everything that is measured, one row each, and the bars of each figure.

A row's id is what `make bench ROWS=...` takes, as is the name of a set: quick (the default), all (everything but
large) and large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.field import OURS, THEIRS
from bench.figures import Bar
from bench.loads import Load
from bench.loads.raw import Fetch, Latency, Produce

QUICK, MORE, LARGE = "quick", "more", "large"
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

ROWS: Sequence[Row] = (*SMALL_ROWS, *LARGE_ROWS, *LATENCY_ROWS)
SETS: Mapping[str, Sequence[str]] = {"quick": (QUICK,), "all": (QUICK, MORE), "large": (LARGE,)}


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
