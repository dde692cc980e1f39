"""The tree of `anabranch branch show`: the drawing by itself, and the branches of a partition in it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.branch.facts import PartitionFacts, Side
from anabranch.cli.branch.graph import graph
from anabranch.cli.branch.tree import Tree, drawn
from anabranch.modes.branch.history import lane_ends, present_line
from anabranch.modes.branch.lines import Branches
from anabranch.modes.branch.rows import NOWHERE, BranchRow, Lane, Tip, opened
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


def picture(parents: dict[int, list[int]]) -> str:
    return "\n".join(f"{row.drawing} {row.node or ''}".rstrip() for row in graph(parents))


def test_a_split_and_a_heal_are_two_columns_that_part_and_meet() -> None:
    assert picture({5: [4, 3], 4: [2], 3: [2], 2: [1], 1: []}) == "* 5\n|\\\n* | 4\n| * 3\n|/\n* 2\n* 1"


def test_lines_cross_where_columns_that_are_no_neighbours_meet() -> None:
    expected = "* 9\n|\\\n* | 8\n|\\ \\\n* | | 7\n| | * 3\n| * | 2\n|_|/\n|/\n* 1"
    assert picture({9: [8, 3], 8: [7, 2], 7: [1], 3: [1], 2: [1], 1: []}) == expected


def test_what_begins_anew_does_not_look_as_if_it_went_on() -> None:
    assert picture({3: [], 2: [1], 1: []}) == "* 3\n\n* 2\n* 1"


@given(st.lists(st.sets(st.integers(0, 8), max_size=3), min_size=1, max_size=9))
def test_every_node_is_drawn_once_under_a_line_that_leads_to_it(wanted: list[set[int]]) -> None:
    count = len(wanted)
    parents = {node: sorted(each for each in wanted[node] if each < node) for node in reversed(range(count))}
    rows = list(graph(parents))
    assert [row.node for row in rows if row.node is not None] == list(parents)
    named = {each for found in parents.values() for each in found}
    for above, row in pairwise(rows):
        if row.node in named:
            place = row.drawing.index("*")
            assert set(above.drawing.ljust(place + 2)[max(0, place - 1) : place + 2]) & set("|*/\\")


def facts_of(rows: list[BranchRow], *sides: Side, held: dict[Lane, Offset] | None = None) -> PartitionFacts:
    branches = Branches(rows)
    return PartitionFacts(
        "orders", 0, branches, rows, lane_ends(branches, held or {}), {}, list(sides), {5: 2, 6: 1}, 1
    )


def joined_side(rows: list[BranchRow], end: Offset) -> Side:
    branches = Branches(rows)
    return Side(1, [1, 2], JOINED, end, present_line(branches, branches.line(Tip(JOINED, end)), end))


def lines(facts: PartitionFacts) -> list[str]:
    return [f"{row.drawing} {row.stretch.lane if row.stretch else row.note}".rstrip() for row in drawn(facts)]


def test_the_side_that_lost_lies_beside_the_line_and_is_joined_by_what_took_it_in() -> None:
    rows, end = split_and_healed(), at(JOINED, 50)
    facts = facts_of(rows, joined_side(rows, end), held={JOINED: end})
    assert lines(facts) == [
        "* 1030",
        "|\\ joins 0 and 5: 20 records written again",
        "* | 5",
        "| o 0",
        "|/",
        "* 0",
    ]


def test_a_branch_that_goes_on_from_the_middle_of_another_parts_there() -> None:
    rows, end = split_again(), at(JOINED, 50)
    facts = facts_of(rows, joined_side(rows, end), held={JOINED: end, SPLIT: at(SPLIT, 7)})
    assert lines(facts)[:4] == ["o 2053", "| * 1030", "|/", "* 1030"]
    tip = next(iter(Tree(facts).parents))
    assert (tip.lane, tip.end) == (SPLIT, at(SPLIT, 7))


def test_branches_in_which_nothing_was_written_are_left_out_unless_one_is_written_to() -> None:
    rows = [
        opened(KEY, NOWHERE, FIRST),
        opened(KEY, Tip(FIRST, Offset(9)), OTHER),
        opened(KEY, Tip(OTHER, at(OTHER)), JOINED),
    ]
    assert lines(facts_of(rows)) == ["o 0"]
    line = Branches(rows).line(Tip(FIRST, Offset(9)))
    assert lines(facts_of(rows, Side(1, [1], JOINED, at(JOINED), line))) == ["* 1030", "* 0"]


def test_what_was_removed_is_not_counted() -> None:
    from anabranch.cli.branch.tree import records_of

    rows, end = [*split_and_healed(), removed_up_to(30)], at(JOINED, 50)
    facts = facts_of(rows, joined_side(rows, end), held={JOINED: end})
    counts = {(each.lane, each.end): records_of(facts, each) for each in Tree(facts).parents}
    assert counts == {(JOINED, end): 50, (OTHER, at(OTHER, 60)): 60, (FIRST, 100): 20, (FIRST, 80): 50}
