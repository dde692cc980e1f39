"""The table and the document it goes into."""

from pathlib import Path

import pytest
from bench.field import OURS, THEIRS
from bench.report import PARTS, Heading, as_text, cells, lines, number, put_between_marks, put_into, write
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
    begin, end = PARTS[0].begin, PARTS[0].end
    document = f"before\n{begin}\nold\n{end}\nafter\n"
    assert put_between_marks(document, "new") == f"before\n{begin}\nnew\n{end}\nafter\n"
    assert put_between_marks("no marks", "new") == "no marks"


HEADING = Heading("a node", "a machine", "a commit", "", "")


def object_rows_measured(tmp_path: Path) -> State:
    state = State(tmp_path / "rounds.json", {})
    state.add("object-brokers-1", OURS, {"mb_per_s": 5.0})
    state.add("object-brokers-3", OURS, {"mb_per_s": 15.0})
    return state


def test_a_run_of_object_rows_leaves_the_table_of_the_others(tmp_path: Path) -> None:
    others, objects, _ = PARTS
    path = tmp_path / "page.md"
    path.write_text(f"{others.begin}\nold\n{others.end}\n{objects.begin}\nempty\n{objects.end}\n")
    put_into(path, object_rows_measured(tmp_path), HEADING)
    first, second = path.read_text().split(objects.begin)
    assert first == f"{others.begin}\nold\n{others.end}\n"
    assert "| object-brokers-3 | throughput, MB/s | 15 (15 to 15) | 3.00x |" in second
    assert "Kafka" not in second


def test_a_run_of_the_others_leaves_the_object_table(tmp_path: Path) -> None:
    others, objects, _ = PARTS
    path = tmp_path / "page.md"
    path.write_text(f"{others.begin}\nold\n{others.end}\n{objects.begin}\nkept\n{objects.end}\n")
    put_into(path, measured(tmp_path), HEADING)
    first, second = path.read_text().split(objects.begin)
    assert "small-1" in first
    assert second == f"\nkept\n{objects.end}\n"


def test_a_run_of_object_rows_leaves_the_files_of_the_others(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write(object_rows_measured(tmp_path), results, HEADING, {"object-read": "no room"}, {})
    assert sorted(path.name for path in results.iterdir()) == ["object.json", "object.txt"]
    assert "object-read could not be run: no room" in (results / "object.txt").read_text()
