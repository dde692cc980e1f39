"""Lines of branches: by seed against a world of single records, with every rule broken once, and by hand."""

from random import Random
from uuid import UUID

import pytest

from anabranch.modes.branch import lines as branch_lines
from anabranch.modes.branch.lines import (
    Branches,
    Merge,
    Moved,
    Span,
    UnknownBranchError,
    is_known,
    merge,
)
from anabranch.modes.branch.rows import (
    NOWHERE,
    BranchRow,
    Lane,
    Source,
    Tip,
    first_offset,
    opened,
    placed,
    sealed,
    started,
)
from anabranch.values import Offset
from support.lane_world import Broken, Keeper, LaneWorld

SEEDS = 150
MUTANT_SEEDS = 60
KEY = (UUID(int=1), 0)


def at(lane: int, number: int) -> Offset:
    return Offset(first_offset(Lane(lane)) + number)


def tip(lane: int, number: int) -> Tip:
    return Tip(Lane(lane), at(lane, number))


def span(lane: int, start: int, end: int) -> Span:
    return Span(Lane(lane), at(lane, start), at(lane, end))


def branch(parent: Tip, lane: int, *sources: Source, inputs: tuple[Tip, ...] = ()) -> BranchRow:
    return opened(KEY, parent, Lane(lane), sources=sources, inputs=inputs)


# --- by seed ---------------------------------------------------------------------------------------------------------


def test_every_promise_about_lines_is_kept() -> None:
    merges = kept = 0
    for seed in range(SEEDS):
        world = LaneWorld(seed)
        try:
            world.run()
        except Broken as error:
            error.add_note(f"LaneWorld({seed})")
            raise
        merges += world.merges
        kept += world.kept_total
    assert merges > SEEDS, "hardly anything was joined"
    assert 0 < kept < merges, "tails must both stay and come again"


class LoserIgnored(LaneWorld):
    def plan(self, branches: Branches, one: Tip, other: Tip) -> Merge:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(branch_lines, "is_kept", lambda won_tail, loser: True)
            return super().plan(branches, one, other)


class NothingAgain(LaneWorld):
    def plan(self, branches: Branches, one: Tip, other: Tip) -> Merge:
        return super().plan(branches, one, other)._replace(again=())


class Reversed(LaneWorld):
    def plan(self, branches: Branches, one: Tip, other: Tip) -> Merge:
        plan = super().plan(branches, one, other)
        return plan._replace(again=plan.again[::-1])


class PartlyKept(LaneWorld):
    """What of the winner's tail lies above the loser's last lane stays, and the rest comes again."""

    def plan(self, branches: Branches, one: Tip, other: Tip) -> Merge:
        plan, winner, loser = super().plan(branches, one, other), max(one, other), min(one, other)
        stays = {each.lane for each in branches.line(winner) if each.lane > loser.lane}
        again = tuple(each for each in plan.again if each.lane not in stays)
        return plan if again == plan.again else Merge(winner, again)


class AnyLineAdopted(LaneWorld):
    def may_adopt(self, branches: Branches, tip: Tip, mine: Tip) -> bool:
        return True


class LaneKept(LaneWorld):
    """Across reigns."""

    def lane_for(self, keeper: Keeper, branches: Branches, tips: list[Tip]) -> Lane:
        own = [lane for lane in branches.opened if lane % 1024 == keeper.slot]
        return max(own) if own else super().lane_for(keeper, branches, tips)


class LaneForgotten(LaneWorld):
    """Rows that nobody else has heard of do not survive a crash, and lanes are counted from them."""

    def forget(self, keeper: Keeper) -> None:
        elsewhere = {row for other in self.keepers if other is not keeper for row in other.rows}
        keeper.rows = {row: None for row in keeper.rows if row in elsewhere}
        if keeper.tip.lane not in keeper.branches.opened:
            keeper.tip = max((row_tip(row) for row in keeper.rows), default=NOWHERE)


def row_tip(row: BranchRow) -> Tip:
    return Tip(row.new, max(row.sources_end, row.new_start))


class Unchecked(LaneWorld):
    """The promises alone, without the reference of each single merge."""

    def compare(self, branches: Branches, one: Tip, other: Tip, plan: Merge) -> None:
        pass


@pytest.mark.parametrize(
    "mutant",
    [LoserIgnored, NothingAgain, Reversed, PartlyKept, AnyLineAdopted, LaneKept, LaneForgotten],
)
@pytest.mark.parametrize("is_compared", [False, True])
def test_a_broken_rule_is_noticed(mutant: type[LaneWorld], is_compared: bool) -> None:
    kind = mutant if is_compared else type(f"Unchecked{mutant.__name__}", (mutant, Unchecked), {})
    assert any(_is_broken(kind, seed) for seed in range(MUTANT_SEEDS))


