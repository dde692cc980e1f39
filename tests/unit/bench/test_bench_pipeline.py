"""The table of the pipeline's benchmark: ratios within a round, and every bar told, met or not."""

from pathlib import Path
from typing import Any

from bench.pipeline import report

SIDES = {"connector": 6.0, "files": 2.0, "protocol": 3.0}


def measured() -> dict[str, Any]:
    """Rounds of which the second ran on a machine half as fast; it changes no ratio."""
    rounds: list[dict[str, Any]] = []
    for number, slowness in enumerate((1, 2, 1)):
        for topic in ("100b", "1kb", "nothing"):
            for load in ("aggregate", "noop"):
                for side, seconds in SIDES.items():
                    spent = seconds * slowness * (1 if load == "aggregate" else 0.5)
                    figures = {"seconds": spent, "spark_cpu_seconds": spent, "node_cpu_seconds": spent / 2}
                    rounds.append({"topic": topic, "load": load, "side": side, "round": number, **figures})
        for form, rate in (("compiled", 12e6), ("numpy", 1.1e6)):
            rounds.append(
                {"load": "decoder", "side": form, "round": number, "records_per_s": rate / slowness}
            )
        for load, side, seconds in (
            ("compaction", "spark", 5.0),
            ("compaction", "processes", 4.0),
            ("take in", "checking", 1.0),
            ("take in", "cleaning", 2.0),
        ):
            rounds.append({"load": load, "side": side, "round": number, "seconds": seconds * slowness})
    topics = [{"name": name, "records": 1_000_000, "bytes": 1} for name in ("100b", "1kb")]
    topics.append({"name": "nothing", "records": 0, "bytes": 0})
    return {"about": ["a machine"], "topics": topics, "rounds": rounds}


def line(what: str, topic: str) -> report.Line:
    (found,) = [each for each in report.lines(measured()) if (each.what, each.topic) == (what, topic)]
    return found


def test_a_ratio_is_taken_within_each_round() -> None:
    found = line("aggregate over full rows", "100 B")
    assert (found.ratio, found.bar, found.met) == (3.0, ">= 2.0x", True)
    assert found.theirs is not None
    assert (found.ours.low, found.ours.high) == (0.25, 0.5)


def test_what_misses_its_bar_is_told_as_missed() -> None:
    assert line("decoder, numpy", "100 B").met is False
    assert line("decoder, compiled", "100 B").met is True
    assert "NO" in report.as_text(["a machine"], report.lines(measured()))


def test_what_has_no_bar_has_no_verdict() -> None:
    found = line("aggregate over full rows, by the protocol alone", "1 KB")
    assert (found.ratio, found.met) == (2.0, None)


def test_what_a_query_costs_without_any_record_is_told() -> None:
    found = [each for each in report.lines(measured()) if each.what == "a query over an empty topic"]
    assert [(each.unit, each.ratio) for each in found] == [("s", 3.0), ("CPU-s", 3.0)]


def test_compaction_is_told_as_how_many_times_longer() -> None:
    found = line("compaction on Spark / in two processes", "100 B")
    assert (found.ratio, found.met) == (1.25, True)
    assert line("CPU of the node: checking an offer / cleaning", "100 B").ratio == 0.5


def test_the_table_goes_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.put_into(document, ["a machine"], report.lines(measured()))
    text = document.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "| decoder, numpy" in text
    assert "old" not in text
    document.write_text("without marks")
    report.put_into(document, ["a machine"], report.lines(measured()))
    assert document.read_text() == "without marks"
