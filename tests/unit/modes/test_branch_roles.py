"""Who is primary of a view, what is to be done next, and when a line may take the place of another."""

from uuid import UUID

import pytest

from anabranch.modes.branch.lines import Branches, Span
from anabranch.modes.branch.roles import (
    Head,
    Rank,
    Step,
    begun,
    copies_of,
    in_order,
    is_late,
    kept_up,
    lane_of_reign,
    may_adopt,
    must_hold,
    next_step,
)
from anabranch.modes.branch.rows import (
    NO_LANE,
    NOWHERE,
    Lane,
    Source,
    Tip,
    first_offset,
    opened,
)
from anabranch.values import BrokerId, Offset

KEY = (UUID(int=1), 0)
ME, OTHER = BrokerId(1), BrokerId(2)


def at(lane: int, number: int) -> Offset:
    return Offset(first_offset(Lane(lane)) + number)


def tip(lane: int, number: int) -> Tip:
    return Tip(Lane(lane), at(lane, number))


def rank(broker: int, *, stays: bool = True, is_placed: bool = False, drawn: int = 0) -> Rank:
    return Rank(stays, is_placed, drawn, BrokerId(broker))


def head(of: Tip, reign: int = NO_LANE) -> Head:
    return Head(of, Lane(reign), of.end)


ROOT = opened(KEY, NOWHERE, Lane(0))
LEFT = opened(KEY, tip(0, 10), Lane(1))
RIGHT = opened(KEY, tip(0, 10), Lane(2))
JOINED = opened(
    KEY,
    tip(2, 5),
    Lane(1025),
    sources=(Source(Lane(1), at(1, 0), at(1, 4), at(1025, 0)),),
    inputs=(tip(1, 4), tip(2, 5)),
)
SPLIT = Branches([ROOT, LEFT, RIGHT])
HEALED = Branches([ROOT, LEFT, RIGHT, JOINED])


def test_whoever_stays_goes_before_whoever_was_chosen_and_that_before_the_hash() -> None:
    ranks = [
        rank(1, drawn=9),
        rank(2, is_placed=True),
        rank(3, stays=False, is_placed=True, drawn=99),
        rank(4, drawn=3),
    ]
    assert in_order(ranks) == [2, 1, 4, 3]


def test_copies_are_kept_by_the_primary_whoever_it_is_and_the_next_in_order() -> None:
    order = [BrokerId(each) for each in (3, 1, 2)]
    assert copies_of(order, BrokerId(1), 2) == [1, 3]
    assert copies_of(order, BrokerId(3), 5) == [3, 1, 2]


def test_a_primary_reigns_once_its_view_is_stable() -> None:
    mine = head(NOWHERE)
    assert next_step(ME, ME, mine, [], SPLIT, is_stable=False) is Step.NOTHING
    assert next_step(ME, ME, mine, [], SPLIT, is_stable=True) is Step.REIGN
    assert next_step(ME, OTHER, mine, [], SPLIT, is_stable=True) is Step.FOLLOW


@pytest.mark.parametrize(
    ("other", "step"),
    [
        (head(tip(0, 7)), Step.NOTHING),
        (head(tip(2, 5)), Step.REIGN),
        (head(tip(0, 7), reign=3), Step.REIGN),
        (head(tip(77, 0)), Step.NOTHING),  # Its rows have not come yet.
    ],
)
def test_a_reign_is_renewed_to_take_in_what_another_has(other: Head, step: Step) -> None:
    mine = head(tip(1, 4), reign=1)
    assert next_step(ME, ME, mine, [other], SPLIT, is_stable=True) is step


def test_a_line_of_which_mine_is_a_part_may_be_adopted_without_any_of_its_bytes() -> None:
    assert may_adopt(SPLIT, tip(1, 4), tip(0, 8), lambda span: span.start == span.end)


def test_a_line_that_lacks_something_of_mine_is_never_adopted() -> None:
    assert not may_adopt(SPLIT, tip(1, 4), tip(2, 5), lambda _: True)
    assert not may_adopt(HEALED, tip(1025, 4), tip(1, 5), lambda _: True)
    assert not may_adopt(HEALED, tip(1025, 3), tip(1, 4), lambda _: True)


def test_a_joined_line_is_adopted_only_with_what_was_written_again() -> None:
    wanted = must_hold(HEALED, tip(1025, 9), tip(1, 4))
    assert wanted == [
        Span(Lane(2), at(2, 0), at(2, 5)),
        Span(Lane(1025), at(1025, 0), at(1025, 4)),
    ]
    for missing in wanted:
        assert not may_adopt(HEALED, tip(1025, 9), tip(1, 4), lambda span, missing=missing: span != missing)  # type: ignore[misc]
    assert may_adopt(HEALED, tip(1025, 9), tip(1, 4), lambda span: span in wanted)


def test_the_first_lane_is_the_first_primarys_alone() -> None:
    assert lane_of_reign(5, [NO_LANE], is_first=True) == 0
    assert lane_of_reign(0, [NO_LANE], is_first=False) == 1024
    assert lane_of_reign(3, [NO_LANE], is_first=False) == 3
    assert lane_of_reign(5, [Lane(0)], is_first=True) == 5
    assert lane_of_reign(5, [Lane(2000), Lane(7)], is_first=False) == 2053


def test_a_copy_is_late_when_it_has_not_reached_a_mark_for_long() -> None:
    keeping = begun(Offset(100), now_ms=0)
    keeping = kept_up(keeping, Offset(50), Offset(200), now_ms=5)
    assert is_late(keeping, now_ms=11, lag_ms_max=10)
    keeping = kept_up(keeping, Offset(100), Offset(300), now_ms=20)
    assert keeping.equal_ms == 0
    keeping = kept_up(keeping, Offset(300), Offset(400), now_ms=25)
    assert not is_late(keeping, now_ms=30, lag_ms_max=10)
    keeping = kept_up(keeping, Offset(400), Offset(400), now_ms=40)
    assert keeping.equal_ms == 40
