"""Batches with known contents, and small ways to fill and read a log."""

from collections.abc import Callable
from random import Random

from anabranch.log.disk.checkpoint import RecoveryPoint
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log, Stamped
from anabranch.log.settings import LogConfig
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

FOLDER = "data/t-0"
NOW_MS = 1_700_000_000_000


def make_batch(base: int, count: int = 1, value_bytes: int = 20, timestamp: int | None = None) -> Stamped:
    """A batch whose records say their own offset, so that wrong bytes show."""
    builder = BatchBuilder(base, generation=3)
    start = NOW_MS + base if timestamp is None else timestamp
    for offset in range(base, base + count):
        value = Random(offset).randbytes(value_bytes)
        builder.add(b"%d" % offset, value, timestamp_ms=start + offset - base)
    return builder.build(), Offset(base), Offset(base + count - 1), start + count - 1


def fill(log: Log, batches: int, count: int = 1, **fields: int) -> list[bytes]:
    """Append that many batches one by one; answers their bytes."""
    written = []
    for _ in range(batches):
        batch = make_batch(log.end_offset, count, **fields)
        log.append([batch], NOW_MS)
        written.append(bytes(batch[0]))
    return written


def read_all(log: Log, start: int | None = None, bytes_max: int = 1_000_000) -> list[bytes]:
    """Every batch from `start` on, as any reader gets them: CorruptDataError at the first that is damaged."""
    offset = log.start_offset if start is None else Offset(start)
    batches: list[bytes] = []
    while True:
        found = log.slice(offset, bytes_max, log.end_offset)
        if not found.count:
            return batches
        data = found.read()
        batches += [data[begin:end] for begin, end in batch_spans(data)]
        offset = read_header(batches[-1]).next_offset


def offsets_of(batches: list[bytes]) -> list[int]:
    """Every offset the batches cover, in the order they come."""
    offsets: list[int] = []
    for batch in batches:
        header = read_header(batch)
        offsets += range(header.base_offset, header.next_offset)
    return offsets


Open = Callable[..., Log]


def open_on(files: FakeDisk | RealFiles, folder: str = FOLDER) -> Open:
    """A short way to open the one log of a test."""

    def open_log(
        *,
        clean: bool = False,
        point: RecoveryPoint | int | None = None,
        start_offset: int = 0,
        **config: int | bool,
    ) -> Log:
        recovery_point = RecoveryPoint(Offset(point)) if isinstance(point, int) else point
        return Log.open(
            files,
            folder,
            LogConfig(**config),
            clean=clean,
            recovery_point=recovery_point,
            start_offset=Offset(start_offset),
            was_in_lanes=start_offset > 0,
        )

    return open_log
