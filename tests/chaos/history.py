"""The history checker: what producers were told, what consumers read, and whether both can be true.

Pure: lists in, violations out. Every value must be sent once only, so that a value names its record. What is checked:

    lost             acknowledged, and not in the log at the end
    moved            acknowledged at one offset, found at another
    offset-reused    two sends were acknowledged with one offset
    rewritten        one offset was read with two values
    withdrawn        somebody read it, and at the end it is not there
    missed           a group read from the start and went past it, and nobody of it has read it
    invented         a value that nobody sent
    refused-but-kept a send that was certainly refused is in the log
    duplicate        an idempotent producer's record is in the log twice
    order            an idempotent producer's records are in the log in another order than they were sent
    watermark-back   a high watermark was seen lower than somebody had seen it before
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

EXAMPLES_MAX = 5


class Outcome(Enum):
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    """Certainly not written: it never left the producer, or was refused for what it is."""
    UNKNOWN = "unknown"
    """No answer, or one that leaves it open: the record may be there or not."""


class Sent(NamedTuple):
    producer: str
    sequence: int
    """Counts this producer's sends to all partitions, in the order they were handed over."""
    partition: int
    value: bytes
    sent_ms: int
    outcome: Outcome
    offset: int | None = None


class Read(NamedTuple):
    consumer: str
    partition: int
    offset: int
    value: bytes


class Watermark(NamedTuple):
    """One look at a high watermark: the question left at `begun_ms`, the answer was there at `ended_ms`."""

    partition: int
    begun_ms: int
    ended_ms: int
    offset: int
    generation: int = 0
    """Of the leader that was asked. One that does not know yet that it was replaced may know less than others."""


class Violation(NamedTuple):
    kind: str
    detail: str


@dataclass(slots=True)
class History:
    sends: list[Sent] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    """By anybody, at any time, also twice."""
    is_read_by_group: bool = False
    """All reads are of one group, which began with the first record."""
    final: list[Read] = field(default_factory=list)
    """Everything that is in the log once it is calm, each offset once."""
    watermarks: list[Watermark] = field(default_factory=list)
    careless: frozenset[str] = frozenset()
    """Producers without idempotence: their retries may repeat and overtake."""


Place = tuple[int, int]


def check(history: History) -> list[Violation]:
    """Every violation, in the order of the list above."""
    sends = _by_value(history.sends)
    log = {(read.partition, read.offset): read.value for read in history.final}
    return [
        *_lost_and_moved(history.sends, log),
        *_offsets_given_twice(history.sends),
        *_rewritten(history),
        *_withdrawn(history.reads, log),
        *(_missed(history) if history.is_read_by_group else ()),
        *_invented_and_refused(history, sends),
        *_duplicates_and_order(log, sends, history.careless),
        *_watermarks_back(history.watermarks),
    ]


def counts(violations: Iterable[Violation]) -> dict[str, int]:
    return dict(Counter(violation.kind for violation in violations))


def report(violations: list[Violation]) -> str:
    """Each kind with its number and a few examples."""
    lines = []
    for kind, number in sorted(counts(violations).items()):
        lines.append(f"{kind}: {number}")
        examples = [violation.detail for violation in violations if violation.kind == kind]
        lines += [f"  {detail}" for detail in examples[:EXAMPLES_MAX]]
    return "\n".join(lines) or "no violation"


def _by_value(sends: Iterable[Sent]) -> dict[bytes, Sent]:
    found: dict[bytes, Sent] = {}
    for sent in sends:
        assert sent.value not in found, f"{sent.value!r} was sent twice: a value must name its record"
        found[sent.value] = sent
    return found


def _lost_and_moved(sends: Iterable[Sent], log: dict[Place, bytes]) -> Iterator[Violation]:
    places = {(partition, value): offset for (partition, offset), value in log.items()}
    for sent in sends:
        if sent.outcome is not Outcome.ACKNOWLEDGED:
            continue
        if (sent.partition, sent.value) not in places:
            yield Violation("lost", _named(sent))
        elif sent.offset is not None and log.get((sent.partition, sent.offset)) != sent.value:
            there = places[sent.partition, sent.value]
            yield Violation("moved", f"{_named(sent)}, found at {there}")


