"""`python -m bench.decoder`: records per CPU-second from record batches to Arrow columns and back, in both forms.

The log is one partition's: batches of 16 KB (as Java's producer makes them) of records with a key of 10 bytes, the
rest value; all of it is summed, unpacked, checked, and made into all columns. What counts is the CPU time of this
process, the kernel's part included; a figure is the median of the rounds, whose spread stands beside it. The forms
take turns.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from anabranch.record.backend import COMPILED
from anabranch.record.batch import stamp
from anabranch.record.builder import BatchBuilder
from anabranch.record.columns import columns as module
from anabranch.record.compression import Codec
from anabranch.values import Generation, Offset

KEY_BYTES = 10
WORDS = [b"orders", b"paid", b"shipped", b"returned", b"Zurich", b"Basel", b"Lugano", b"2026-11-15T10:00:00"]
FORMS = {"compiled": True, "numpy": False}


def one_batch(record_bytes: int, batch_bytes: int, codec: int, headers: int) -> tuple[bytearray, int]:
    """A batch of values that repeat themselves about as much as text does, and its number of records."""
    builder = BatchBuilder(0, codec)
    number = 0
    while builder.size_bytes < batch_bytes:
        words = b" ".join(WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(record_bytes))
        value = (b"%d " % (number * 7919) + words)[: record_bytes - KEY_BYTES]
        pairs = [(f"trace-{place}", b"%08d" % number) for place in range(headers)]
        builder.add(b"%010d" % number, value, pairs, timestamp_ms=1_700_000_000_000 + number)
        number += 1
    return builder.build(), number


def log_of(options: argparse.Namespace, record_bytes: int, codec: int) -> tuple[bytes, int]:
    batch, count = one_batch(record_bytes, options.batch_bytes, codec, options.headers)
    raw_bytes = count * record_bytes
    log, offset = bytearray(), 0
    for _ in range(max(1, options.megabytes * 2**20 // raw_bytes)):
        stamp(batch, 0, Offset(offset), Generation(0))
        log += batch
        offset += count
    return bytes(log), offset


def cpu_seconds_of(work: Callable[[], int], expected: int) -> float:
    started = time.process_time()
    count = work()
    spent = time.process_time() - started
    if count != expected:
        raise RuntimeError(f"{count} records instead of {expected}")
    return spent


def decoded(compiled: bool, log: bytes, fields: Sequence[str], verify: bool) -> int:
    with patch.object(module, "COMPILED", compiled):
        found = module.columns(log, fields=fields, verify=verify)
    return sum(batch.num_rows for batch in found)


def encoded(compiled: bool, tables: list[pa.RecordBatch], codec: int) -> int:
    with patch.object(module, "COMPILED", compiled):
        for table in tables:
            for _ in module.batches(table, codec=codec):
                pass
    return sum(table.num_rows for table in tables)


def told(name: str, form: str, count: int, spent: list[float]) -> None:
    rates = sorted(count / seconds / 1e6 for seconds in spent)
    sys.stdout.write(
        f"{name:<28} {form:<9} {statistics.median(rates):8.2f} M/s   ({rates[0]:.2f} to {rates[-1]:.2f})\n"
    )
    sys.stdout.flush()


def measure(options: argparse.Namespace, record_bytes: int, codec: Codec) -> None:
    log, count = log_of(options, record_bytes, codec)
    spent: dict[Any, list[float]] = {}
    for _ in range(options.rounds):
        for form in options.forms:
            work = lambda form=form: decoded(FORMS[form], log, options.fields, not options.unverified)  # noqa: E731
            spent.setdefault(form, []).append(cpu_seconds_of(work, count))
    for form in options.forms:
        told(f"to columns {record_bytes:>5} B {codec.name.lower():<6}", form, count, spent[form])
    if options.back:
        measure_back(options, record_bytes, codec, log)


def measure_back(options: argparse.Namespace, record_bytes: int, codec: Codec, log: bytes) -> None:
    tables = list(module.columns(log))[:2]  # The fallback builds record by record: enough is enough.
    count = sum(table.num_rows for table in tables)
    for form in options.forms:
        work = lambda form=form: encoded(FORMS[form], tables, codec)  # noqa: E731
        spent = [cpu_seconds_of(work, count) for _ in range(options.rounds)]
        told(f"to batches {record_bytes:>5} B {codec.name.lower():<6}", form, count, spent)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.decoder", description=__doc__)
    parser.add_argument("--sizes", default="100,1000", help="bytes of key and value together")
    parser.add_argument("--codecs", default="none,lz4,zstd")
    parser.add_argument("--forms", default="compiled,numpy" if COMPILED else "numpy")
    parser.add_argument("--fields", default=",".join(module.FIELDS))
    parser.add_argument("--headers", type=int, default=0, help="of each record")
    parser.add_argument("--batch-bytes", type=int, default=2**14)
    parser.add_argument("--megabytes", type=int, default=64, help="of keys and values in the log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unverified", action="store_true", help="leave the checksums out")
    parser.add_argument("--back", action="store_true", help="measure the way back too")
    options = parser.parse_args(words)
    options.forms, options.fields = options.forms.split(","), options.fields.split(",")
    return options


def main(words: Sequence[str]) -> None:
    options = parse(words)
    for record_bytes in map(int, options.sizes.split(",")):
        for name in options.codecs.split(","):
            measure(options, record_bytes, Codec[name.upper()])


if __name__ == "__main__":
    main(sys.argv[1:])
