"""The history checker for branch topics: what clients on all sides were told, and whether all of it can be true.

Pure: lists in, violations out. Every value is sent once by its program, so a value names its record. Checked, once the
network is whole and calm:

    lost       acknowledged to somebody, on whichever side, and not in the topic at the end
    duplicate  an idempotent producer's record is in the topic twice for a reader that begins at its end
    order      records of one producer that were acknowledged in one branch are in another order than it sent them
    invented   a value that nobody sent
    missed     a consumer that read all the time, and never went back, has not seen what was acknowledged
    rewritten  one offset was read with two values, by anybody at any time
    backward   a consumer was given an offset below one that it had been given before
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from anabranch.modes.branch.rows import LANE_BITS
from chaos.history import Violation


class Ack(NamedTuple):
    """A record that its producer was told to be safe."""

    number: int
    partition: int
    offset: int | None
    """None or -1: its client does not know, because only a repeat of it was answered."""
    sent_ms: int
    acked_ms: int


class Seen(NamedTuple):
    partition: int
    offset: int
    value: str


@dataclass(slots=True)
class Client:
    """One program: its producer's sends `NAME-0` to `NAME-(sent - 1)`, and what its consumer read, in this order."""

    name: str
    sent: int = 0
    acks: list[Ack] = field(default_factory=list)
    reads: list[Seen] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_idempotent: bool = True

    def acked_within(self, begin_ms: int, end_ms: int) -> int:
        """Sent and acknowledged between these two moments."""
        return sum(begin_ms <= ack.sent_ms and ack.acked_ms <= end_ms for ack in self.acks)

    def longest_pause_ms(self, begin_ms: int, end_ms: int) -> int:
        """How long nothing was acknowledged to it between these two moments, of the partition that waited longest."""
        times = {ack.partition: [begin_ms, end_ms] for ack in self.acks}
        for ack in self.acks:
            if begin_ms <= ack.acked_ms <= end_ms:
                times[ack.partition].append(ack.acked_ms)
        pauses = (later - each for some in times.values() for each, later in pairwise(sorted(some)))
        return max(pauses, default=end_ms - begin_ms)


def check(clients: Iterable[Client], final: Iterable[Seen]) -> list[Violation]:
    clients, final = list(clients), list(final)
    return [
        *_lost(clients, final),
        *_duplicates_and_order(clients, final),
        *_missed(clients),
        *_rewritten([*final, *(seen for client in clients for seen in client.reads)]),
        *_backward(clients),
    ]


def value_of(client: str, number: int) -> str:
    return f"{client}-{number}"


def _lost(clients: list[Client], final: list[Seen]) -> Iterator[Violation]:
    there = {(seen.partition, seen.value) for seen in final}
    for client in clients:
        for ack in client.acks:
            if (ack.partition, value_of(client.name, ack.number)) not in there:
                yield Violation("lost", f"{value_of(client.name, ack.number)}, acknowledged at {_place(ack)}")


def _duplicates_and_order(clients: list[Client], final: list[Seen]) -> Iterator[Violation]:
    known = {client.name: client for client in clients}
    branches = {
        (client.name, ack.number): ack.offset >> LANE_BITS
        for client in clients
        for ack in client.acks
        if ack.offset is not None and ack.offset >= 0
    }
    found: dict[str, Seen] = {}
    last: dict[tuple[str, int, int], int] = defaultdict(lambda: -1)
    for seen in sorted(final):
        name, _, digits = seen.value.rpartition("-")
        client = known.get(name)
        if client is None or not digits.isdigit() or int(digits) >= client.sent:
            yield Violation("invented", f"{seen.value!r} at {_place(seen)}")
            continue
        if not client.is_idempotent:
            continue
        if seen.value in found:
            yield Violation("duplicate", f"{seen.value} at {_place(found[seen.value])} and {_place(seen)}")
            continue
        found[seen.value] = seen
        branch = branches.get((name, int(digits)))
        if branch is None:
            continue  # Nobody was told where it is.
        before = last[name, seen.partition, branch]
        if int(digits) < before:
            yield Violation("order", f"{seen.value} at {_place(seen)} comes after number {before}")
        last[name, seen.partition, branch] = max(before, int(digits))


def _missed(clients: list[Client]) -> Iterator[Violation]:
    acked = {value_of(client.name, ack.number) for client in clients for ack in client.acks}
    for client in clients:
        for value in sorted(acked - {seen.value for seen in client.reads}):
            yield Violation("missed", f"{value} was never read by {client.name}")


def _rewritten(reads: Iterable[Seen]) -> Iterator[Violation]:
    values: dict[tuple[int, int], str] = {}
    for seen in reads:
        other = values.setdefault((seen.partition, seen.offset), seen.value)
        if other != seen.value:
            yield Violation("rewritten", f"{_place(seen)} was {other!r} and is {seen.value!r}")


def _backward(clients: list[Client]) -> Iterator[Violation]:
    for client in clients:
        last: dict[int, int] = defaultdict(lambda: -1)
        for seen in client.reads:
            if seen.offset <= last[seen.partition]:
                yield Violation("backward", f"{client.name} got {_place(seen)} after {last[seen.partition]}")
            last[seen.partition] = seen.offset


def _place(where: Ack | Seen) -> str:
    return f"{where.partition}/{where.offset}"