def _is_broken(kind: type[LaneWorld], seed: int) -> bool:
    try:
        kind(seed).run()
    except Broken:
        return True
    return False


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_say_the_same_in_any_order_and_when_told_twice() -> None:
    rows = [
        branch(NOWHERE, 0),
        branch(tip(0, 5), 1, Source(Lane(0), at(0, 5), at(0, 7), at(1, 0)), inputs=(tip(0, 7),)),
        sealed(KEY, tip(1, 9)),
        sealed(KEY, tip(1, 8)),
        started(KEY, Lane(1), at(0, 3)),
        started(KEY, Lane(0), at(0, 2)),
        placed(KEY, tip(1, 3), 4),
        placed(KEY, tip(0, 9), 5),
    ]
    expected = Branches(rows)
    line = expected.line(tip(1, 8))
    rng = Random(1)
    for _ in range(500):
        order = rng.sample(rows, len(rows))
        found = Branches((*order, *order[:3]))
        assert found.line(tip(1, 8)) == line
        assert found.sealed == {1: at(1, 8)}
        assert found.placed_slot == 4
        assert found.removed_below(line) == {0: at(0, 3)}
        assert found.highest == 1


def test_a_line_whose_rows_have_not_come_is_unknown() -> None:
    branches = Branches([branch(tip(3, 2), 7)])
    with pytest.raises(UnknownBranchError):
        branches.line(tip(7, 1))
    with pytest.raises(UnknownBranchError):
        branches.is_behind(tip(7, 1), NOWHERE)
    assert is_known(branches, at(7, 0))
    assert not is_known(branches, at(3, 0))


# --- merges ----------------------------------------------------------------------------------------------------------


def test_the_winner_stays_when_all_of_its_tail_lies_above_the_losers_last_lane() -> None:
    branches = Branches([branch(NOWHERE, 0), branch(tip(0, 5), 1), branch(tip(0, 5), 2)])
    plan = merge(branches, tip(1, 3), tip(2, 4))
    assert plan == Merge(tip(2, 4), (span(1, 0, 3),))
    assert merge(branches, tip(2, 4), tip(1, 3)) == plan


def test_nothing_of_the_winner_stays_when_a_reader_of_the_loser_could_be_beyond_it() -> None:
    branches = Branches(
        [branch(NOWHERE, 0), branch(tip(0, 5), 1), branch(tip(0, 5), 2), branch(tip(1, 3), 3)]
    )
    plan = merge(branches, tip(3, 2), tip(2, 4))
    assert plan == Merge(tip(0, 5), (span(1, 0, 3), span(2, 0, 4), span(3, 0, 2)))


def test_a_lane_without_records_does_not_make_the_winner_come_again() -> None:
    branches = Branches(
        [branch(NOWHERE, 0), branch(tip(0, 5), 1), branch(tip(0, 5), 2), branch(tip(1, 0), 3)]
    )
    assert merge(branches, tip(3, 2), tip(2, 4)) == Merge(tip(3, 2), (span(2, 0, 4),))


def test_a_reader_who_waits_in_the_losers_empty_lane_keeps_the_winner_from_staying_below_it() -> None:
    branches = Branches(
        [branch(NOWHERE, 0), branch(tip(0, 5), 1), branch(tip(1, 0), 3), branch(tip(0, 5), 2)]
    )
    branches.add(branch(tip(2, 3), 4))
    assert merge(branches, tip(4, 1), tip(3, 0)) == Merge(tip(0, 5), (span(2, 0, 3), span(4, 0, 1)))


def test_three_lines_become_one_without_a_record_twice() -> None:
    branches = Branches(
        [branch(NOWHERE, 0), branch(tip(0, 5), 1), branch(tip(0, 5), 2), branch(tip(0, 5), 3)]
    )
    first = merge(branches, tip(2, 2), tip(3, 1))
    assert first == Merge(tip(3, 1), (span(2, 0, 2),))
    branches.add(
        branch(
            first.parent,
            5,
            Source(Lane(2), at(2, 0), at(2, 2), at(5, 0)),
            inputs=(tip(2, 2), tip(3, 1)),
        )
    )
    joined = tip(5, 4)
    assert branches.is_behind(joined, tip(2, 2))
    assert branches.is_behind(joined, tip(2, 1))
    assert not branches.is_behind(joined, tip(2, 3))
    second = merge(branches, joined, tip(1, 2))
    assert second == Merge(joined, (span(1, 0, 2),))
    late = merge(branches, joined, tip(2, 3))
    assert late == Merge(joined, (span(2, 2, 3),)), "what was taken in does not come twice"


