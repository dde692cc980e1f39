"""Rows and heads between two brokers that poll each other: each is told once, and as it was."""

import asyncio
from uuid import UUID

import pytest

from anabranch.broker.branch.heads import Key, decode_told, encode_told
from anabranch.broker.branch.polling import BranchPolling
from anabranch.broker.peers.messages import PollBranches
from anabranch.errors import PeerProtocolError
from anabranch.modes.branch.roles import Head
from anabranch.modes.branch.rows import NO_LANE, NOWHERE, BranchRow, Lane, Tip, opened
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import BrokerId, Offset

KEY: Key = (UUID(int=1), 0)
OTHER = BrokerId(2)
ROWS = [opened(KEY, NOWHERE, Lane(lane)) for lane in range(3)]
HEAD = Head(Tip(Lane(1), Offset(5)), NO_LANE, Offset(4))


class Tube:
    """As much of a BranchTube as polling needs."""

    def __init__(self, rows: list[BranchRow] | None = None) -> None:
        self.rows = list(rows or ())

    def rows_since(self, index: int) -> list[BranchRow]:
        return self.rows[index:]

    async def add(self, rows: list[BranchRow]) -> None:
        self.rows.extend(row for row in rows if row not in self.rows)


class Side:
    """One of two brokers that poll each other."""

    def __init__(self, clock: FakeClock, rows: list[BranchRow] | None = None) -> None:
        self.tube = Tube(rows)
        self.heads: dict[Key, Head] = {}
        self.other: Side | None = None
        self.changes = 0
        self.polling = BranchPolling(
            self,  # type: ignore[arg-type]
            self.tube,  # type: ignore[arg-type]
            clock,
            1500,
            own_heads=lambda: self.heads,
            own_state=lambda: (True, False),
            changed=self._changed,
        )

    def _changed(self) -> None:
        self.changes += 1

    def is_up(self, broker: BrokerId) -> bool:
        return True

    async def ask(self, to: BrokerId, question: PollBranches, timeout_ms: int) -> object:
        assert self.other is not None
        return self.other.polling.answer(question)


async def poll(side: Side, clock: FakeClock) -> None:
    side.polling.pulse([OTHER], clock.monotonic_ms())
    for _ in range(5):
        await asyncio.sleep(0)
    side.polling.pulse([OTHER], clock.monotonic_ms())


def pair() -> tuple[FakeClock, Side, Side]:
    clock = FakeClock()
    one, two = Side(clock), Side(clock, ROWS)
    one.other, two.other = two, one
    return clock, one, two


def test_what_another_has_is_known_after_a_poll_and_told_once() -> None:
    clock, one, two = pair()
    two.heads = {KEY: HEAD}

    async def run() -> None:
        await poll(one, clock)
        assert one.tube.rows == ROWS
        assert one.polling.heads(KEY) == {OTHER: HEAD}
        assert one.polling.seen(OTHER).is_short
        changes = one.changes
        clock.advance(250)
        await poll(one, clock)
        assert one.changes == changes  # Nothing was new.
        two.tube.rows.append(opened(KEY, NOWHERE, Lane(7)))
        two.heads = {KEY: HEAD._replace(safe=Offset(5))}
        clock.advance(250)
        await poll(one, clock)
        assert one.tube.rows == two.tube.rows
        assert one.polling.heads(KEY)[OTHER].safe == 5

    asyncio.run(run())


def test_whoever_starts_anew_is_asked_for_everything_again() -> None:
    clock, one, _ = pair()

    async def run() -> None:
        await poll(one, clock)
        again = Side(clock, [*reversed(ROWS), opened(KEY, NOWHERE, Lane(9))])
        one.other = again
        clock.advance(250)
        await poll(one, clock)
        assert set(one.tube.rows) == set(again.tube.rows)

    asyncio.run(run())


def test_what_is_told_comes_back_as_it_was() -> None:
    told = decode_told(memoryview(encode_told(ROWS, {KEY: HEAD})))
    assert told.rows == ROWS
    assert told.heads == {KEY: HEAD}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"rows":[{}],"heads":[]}', b'{"rows":[],"heads":[[1,2]]}', b"[" * 100_000],
)
def test_what_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_told(data)
