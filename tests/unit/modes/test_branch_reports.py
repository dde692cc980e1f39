"""What people are told of branches: counts over gaps, what is not joined yet, what two lines do not share."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.modes.branch.history import (
    difference,
    joins,
    lane_ends,
    open_tips,
    present_line,
    reappended,
    records_between,
)
from anabranch.modes.branch.lines import Branches, Line, Span
from anabranch.modes.branch.rows import Lane, Tip, opened
from anabranch.values import Offset
from support.branch_stories import (
    FIRST,
    JOINED,
    KEY,
    OTHER,
    SPLIT,
    at,
    removed_up_to,
    split_again,
    split_and_healed,
)

JOINED_TIP = Tip(JOINED, at(JOINED, 50))


def joined_line(branches: Branches) -> Line:
    return branches.line(JOINED_TIP)


def test_gaps_between_lanes_are_no_records() -> None:
    line = joined_line(Branches(split_and_healed()))
    assert records_between(line, 0, JOINED_TIP.end) == 80 + 60 + 50
    assert records_between(line, 79, JOINED_TIP.end) == 1 + 60 + 50
    assert records_between(line, at(OTHER, 60), JOINED_TIP.end) == 50
    assert records_between(line, JOINED_TIP.end, JOINED_TIP.end) == 0


def test_a_reader_of_the_side_that_lost_has_all_records_behind_its_own_before_it() -> None:
    """It stands at 95 of a lane that the joined line leaves at 80."""
    assert records_between(joined_line(Branches(split_and_healed())), 95, JOINED_TIP.end) == 60 + 50


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_counting_in_two_parts_is_counting_at_once(
    pairs: list[tuple[int, int]], one: int, other: int
) -> None:
    line = tuple(
        Span(Lane(place), Offset(10 * place + min(pair)), Offset(10 * place + max(pair)))
        for place, pair in enumerate(pairs)
    )
    middle, end = sorted((one, other))
    whole = records_between(line, 0, end)
    assert whole == records_between(line, 0, middle) + records_between(line, middle, end)
    assert whole == sum(offset < end for span in line for offset in range(span.start, span.end))


def test_what_was_removed_is_not_counted() -> None:
    branches = Branches([*split_and_healed(), removed_up_to(30)])
    line = present_line(branches, joined_line(branches), JOINED_TIP.end)
    assert line[0] == Span(FIRST, Offset(30), Offset(80))
    assert records_between(line, 0, JOINED_TIP.end) == 50 + 60 + 50


def test_nothing_is_open_but_the_joined_branch() -> None:
    branches = Branches(split_and_healed())
    ends = lane_ends(branches, {JOINED: JOINED_TIP.end})
    assert open_tips(branches, ends) == [JOINED_TIP]
    assert (joins(branches), reappended(branches)) == (1, 20)


def test_a_branch_that_somebody_still_writes_is_open_although_no_row_says_how_far() -> None:
    branches = Branches(split_again())
    ends = lane_ends(branches, {JOINED: JOINED_TIP.end, SPLIT: at(SPLIT, 7)})
    assert open_tips(branches, ends) == [Tip(SPLIT, at(SPLIT, 7)), JOINED_TIP]


def test_a_branch_without_more_than_the_other_has_is_not_open() -> None:
    branches = Branches(split_again())
    ends = lane_ends(branches, {SPLIT: at(SPLIT, 7)})
    assert ends[JOINED] == at(JOINED, 44)
    assert open_tips(branches, ends) == [Tip(SPLIT, at(SPLIT, 7))]


def test_a_row_whose_parent_has_not_come_yet_does_not_hide_the_others() -> None:
    stray = opened(KEY, Tip(Lane(999), at(999, 3)), Lane(9_000))
    branches = Branches([*split_and_healed(), stray])
    assert JOINED_TIP in open_tips(branches, lane_ends(branches, {JOINED: JOINED_TIP.end}))


def test_records_that_were_written_again_are_the_same_records() -> None:
    branches = Branches(split_and_healed())
    lost = branches.line(Tip(FIRST, Offset(100)))
    found = difference(branches, lost, joined_line(branches))
    assert found.only_one == ()
    assert found.only_other == (
        Span(OTHER, at(OTHER), at(OTHER, 60)),
        Span(JOINED, at(JOINED, 20), at(JOINED, 50)),
    )


def test_two_sides_differ_in_what_each_wrote_behind_the_split() -> None:
    branches = Branches(split_and_healed())
    found = difference(
        branches, branches.line(Tip(FIRST, Offset(100))), branches.line(Tip(OTHER, at(OTHER, 60)))
    )
    assert found.only_one == (Span(FIRST, Offset(80), Offset(100)),)
    assert found.only_other == (Span(OTHER, at(OTHER), at(OTHER, 60)),)
