"""Tells what the rounds came to: a table on the terminal, results.json, a plot, and the table in docs/performance.md.

Every row is told, met or not, and one that could not be run with the reason. Ratios are ours to Kafka's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import plot
from bench.field import OURS, THEIRS
from bench.figures import FIGURES, KAFKA, LIMIT, Bar, Better, Figure, Verdict, judge
from bench.measure import Spread
from bench.rows import ROWS, Row
from bench.runner import say
from bench.state import State

BEGIN, END = "<!-- table: written by make bench -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Line:
    """One figure of one row."""

    row: Row
    name: str
    ours: Spread
    theirs: Spread | None
    bar: Bar | None
    verdict: Verdict | None

    @property
    def figure(self) -> Figure:
        return FIGURES[self.name]

    @property
    def is_shown(self) -> bool:
        """Whether the plot has room for it: what has a bar, and the first figure of every row."""
        return self.bar is not None or self.name == self.row.figures[0]

    @property
    def ratio(self) -> float | None:
        return self.ours.median / self.theirs.median if self.theirs and self.theirs.median else None


def heading(node: str, machine: str, commit: str, without_kafka: str, warning: str) -> str:
    kafka = f"Kafka is left out: {without_kafka}" if without_kafka else "next to Apache Kafka 4.3.1"
    return f"{node}, commit {commit}, {kafka}\n{machine}" + (f"\n{warning}" if warning else "")


def show_rows() -> None:
    for row in ROWS:
        say(f"{row.id:24} {row.set:6} {row.title}")


def spread_of(state: State, row_id: str, side: str, name: str) -> Spread | None:
    values = [figures[name] for figures in state.of(row_id, side) if name in figures]
    return Spread.of(values) if values else None


def lines(state: State) -> Iterator[Line]:
    for row in ROWS:
        for name in row.figures:
            ours = spread_of(state, row.id, OURS, name)
            if ours is None:
                continue
            theirs = spread_of(state, row.id, THEIRS, name)
            bar = row.bars.get(name)
            verdict = (
                judge(FIGURES[name].better, bar, ours, _other(state, bar, name, theirs)) if bar else None
            )
            yield Line(row, name, ours, theirs, bar, verdict)


def _other(state: State, bar: Bar, name: str, theirs: Spread | None) -> Spread | None:
    if bar.against == KAFKA:
        return theirs
    return None if bar.against == LIMIT else spread_of(state, bar.against, OURS, name)


# --- as text ------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits that count, and no more."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{number(spread.median)} ({number(spread.low)} to {number(spread.high)})"


def _goal(line: Line) -> str:
    if line.bar is None:
        return ""
    sign = "<=" if line.figure.better is Better.LESS else ">="
    unit = f" {line.figure.unit}" if line.bar.against == LIMIT and line.figure.unit != "x" else "x"
    other = f" of {line.bar.against}" if line.bar.against not in (KAFKA, LIMIT) else ""
    stretch = f" ({number(line.bar.stretch)}{unit})" if line.bar.stretch is not None else ""
    return f"{sign} {number(line.bar.bar)}{unit}{stretch}{other}"


def _met(line: Line) -> str:
    if line.bar is None:
        return ""
    if line.verdict is None:
        return "not measured"
    if not line.verdict.is_met:
        return "NO"
    return "yes, stretch too" if line.verdict.is_stretch_met else "yes"


def _ratio(line: Line) -> str:
    value = line.ratio
    if line.bar and line.verdict and line.bar.against not in (KAFKA, LIMIT):
        value = line.verdict.value
    return "" if value is None else f"{value:.2f}x"


HEAD = ("row", "figure", "anabranch", "Kafka", "ratio", "bar (stretch)", "met")


def cells(all_lines: Sequence[Line]) -> list[tuple[str, ...]]:
    told: list[tuple[str, ...]] = []
    for line in all_lines:
        figure = f"{line.figure.title}, {line.figure.unit}"
        told.append(
            (
                line.row.id,
                figure,
                _spread(line.ours),
                _spread(line.theirs),
                _ratio(line),
                _goal(line),
                _met(line),
            )
        )
    return told


def as_text(told: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [HEAD, *told]) for i in range(len(HEAD))]
    rows: list[str] = []
    previous = ""
    for row in [HEAD, *told]:
        first = "" if row[0] == previous else row[0]
        previous = row[0]
        padded = (text.ljust(width) for text, width in zip([first, *row[1:]], widths, strict=True))
        rows.append("  ".join(padded).rstrip())
    return "\n".join(rows)


def as_markdown(told: Sequence[Sequence[str]]) -> str:
    rows = [HEAD, tuple("---" for _ in HEAD), *told]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# --- as files -----------------------------------------------------------------------------------------------------


def as_json(state: State, all_lines: Sequence[Line], head: str, failures: Mapping[str, str]) -> str:
    rows = [
        {
            "row": line.row.id,
            "title": line.row.title,
            "figure": line.name,
            "unit": line.figure.unit,
            "better": line.figure.better.value,
            "anabranch": asdict(line.ours),
            "kafka": asdict(line.theirs) if line.theirs else None,
            "ratio": line.ratio,
            "bar": asdict(line.bar) if line.bar else None,
            "verdict": asdict(line.verdict) if line.verdict else None,
        }
        for line in all_lines
    ]
    whole = {
        "about": head.splitlines(),
        "key": dict(state.key),
        "figures": rows,
        "failures": dict(failures),
        "rounds": state.rounds,
    }
    return json.dumps(whole, indent=1) + "\n"


def put_between_marks(text: str, table: str) -> str:
    """The document with its table replaced; a document without the marks stays as it is."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        return text
    return f"{text[: begin + len(BEGIN)]}\n{table}\n{text[end:]}"


def write(
    state: State, results: Path, head: str, failures: Mapping[str, str], skipped: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Print everything and put it into files; the cells of the table."""
    all_lines = list(lines(state))
    told = cells(all_lines)
    missing = [f"{row_id} could not be run: {reason}" for row_id, reason in failures.items()]
    missing += [f"{row_id} was skipped: {reason}" for row_id, reason in skipped.items()]
    table = "\n".join([head, "", as_text(told), *missing, ""])
    say(f"\n{table}")
    results.mkdir(parents=True, exist_ok=True)
    (results / "results.json").write_text(as_json(state, all_lines, head, failures))
    (results / "table.txt").write_text(table)
    without_plot = plot.draw(all_lines, results, head)
    say(without_plot or f"Table, JSON and plot are in {results}.")
    return told


def put_into(document: Path, told: Sequence[Sequence[str]], head: str) -> None:
    """The table into a Markdown document, between its marks."""
    about = "\n".join(f"- {line}" for line in head.splitlines())
    document.write_text(put_between_marks(document.read_text(), f"\n{about}\n\n{as_markdown(told)}\n"))