def _offsets_given_twice(sends: Iterable[Sent]) -> Iterator[Violation]:
    given: dict[Place, Sent] = {}
    for sent in sends:
        if sent.outcome is not Outcome.ACKNOWLEDGED or sent.offset is None:
            continue
        other = given.setdefault((sent.partition, sent.offset), sent)
        if other is not sent:
            yield Violation("offset-reused", f"{_named(other)} and {_named(sent)}")


def _rewritten(history: History) -> Iterator[Violation]:
    seen: dict[Place, Read] = {}
    for read in (*history.reads, *history.final):
        other = seen.setdefault((read.partition, read.offset), read)
        if other.value != read.value:
            yield Violation("rewritten", f"{_seen(other)}, then {_seen(read)}")


def _withdrawn(reads: Iterable[Read], log: dict[Place, bytes]) -> Iterator[Violation]:
    told: set[Place] = set()
    for read in reads:
        place = (read.partition, read.offset)
        if place not in log and place not in told:
            told.add(place)
            yield Violation("withdrawn", _seen(read))


def _missed(history: History) -> Iterator[Violation]:
    read = {(each.partition, each.offset) for each in history.reads}
    last: dict[int, int] = defaultdict(lambda: -1)
    for partition, offset in read:
        last[partition] = max(last[partition], offset)
    for each in history.final:
        if each.offset < last[each.partition] and (each.partition, each.offset) not in read:
            yield Violation("missed", _seen(each))


def _invented_and_refused(history: History, sends: dict[bytes, Sent]) -> Iterator[Violation]:
    told: set[bytes] = set()
    for read in (*history.reads, *history.final):
        sent = sends.get(read.value)
        if read.value in told or (sent is not None and sent.outcome is not Outcome.FAILED):
            continue
        told.add(read.value)
        yield Violation("invented" if sent is None else "refused-but-kept", _seen(read))


def _duplicates_and_order(
    log: dict[Place, bytes], sends: dict[bytes, Sent], careless: frozenset[str]
) -> Iterator[Violation]:
    found: set[tuple[int, bytes]] = set()
    last: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    for (partition, offset), value in sorted(log.items()):
        sent = sends.get(value)
        if sent is None or sent.producer in careless:
            continue
        if (partition, value) in found or partition != sent.partition:
            yield Violation("duplicate", f"{_named(sent)}, again at {partition}/{offset}")
            continue
        found.add((partition, value))
        before = last[partition, sent.producer]
        if sent.sequence < before:
            yield Violation("order", f"{_named(sent)} at {offset} comes after its number {before}")
        last[partition, sent.producer] = max(before, sent.sequence)


def _watermarks_back(looks: Iterable[Watermark]) -> Iterator[Violation]:
    """Only a look that began after another had ended must not see less: of two at once, either may be older."""
    by_partition: dict[int, list[Watermark]] = defaultdict(list)
    for look in looks:
        by_partition[look.partition].append(look)
    for partition, those in sorted(by_partition.items()):
        ended = sorted(those, key=lambda look: look.ended_ms)
        highest: dict[int, int] = {}  # By generation.
        next_ended = 0
        for look in sorted(those, key=lambda look: look.begun_ms):
            while next_ended < len(ended) and ended[next_ended].ended_ms < look.begun_ms:
                seen = ended[next_ended]
                highest[seen.generation] = max(highest.get(seen.generation, -1), seen.offset)
                next_ended += 1
            before = max(
                (top for generation, top in highest.items() if generation <= look.generation), default=-1
            )
            if look.offset < before:
                yield Violation(
                    "watermark-back",
                    f"partition {partition}: {look.offset} at {look.begun_ms} ms in generation {look.generation}, "
                    f"{before} before that",
                )


def _named(sent: Sent) -> str:
    offset = "" if sent.offset is None else f" at {sent.partition}/{sent.offset}"
    return f"{sent.producer} number {sent.sequence} ({sent.outcome.value}{offset}, sent at {sent.sent_ms} ms)"


def _seen(read: Read) -> str:
    return f"{read.consumer} read {read.value[:40]!r} at {read.partition}/{read.offset}"
