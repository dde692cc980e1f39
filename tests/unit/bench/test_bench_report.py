"""The table and the document it goes into."""

from pathlib import Path

import pytest
from bench.field import OURS, THEIRS
from bench.report import BEGIN, END, as_text, cells, lines, number, put_between_marks
from bench.state import State


def measured(tmp_path: Path) -> State:
    state = State(tmp_path / "rounds.json", {})
    for ours, theirs in ((30.0, 100.0), (32.0, 90.0), (28.0, 110.0)):
        state.add("small-1", OURS, {"cpu_us_per_request": ours, "requests_per_s": 1.0})
        state.add("small-1", THEIRS, {"cpu_us_per_request": theirs, "requests_per_s": 2.0})
    return state


def test_a_line_has_medians_spread_ratio_and_verdict(tmp_path: Path) -> None:
    (first, _) = cells(list(lines(measured(tmp_path))))
    assert first == (
        "small-1",
        "CPU per request, us",
        "30 (28 to 32)",
        "100 (90 to 110)",
        "0.30x",
        "<= 0.35x (0.12x)",
        "yes",
    )


def test_a_missed_bar_is_told(tmp_path: Path) -> None:
    state = measured(tmp_path)
    state.rounds["small-1"][OURS] = [{"cpu_us_per_request": 90.0}]
    (only,) = cells(list(lines(state)))
    assert only[-1] == "NO"


def test_a_bar_without_kafka_is_not_called_met(tmp_path: Path) -> None:
    state = measured(tmp_path)
    del state.rounds["small-1"][THEIRS]
    first = cells(list(lines(state)))[0]
    assert (first[3], first[4], first[-1]) == ("", "", "not measured")


def test_a_row_is_named_once(tmp_path: Path) -> None:
    assert as_text(cells(list(lines(measured(tmp_path))))).count("small-1") == 1


@pytest.mark.parametrize(
    ("value", "text"), [(51234.4, "51,234"), (100.4, "100"), (3.456, "3.46"), (0.01234, "0.0123")]
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_only_the_table_of_the_document_is_replaced() -> None:
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert put_between_marks(document, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert put_between_marks("no marks", "new") == "no marks"
