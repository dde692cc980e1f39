"""The figures a round may give, and the bars they are held against.

A bar is a ratio to Kafka's median, a ratio to our own median in another row, or a plain limit. It is met or it is
not; nothing here fails because of a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bench.measure import Spread


class Better(Enum):
    LESS = "less"
    MORE = "more"


@dataclass(frozen=True)
class Figure:
    title: str
    unit: str
    better: Better


FIGURES: Mapping[str, Figure] = {
    "cpu_us_per_request": Figure("CPU per request", "us", Better.LESS),
    "requests_per_s": Figure("requests", "/s", Better.MORE),
    "mb_per_s": Figure("throughput", "MB/s", Better.MORE),
    "cpu_s_per_gb": Figure("CPU per GB", "s", Better.LESS),
    "generator_cores": Figure("cores the load generator took", "cores", Better.LESS),
    "p50_us": Figure("answer p50", "us", Better.LESS),
    "p99_us": Figure("answer p99", "us", Better.LESS),
    "p999_us": Figure("answer p99.9", "us", Better.LESS),
    "end_to_end_p50_us": Figure("end to end p50", "us", Better.LESS),
    "end_to_end_p99_us": Figure("end to end p99", "us", Better.LESS),
    "end_to_end_p999_us": Figure("end to end p99.9", "us", Better.LESS),
    "records_per_s": Figure("records produced", "/s", Better.MORE),
    "consumed_per_s": Figure("records consumed", "/s", Better.MORE),
    "through_per_s": Figure("records from producer to consumer", "/s", Better.MORE),
    "cpu_us_per_record": Figure("broker CPU per record", "us", Better.LESS),
    "consume_cpu_us_per_record": Figure("broker CPU per record consumed", "us", Better.LESS),
    "records_per_cpu_s": Figure("records per broker CPU-second", "/s", Better.MORE),
    "records_per_batch": Figure("size of a stored batch", "records", Better.MORE),
    "bytes_per_record": Figure("stored bytes per record", "B", Better.LESS),
    "start_s": Figure("start to first acknowledged produce", "s", Better.LESS),
    "ready_s": Figure("ready", "s", Better.LESS),
    "idle_mb": Figure("resident memory, idle", "MB", Better.LESS),
    "loaded_mb": Figure("resident memory after load", "MB", Better.LESS),
    "append_mb_per_s": Figure("append", "MB/s", Better.MORE),
    "append_cpu_s_per_gb": Figure("append, CPU per GB", "s", Better.LESS),
    "end_fetch_p50_us": Figure("fetch at the end p50", "us", Better.LESS),
    "end_fetch_cpu_us": Figure("fetch at the end, CPU", "us", Better.LESS),
    "middle_fetch_p50_us": Figure("fetch in the middle p50", "us", Better.LESS),
    "middle_fetch_cpu_us": Figure("fetch in the middle, CPU", "us", Better.LESS),
    "restart_s": Figure("ready after kill -9", "s", Better.LESS),
    "disk_p50_us": Figure("the disk's own write + fdatasync p50", "us", Better.LESS),
    "p50_ms": Figure("answer p50", "ms", Better.LESS),
    "p99_ms": Figure("answer p99", "ms", Better.LESS),
    "end_to_end_p50_ms": Figure("end to end p50", "ms", Better.LESS),
    "end_to_end_p99_ms": Figure("end to end p99", "ms", Better.LESS),
    "store_cores": Figure("cores the store took", "cores", Better.LESS),
    "puts_per_s": Figure("PUTs", "/s", Better.LESS),
    "puts_per_gb": Figure("PUTs per GB written", "/GB", Better.LESS),
    "gets_per_gb": Figure("GETs per GB", "/GB", Better.LESS),
    "gets_per_object": Figure("GETs per object read by 12 partitions", "x", Better.LESS),
    "gets_per_s": Figure("GETs", "/s", Better.LESS),
    "times_disk": Figure("answer p50 against the disk's", "x", Better.LESS),
}

KAFKA = "kafka"
LIMIT = "limit"


@dataclass(frozen=True)
class Bar:
    """What a figure has to reach. `against` is KAFKA, LIMIT, or the id of another row of ours."""

    bar: float
    stretch: float | None = None
    against: str = KAFKA


@dataclass(frozen=True)
class Verdict:
    """How a figure stands: `value` is the ratio, or the figure itself when the bar is a limit."""

    value: float
    is_met: bool
    is_stretch_met: bool | None


def is_reached(value: float, goal: float, better: Better) -> bool:
    return value <= goal if better is Better.LESS else value >= goal


def judge(better: Better, bar: Bar, ours: Spread, other: Spread | None) -> Verdict | None:
    """`other` is what the bar compares with; without it there is nothing to say, unless the bar is a limit."""
    if bar.against == LIMIT:
        value = ours.median
    elif other is None or other.median == 0:
        return None
    else:
        value = ours.median / other.median
    stretch = None if bar.stretch is None else is_reached(value, bar.stretch, better)
    return Verdict(value, is_reached(value, bar.bar, better), stretch)