def test_a_copy_that_lacks_some_of_what_a_merge_took_in_does_not_count_as_having_taken_it_in() -> None:
    branches = Branches([branch(NOWHERE, 1), branch(NOWHERE, 2)])
    again = Source(Lane(1), at(1, 0), at(1, 4), at(5, 0))
    branches.add(branch(tip(2, 3), 5, again, inputs=(tip(2, 3), tip(1, 4))))
    assert branches.is_behind(tip(5, 4), tip(1, 4))
    assert not branches.is_behind(tip(5, 3), tip(1, 4))
    assert branches.is_behind(tip(5, 3), tip(2, 3))
    assert merge(branches, tip(5, 3), tip(1, 4)) == Merge(tip(5, 3), (span(1, 3, 4),))


@pytest.mark.parametrize("seed", [471, 480, 821, 869, 1215])
def test_nobody_takes_over_a_line_that_has_not_all_of_its_records(seed: int) -> None:
    LaneWorld(seed).run()


def test_records_are_traced_to_where_they_were_written_first_through_several_merges() -> None:
    branches = Branches(
        [
            branch(NOWHERE, 0),
            branch(NOWHERE, 1),
            branch(tip(1, 4), 2, Source(Lane(0), at(0, 0), at(0, 3), at(2, 0))),
            branch(tip(0, 1), 3, Source(Lane(2), at(2, 1), at(2, 5), at(3, 0))),
        ]
    )
    assert branches.origins(span(3, 0, 6)) == [
        Moved(span(3, 0, 2), Lane(0), at(0, 1)),
        Moved(span(3, 2, 4), Lane(2), at(2, 3)),
        Moved(span(3, 4, 6), Lane(3), at(3, 4)),
    ]


def test_two_lines_with_nothing_in_common_go_on_from_nowhere_or_from_the_winner() -> None:
    branches = Branches([branch(NOWHERE, 1), branch(NOWHERE, 2)])
    assert merge(branches, tip(1, 2), tip(2, 2)) == Merge(tip(2, 2), (span(1, 0, 2),))
    branches.add(branch(tip(1, 2), 3))
    assert merge(branches, tip(3, 1), tip(2, 2)) == Merge(
        NOWHERE, (span(1, 0, 2), span(2, 0, 2), span(3, 0, 1))
    )


def test_what_was_removed_counts_in_every_line_that_goes_through_the_lane() -> None:
    branches = Branches([branch(NOWHERE, 0), branch(tip(0, 5), 1), branch(tip(0, 7), 2)])
    branches.add(started(KEY, Lane(2), at(2, 3)))
    assert branches.removed_below(branches.line(tip(1, 4))) == {0: at(0, 7)}
    assert branches.removed_below(branches.line(tip(2, 4))) == {0: at(0, 7), 2: at(2, 3)}


# --- histories that have grown long -----------------------------------------------------------------------------------

LONG = 300
LOOKS_PER_ROW_MAX = 20


class CountedRows(dict[Lane, BranchRow]):
    """How often somebody looked for the row of a branch."""

    looks = 0

    def get(self, lane: Lane, default: BranchRow | None = None) -> BranchRow | None:  # type: ignore[override]
        self.looks += 1
        return super().get(lane, default)


def joined_again_and_again(times: int) -> tuple[Branches, Tip, Tip]:
    """Lane 2 and what follows it takes in, each time, what lane 1 has got since."""
    branches = Branches([branch(NOWHERE, 0), branch(tip(0, 100), 1), branch(tip(0, 100), 2)])
    mine = tip(2, 10)
    for number in range(1, times + 1):
        other, lane = tip(1, 10 * number), 2 + 1024 * number
        plan = merge(branches, mine, other)
        sources, start = [], at(lane, 0)
        for each in plan.again:
            sources.append(Source(each.lane, each.start, each.end, start))
            start = sources[-1].new_end
        branches.add(branch(plan.parent, lane, *sources, inputs=(mine, other)))
        mine = Tip(Lane(lane), Offset(start + 5))
    return branches, mine, tip(1, 10 * times)


def test_what_was_joined_again_and_again_is_found_without_walking_every_line_anew() -> None:
    branches, mine, other = joined_again_and_again(LONG)
    branches.opened = counted = CountedRows(branches.opened)
    assert branches.is_behind(mine, other)
    assert not branches.is_behind(mine, Tip(other.lane, Offset(other.end + 1)))
    assert not branches.is_behind(other, mine)
    assert counted.looks < LOOKS_PER_ROW_MAX * LONG


