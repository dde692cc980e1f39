"""Tells what the rounds came to: a table on the terminal, results.json, a plot, and the table in docs/performance.md.

Every row is told, met or not, and one that could not be run with the reason. Ratios are ours to Kafka's. Rows in mode
object and of the gateway, which Kafka has no part in, have files and tables of their own: measuring some of them leaves
the others as they are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import plot
from bench.field import OURS, THEIRS
from bench.figures import FIGURES, KAFKA, LIMIT, Bar, Better, Figure, Verdict, judge
from bench.measure import Spread
from bench.rows import GATEWAY, OBJECT, ROWS, Row
from bench.runner import say
from bench.state import State


@dataclass(frozen=True)
class Part:
    """Rows that are told together: in which files, and between which marks of the document."""

    json: str
    text: str
    begin: str
    end: str
    set: str | None = None
    """The rows of this set; None: those that no other part has."""

    @property
    def has_kafka(self) -> bool:
        return self.set is None

    def has(self, row: Row) -> bool:
        return row.set == self.set if self.set is not None else row.set not in (OBJECT, GATEWAY)


PARTS = (
    Part(
        "results.json",
        "table.txt",
        "<!-- table: written by make bench -->",
        "<!-- end of the table -->",
    ),
    Part(
        "object.json",
        "object.txt",
        "<!-- table: written by make bench ROWS=object -->",
        "<!-- end of the object table -->",
        OBJECT,
    ),
    Part(
        "gateway.json",
        "gateway.txt",
        "<!-- table: written by make bench ROWS=gateway -->",
        "<!-- end of the gateway table -->",
        GATEWAY,
    ),
)


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


@dataclass(frozen=True)
class Heading:
    """What was measured, and where."""

    node: str
    machine: str
    commit: str
    without_kafka: str
    warning: str

    def text(self, *, has_kafka: bool = True) -> str:
        kafka = (
            f"Kafka is left out: {self.without_kafka}" if self.without_kafka else "next to Apache Kafka 4.3.1"
        )
        first = f"{self.node}, commit {self.commit}" + (f", {kafka}" if has_kafka else "")
        return "\n".join([first, self.machine, *([self.warning] if self.warning else [])])


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


def table_of(told: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """With its head, and without columns in which nothing stands."""
    kept = [i for i in range(len(HEAD)) if not told or any(row[i] for row in told)]
    return [[row[i] for i in kept] for row in [HEAD, *told]]


def as_text(told: Sequence[Sequence[str]]) -> str:
    table = table_of(told)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows: list[str] = []
    previous = ""
    for row in table:
        first = "" if row[0] == previous else row[0]
        previous = row[0]
        padded = (text.ljust(width) for text, width in zip([first, *row[1:]], widths, strict=True))
        rows.append("  ".join(padded).rstrip())
    return "\n".join(rows)


def as_markdown(told: Sequence[Sequence[str]]) -> str:
    head, *rows = table_of(told)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


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
        "rounds": {line.row.id: state.rounds[line.row.id] for line in all_lines},
    }
    return json.dumps(whole, indent=1) + "\n"


def put_between_marks(text: str, table: str, part: Part = PARTS[0]) -> str:
    """The document with one of its tables replaced; a document without the marks stays as it is."""
    begin, end = text.find(part.begin), text.find(part.end)
    if begin < 0 or end < begin:
        return text
    return f"{text[: begin + len(part.begin)]}\n{table}\n{text[end:]}"


def write(
    state: State,
    results: Path,
    heading: Heading,
    failures: Mapping[str, str],
    skipped: Mapping[str, str],
) -> None:
    """Print everything and put it into files, part by part."""
    results.mkdir(parents=True, exist_ok=True)
    every, rows = list(lines(state)), {row.id: row for row in ROWS}
    for part in PARTS:
        some = [line for line in every if part.has(line.row)]
        failed, missed = (
            {row_id: reason for row_id, reason in reasons.items() if part.has(rows[row_id])}
            for reasons in (failures, skipped)
        )
        if some or failed or missed:
            _write_part(part, state, results, heading.text(has_kafka=part.has_kafka), some, failed, missed)


def _write_part(
    part: Part,
    state: State,
    results: Path,
    head: str,
    some: Sequence[Line],
    failures: Mapping[str, str],
    skipped: Mapping[str, str],
) -> None:
    missing = [f"{row_id} could not be run: {reason}" for row_id, reason in failures.items()]
    missing += [f"{row_id} was skipped: {reason}" for row_id, reason in skipped.items()]
    table = "\n".join([head, "", as_text(cells(some)), *missing, ""])
    say(f"\n{table}")
    (results / part.json).write_text(as_json(state, some, head, failures))
    (results / part.text).write_text(table)
    if part.has_kafka:
        without_plot = plot.draw(some, results, head)
        say(without_plot or f"Table, JSON and plot are in {results}.")
    else:
        say(f"Table and JSON are in {results}.")


def put_into(document: Path, state: State, heading: Heading) -> None:
    """The tables of what was measured into a Markdown document, between their marks."""
    text = document.read_text()
    every = list(lines(state))
    for part in PARTS:
        some = [line for line in every if part.has(line.row)]
        if some:
            head = heading.text(has_kafka=part.has_kafka)
            about = "\n".join(f"- {line}" for line in head.splitlines())
            text = put_between_marks(text, f"\n{about}\n\n{as_markdown(cells(some))}\n", part)
    document.write_text(text)
