"""Witness: what clients of a simulated node were promised and what they saw, to hold the node to it.

Promises, under flush=always: a record acknowledged with acks=all stays where it was said to be, whatever happens; one
acknowledged with acks=1 survives the process but not the power. What a consumer saw once is there for ever. No offset
is given twice. A producer's records stand in the order they were sent; an idempotent producer's also without a gap and
without a repeat, however often it tried. All of it per topic as it was made: a topic made again starts from nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.testing.simulation.simulator import SimulationError

Place = tuple[str, int]
"""Topic and partition."""


class Sent(NamedTuple):
    """The value of a record: who sent it, and as which of theirs."""

    producer: str
    number: int

    def encode(self) -> bytes:
        # Long enough that a few batches fill a segment and cross the sectors of the disk.
        return f"{self.producer}:{self.number}:".encode().ljust(60 + self.number % 7 * 40, b".")

    @classmethod
    def decode(cls, value: bytes) -> "Sent":
        producer, number, _ = value.decode().split(":")
        return cls(producer, int(number))


class Witness:
    def __init__(self) -> None:
        self._promised: dict[Place, dict[int, Sent]] = {}
        self._promised_until_power_loss: dict[Place, dict[int, Sent]] = {}
        self._seen: dict[Place, dict[int, Sent]] = {}

    def forget(self, topic: str) -> None:
        """The topic is deleted, or may be."""
        for table in (self._promised, self._promised_until_power_loss, self._seen):
            for place in [place for place in table if place[0] == topic]:
                del table[place]

    def counts(self) -> dict[Place, int]:
        """How many records of each partition were acknowledged with acks=all."""
        return {place: len(records) for place, records in self._promised.items()}

    def power_lost(self) -> None:
        self._promised_until_power_loss.clear()

    def acknowledged(self, place: Place, base_offset: int, sent: Sequence[Sent], acks: int) -> None:
        table = self._promised if acks == -1 else self._promised_until_power_loss
        for offset, record in enumerate(sent, base_offset):
            for known in (self._promised, self._promised_until_power_loss):
                other = known.get(place, {}).get(offset)
                if other is not None and other != record:
                    raise SimulationError(f"offset {offset} of {place} was given to {other} and to {record}")
            table.setdefault(place, {})[offset] = record

    def saw(self, place: Place, records: Sequence[tuple[int, bytes | None]]) -> None:
        """A consumer read everything it could."""
        found = {offset: Sent.decode(value or b"") for offset, value in records}
        compare(place, "was seen", self._seen.get(place, {}), found)
        compare(place, "was acknowledged with acks=all", self._promised.get(place, {}), found)
        check_order(place, found)
        self._seen[place] = found

    def saw_all(self, place: Place, records: Sequence[tuple[int, bytes | None]]) -> None:
        """The same when everything is synced, so that nothing written is hidden."""
        self.saw(place, records)
        promised = self._promised_until_power_loss.get(place, {})
        compare(place, "was acknowledged with acks=1", promised, self._seen[place])


def compare(place: Place, promise: str, expected: dict[int, Sent], found: dict[int, Sent]) -> None:
    for offset, record in expected.items():
        if found.get(offset) != record:
            raise SimulationError(
                f"{record} {promise} at offset {offset} of {place}, where there is now {found.get(offset)}"
            )


def check_order(place: Place, found: dict[int, Sent]) -> None:
    last: dict[str, int] = {}
    for offset in sorted(found):
        record = found[offset]
        before = last.get(record.producer, -1)
        is_idempotent = record.producer.startswith("idempotent")
        if record.number <= before or (is_idempotent and record.number != before + 1):
            raise SimulationError(
                f"{record} at offset {offset} of {place} follows number {before} of that producer"
            )
        last[record.producer] = record.number
    if sorted(found) != list(range(len(found))):
        raise SimulationError(f"the offsets of {place} have gaps: {sorted(found)}")