def test_records_that_were_written_again_hundreds_of_times_are_known_by_where_they_were_first() -> None:
    again = 4 * LONG
    branches = Branches([branch(NOWHERE, 0)])
    for lane in range(1, again + 1):
        branches.add(
            branch(NOWHERE, lane, Source(Lane(lane - 1), at(lane - 1, 0), at(lane - 1, 10), at(lane, 0)))
        )
    assert branches.origins(span(again, 2, 12)) == [
        Moved(span(again, 2, 10), Lane(0), at(0, 2)),
        Moved(span(again, 10, 12), Lane(again), at(again, 10)),
    ]


def test_where_records_were_first_is_found_anew_when_a_row_comes_late() -> None:
    branches = Branches([branch(NOWHERE, 2, Source(Lane(1), at(1, 0), at(1, 9), at(2, 0)))])
    assert branches.origins(span(2, 0, 9)) == [Moved(span(2, 0, 9), Lane(1), at(1, 0))]
    branches.add(branch(NOWHERE, 1, Source(Lane(0), at(0, 5), at(0, 14), at(1, 0))))
    assert branches.origins(span(2, 0, 9)) == [Moved(span(2, 0, 9), Lane(0), at(0, 5))]


def test_what_was_removed_of_many_lanes_is_found_without_walking_every_line_anew() -> None:
    branches, last = Branches(), NOWHERE
    for lane in range(LONG):
        branches.add(branch(last, lane))
        last = tip(lane, 10)
        branches.add(started(KEY, Lane(lane), at(lane, 3)))
    branches.opened = counted = CountedRows(branches.opened)
    removed = branches.removed_below(branches.line(last))
    assert removed == {Lane(lane): at(lane, 10 if lane < LONG - 1 else 3) for lane in range(LONG)}
    assert counted.looks < LOOKS_PER_ROW_MAX * LONG


def test_what_was_removed_counts_in_whichever_order_it_was_said() -> None:
    for starts in ((0, 2), (2, 0)):
        branches = Branches(
            [branch(NOWHERE, 0), branch(tip(0, 10), 1), branch(tip(1, 10), 2), branch(tip(0, 20), 3)]
        )
        for lane in starts:
            branches.add(started(KEY, Lane(lane), at(lane, 15 if lane == 0 else 1)))
        assert branches.removed_below(branches.line(tip(3, 9))) == {Lane(0): at(0, 15)}
        assert branches.removed_below(branches.line(tip(2, 9))) == {
            Lane(0): at(0, 15),
            Lane(1): at(1, 10),
            Lane(2): at(2, 1),
        }


# --- an earlier time in branches


def test_what_was_in_branches_before_is_behind_every_line_that_began_with_it() -> None:
    earlier = [branch(NOWHERE, 0), branch(tip(0, 5), 7), branch(tip(0, 5), 9)]
    root = opened(KEY, NOWHERE, Lane(20), start=Offset(0))
    later = branch(tip(20, 3), 1044)
    for rows in ([*earlier, root, later], [later, root, *earlier]):
        branches = Branches(rows)
        assert branches.is_behind(tip(1044, 1), tip(9, 4))
        assert branches.is_behind(tip(20, 3), tip(7, 2))
        assert not branches.is_behind(tip(7, 2), tip(20, 3))
        assert not branches.is_behind(tip(7, 2), tip(9, 4)), "among themselves they are what they were"
        assert branches.has(Lane(1044))
        assert not branches.has(Lane(9))
        assert is_known(branches, at(13, 4)), "all numbers below are its own"
        assert not is_known(branches, at(21, 0))


def test_what_is_safe_of_a_line_is_never_less_than_what_all_lines_began_with() -> None:
    root = opened(KEY, NOWHERE, Lane(20), start=Offset(0))
    branches = Branches([branch(NOWHERE, 7), root, sealed(KEY, tip(20, 3)), branch(tip(20, 3), 1044)])
    for offset in (Offset(0), at(7, 2), at(20, 1)):
        assert branches.lane_at(offset) == 20
        assert branches.tip_at(offset) == tip(20, 3)
    assert branches.tip_at(at(1044, 2)) == tip(1044, 2)
    assert Branches([branch(NOWHERE, 0)]).tip_at(Offset(5)) == tip(0, 5)


def test_every_line_goes_on_behind_all_of_what_it_began_with() -> None:
    root = opened(KEY, NOWHERE, Lane(20), start=Offset(0))
    branches = Branches([branch(NOWHERE, 7), root, sealed(KEY, tip(20, 3))])
    for known in (NOWHERE, tip(7, 2), tip(20, 1), tip(20, 3)):
        assert branches.behind_first(known) == tip(20, 3)
    assert branches.behind_first(tip(1044, 1)) == tip(1044, 1)
    assert Branches([branch(NOWHERE, 0), sealed(KEY, tip(0, 3))]).behind_first(NOWHERE) == NOWHERE
