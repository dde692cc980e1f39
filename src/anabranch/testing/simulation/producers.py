"""The producers of the random workload: a plain one that never tries again, and an idempotent one that always does.

The idempotent one behaves as Kafka's clients do: up to five batches under way; after an error or a broken link it
waits for the rest of them, then sends every batch that was not acknowledged again, in order, with the same sequences.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from anabranch.testing.in_process_client import Pending
from anabranch.testing.simulation.simulator import Producer, produced
from anabranch.testing.simulation.witness import Place, Sent, Witness
from anabranch.wire.error_codes import ErrorCode

IN_FLIGHT_MAX = 5
RECORDS_MAX = 4


class Node(Protocol):
    """Whom they produce to: a `Simulator`, or a client of several."""

    lives: int

    def note(self, line: str) -> None: ...

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes],
        acks: int = -1,
        producer: Producer | None = None,
    ) -> Pending: ...


class PlainProducer:
    acks: tuple[int, ...] = (-1, -1, 1)

    def __init__(self, name: str, place: Place, sim: Node, witness: Witness) -> None:
        self.name = name
        self.place = place
        self._sim = sim
        self._witness = witness
        self._next = 0

    def act(self, rng: Random) -> None:
        """Send one batch."""
        batch = [Sent(self.name, self._next + n) for n in range(rng.randint(1, RECORDS_MAX))]
        self._next += len(batch)
        acks = rng.choice(self.acks)
        pending = self._sim.produce(*self.place, [record.encode() for record in batch], acks)
        when_settled(pending, lambda done: self._answered(done, batch, acks))

    def _answered(self, pending: Pending, batch: list[Sent], acks: int) -> None:
        answer = produced(pending)
        self._sim.note(f"{self.name} {batch[0].number}+{len(batch)} acks={acks}: {answer}")
        if answer is not None and not answer[0]:
            self._witness.acknowledged(self.place, answer[1], batch, acks)

    def reconnect(self) -> None:
        """The node died: what was under way is not tried again."""


class IdempotentProducer:
    ahead_max = 2**31
    """Batches from the first that is not acknowledged on: who sends to several brokers in turn may not be further ahead
    than these remember, though later batches are acknowledged before."""

    def __init__(self, name: str, place: Place, sim: Node, witness: Witness, producer_id: int) -> None:
        self.name = name
        self.place = place
        self._sim = sim
        self._witness = witness
        self._producer_id = producer_id
        self._next = 0
        self._unacknowledged: list[list[Sent]] = []
        self._batches = 0
        self._ordinals: dict[int, int] = {}
        """Which batch begins with a number."""
        self._in_flight = 0
        self._must_retry = False
        self._life = sim.lives

    def act(self, rng: Random) -> None:
        """Send one more batch, or those that failed once more."""
        if self._must_retry:
            if not self._in_flight:
                under_way = self._under_way()
                self._must_retry = len(under_way) > IN_FLIGHT_MAX
                for batch in under_way[:IN_FLIGHT_MAX]:
                    self._send(batch)
        elif self._in_flight < IN_FLIGHT_MAX and self._ahead < self.ahead_max:
            self._batches += 1
            batch = [Sent(self.name, self._next + n) for n in range(rng.randint(1, RECORDS_MAX))]
            self._next += len(batch)
            self._unacknowledged.append(batch)
            self._ordinals[batch[0].number] = self._batches
            self._send(batch)

    def _under_way(self) -> list[list[Sent]]:
        """Those of which it is not known yet what became of them."""
        return list(self._unacknowledged)

    @property
    def _ahead(self) -> int:
        under_way = self._under_way()
        return self._batches + 1 - self._ordinals[under_way[0][0].number] if under_way else 0

    def _send(self, batch: list[Sent]) -> None:
        life = self._life
        self._in_flight += 1
        values = [record.encode() for record in batch]
        pending = self._sim.produce(*self.place, values, producer=(self._producer_id, 0, batch[0].number))

        def answered(done: Pending) -> None:
            if life == self._life:
                self._answered(done, batch)

        when_settled(pending, answered)

    def _answered(self, pending: Pending, batch: list[Sent]) -> None:
        self._in_flight -= 1
        answer = produced(pending)
        self._sim.note(f"{self.name} {batch[0].number}+{len(batch)}: {answer}")
        if answer is None or answer[0] not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._must_retry = True
            return
        self._unacknowledged.remove(batch)
        if not answer[0]:
            self._witness.acknowledged(self.place, answer[1], batch, -1)

    def reconnect(self) -> None:
        """The node died: everything that is not acknowledged is sent again."""
        self._life = self._sim.lives
        self._in_flight = 0
        self._must_retry = bool(self._unacknowledged)

    @property
    def is_done(self) -> bool:
        return not self._unacknowledged


def when_settled(pending: Pending, callback: Callable[[Pending], None]) -> None:
    if pending.is_settled:
        callback(pending)
    else:
        pending.on_settled = callback
