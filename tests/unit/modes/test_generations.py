"""Tables of generations: where records of a leadership end, and up to where two logs are equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.modes.generations import NO_GENERATION, Generations, Row


def table(*rows: tuple[int, int]) -> Generations:
    return Generations([Row(*row) for row in rows])


def test_a_table_without_rows_knows_no_generation() -> None:
    assert table().last == NO_GENERATION
    assert table().end_of(3, 10) == (NO_GENERATION, -1)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [(0, (-1, -1)), (1, (1, 5)), (2, (1, 5)), (3, (3, 5)), (4, (4, 12)), (9, (4, 12))],
)
def test_a_generation_ends_where_the_next_begins(asked: int, answered: tuple[int, int]) -> None:
    """Of one that is not known, the greatest before it answers; generation 3 was opened and wrote nothing."""
    assert table((1, 0), (3, 5), (4, 5)).end_of(asked, 12) == answered


def test_a_record_knows_its_generation() -> None:
    known = table((1, 2), (3, 5), (4, 5))
    assert [known.at(offset) for offset in (1, 2, 4, 5, 99)] == [-1, 1, 1, 4, 4]


def test_what_began_behind_a_cut_is_gone_and_what_began_right_there_stays() -> None:
    assert table((1, 0), (2, 5), (3, 6)).cut(5) == table((1, 0), (2, 5))


def test_a_leadership_begins_where_its_row_says() -> None:
    known = table((1, 0), (3, 5), (4, 5), (6, 9))
    assert [offset for offset in range(12) if known.has_row_at(offset)] == [0, 5, 9]


def test_generations_only_grow() -> None:
    with pytest.raises(AssertionError):
        table((2, 0)).entered(2, 4)


def test_a_follower_that_missed_a_generation_is_equal_up_to_where_it_stopped() -> None:
    follower, leader = table((1, 0)), table((1, 0), (2, 9))
    assert follower.common_end(7, leader, 20) == 7


def test_what_an_old_leader_wrote_alone_is_beyond_the_common_end() -> None:
    old, new = table((1, 0)), table((1, 0), (2, 9))
    assert old.common_end(12, new, 20) == 9


def test_two_leaderships_that_began_at_the_same_offset_share_only_what_lies_before() -> None:
    one, other = table((1, 0), (3, 5)), table((1, 0), (4, 5))
    assert one.common_end(8, other, 8) == 5


def test_logs_that_share_no_generation_share_nothing() -> None:
    assert table((1, 0)).common_end(5, table((2, 0)), 5) == 0


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Two logs as lists of (generation, number): a shared beginning, then each its own, as two replicas can have."""
    generation, common = 1, []
    for _ in range(draw(st.integers(0, 3))):
        common += [(generation, number) for number in range(draw(st.integers(1, 4)))]
        generation += 1
    one = common + [(generation, -1 - number) for number in range(draw(st.integers(0, 3)))]
    other = common + [(generation + 1, -9 - number) for number in range(draw(st.integers(0, 3)))]
    return one[: draw(st.integers(0, len(one)))], other


def table_of(log: list[tuple[int, int]]) -> Generations:
    found = Generations()
    for offset, (generation, _) in enumerate(log):
        if generation > found.last:
            found = found.entered(generation, offset)
    return found


@given(logs=histories())
def test_logs_are_equal_up_to_the_common_end_and_no_further(
    logs: tuple[list[tuple[int, int]], list[tuple[int, int]]],
) -> None:
    one, other = logs
    end = table_of(one).common_end(len(one), table_of(other), len(other))
    assert one[:end] == other[:end]
    assert one[end : end + 1] != other[end : end + 1] or not one[end:] or not other[end:]
