"""How figures are held against their bars."""

import pytest
from bench.figures import FIGURES, LIMIT, Bar, Better, judge
from bench.measure import Spread
from bench.plot import advantage
from bench.rows import ROWS, chosen


def spread(median: float) -> Spread:
    return Spread(median, median, median, 5)


def test_spread_is_the_median_with_the_extremes() -> None:
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 100.0]) == Spread(3.0, 1.0, 100.0, 5)


def test_less_is_judged_by_the_ratio_to_the_other_side() -> None:
    verdict = judge(Better.LESS, Bar(0.35, 0.12), spread(30.0), spread(100.0))
    assert verdict is not None
    assert verdict.value == pytest.approx(0.3)
    assert (verdict.is_met, verdict.is_stretch_met) == (True, False)


def test_more_misses_its_bar_when_it_is_smaller() -> None:
    verdict = judge(Better.MORE, Bar(1.2, 3.0), spread(110.0), spread(100.0))
    assert verdict is not None
    assert (verdict.is_met, verdict.is_stretch_met) == (False, False)


def test_a_limit_needs_no_other_side() -> None:
    verdict = judge(Better.LESS, Bar(0.5, None, LIMIT), spread(0.6), None)
    assert verdict is not None
    assert (verdict.value, verdict.is_met, verdict.is_stretch_met) == (0.6, False, None)


def test_without_the_other_side_nothing_is_claimed() -> None:
    assert judge(Better.LESS, Bar(0.35), spread(30.0), None) is None


def test_half_the_cost_and_twice_the_speed_are_the_same_advantage() -> None:
    assert advantage(Better.LESS, 50.0, 100.0) == advantage(Better.MORE, 200.0, 100.0) == 2.0


def test_every_row_has_an_id_of_its_own_and_known_figures() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert set(row.figures) <= set(FIGURES), row.id
        assert set(row.bars) <= set(row.figures), row.id


def test_every_bar_is_against_something_that_is_measured() -> None:
    ids = {row.id for row in ROWS}
    for row in ROWS:
        for bar in row.bars.values():
            assert bar.against in {"kafka", "limit", *ids}, row.id


def test_chosen_rows_keep_the_order_of_the_table() -> None:
    assert [row.id for row in chosen(["fetch-1mb", "small-1"])] == ["small-1", "fetch-1mb"]


def test_the_large_rows_run_only_when_they_are_asked_for() -> None:
    assert {row.id for row in chosen(["all"])}.isdisjoint(row.id for row in chosen(["large"]))


def test_an_unknown_row_is_refused() -> None:
    with pytest.raises(KeyError):
        chosen(["smal-1"])
