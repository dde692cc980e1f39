"""What a broker leaves for later when sides are joined."""

from types import SimpleNamespace
from typing import cast

from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.partition_role import PUT_OFF_MS, BranchSeat
from anabranch.modes.branch.roles import Head
from anabranch.modes.branch.rows import NO_LANE, Lane, Tip
from anabranch.values import Offset

TIP = Tip(Lane(3), Offset(90))
GROWN = TIP._replace(end=Offset(95))
COPY = Head(GROWN, NO_LANE, Offset(0))


def seat(sealed: dict[Lane, Offset] | None = None) -> BranchSeat:
    partition = SimpleNamespace(promise=None, branches=SimpleNamespace(sealed=sealed or {}))
    return BranchSeat(cast(BranchPartition, partition))


def test_a_lane_that_was_taken_in_and_grows_waits_while_only_copies_of_it_are_in_view() -> None:
    waiting = seat()
    waiting.took_in(TIP, 0)
    waiting.sees([COPY])
    assert waiting.is_put_off(GROWN, PUT_OFF_MS - 1)
    assert not waiting.is_put_off(GROWN, PUT_OFF_MS)


def test_it_waits_no_longer_once_whoever_writes_to_it_is_in_view() -> None:
    waiting = seat()
    waiting.took_in(TIP, 0)
    waiting.sees([COPY, COPY._replace(reign=TIP.lane)])
    assert not waiting.is_put_off(GROWN, 1)


def test_nor_once_nobody_writes_to_it_any_more() -> None:
    waiting = seat({TIP.lane: Offset(95)})
    waiting.took_in(TIP, 0)
    waiting.sees([COPY])
    assert not waiting.is_put_off(GROWN, 1)


def test_what_nobody_in_view_has_waits_whoever_is_in_view() -> None:
    waiting = seat({TIP.lane: Offset(95)})
    waiting.put_off(GROWN, 0)
    waiting.sees([COPY._replace(reign=TIP.lane)])
    assert waiting.is_put_off(GROWN, 1)
    assert not waiting.is_put_off(TIP, 1)
