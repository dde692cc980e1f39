"""What the rounds came to: a table as text and as Markdown, each row with its bar, met or not.

A ratio is the median over the rounds of theirs to ours within the same round: what slows down the machine for a while
then slows down both.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Spread

BEGIN, END = "<!-- table: written by make bench-pipeline -->", "<!-- end of the pipeline's table -->"
HEAD = ("what", "topic", "ours", "theirs", "ratio", "bar", "met")
TITLES = {"100b": "100 B", "1kb": "1 KB"}
READ_BARS = {
    ("aggregate", "100b"): 2.0,
    ("aggregate", "1kb"): 1.3,
    ("noop", "100b"): 1.5,
    ("noop", "1kb"): 1.5,
}
LOADS = {"aggregate": "aggregate over full rows", "noop": "full rows to the noop sink"}
WAYS = {"files": "", "protocol": ", by the protocol alone"}
DECODER_BARS = {"compiled": 10e6, "numpy": 1.2e6}
COMPACTION_BAR = 1.3

Round = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    what: str
    topic: str
    ours: Spread
    theirs: Spread | None
    ratio: float | None
    """How many times better ours is; for the last rows, how many times longer."""
    unit: str
    bar: str = ""
    met: bool | None = None


def lines(whole: Mapping[str, Any]) -> list[Line]:
    rounds: Sequence[Round] = whole["rounds"]
    records = {topic["name"]: topic["records"] for topic in whole["topics"] if topic["records"]}
    told = [*_reads(rounds, records), *_cpu(rounds, records), *_nothing(rounds)]
    return [*told, *_node_cpu(rounds, records), *_decoder(rounds), *_compaction(rounds)]


def _values(rounds: Sequence[Round], figure: str, **which: str) -> list[float]:
    fitting = [each for each in rounds if all(each.get(name) == value for name, value in which.items())]
    return [float(each[figure]) for each in sorted(fitting, key=lambda each: each["round"])]


def _paired(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(theirs, ours, strict=True))


def _reads(rounds: Sequence[Round], records: Mapping[str, int]) -> Iterator[Line]:
    for load, title in LOADS.items():
        for topic, count in records.items():
            theirs = _values(rounds, "seconds", load=load, topic=topic, side="connector")
            for side, way in WAYS.items():
                ours = _values(rounds, "seconds", load=load, topic=topic, side=side)
                ratio = _paired(theirs, ours)
                bar = READ_BARS[load, topic] if side == "files" else None
                yield Line(
                    f"{title}{way}",
                    TITLES[topic],
                    _rates(ours, count),
                    _rates(theirs, count),
                    ratio,
                    "M records/s",
                    f">= {bar}x" if bar else "",
                    ratio >= bar if bar else None,
                )


def _rates(seconds: Sequence[float], count: int) -> Spread:
    return Spread.of([count / each / 1e6 for each in seconds])


def _cpu(rounds: Sequence[Round], records: Mapping[str, int]) -> Iterator[Line]:
    """CPU time of Spark, its workers and the node together: what a busy machine cannot change much."""
    for load, title in LOADS.items():
        for topic, count in records.items():
            theirs = _cpu_of_all(rounds, load, topic, "connector")
            for side, way in WAYS.items():
                ours = _cpu_of_all(rounds, load, topic, side)
                spreads = [Spread.of([each / count * 1e6 for each in spent]) for spent in (ours, theirs)]
                what = f"{title}{way}: CPU of Spark and the node"
                yield Line(what, TITLES[topic], *spreads, _paired(theirs, ours), "s per M records")


def _cpu_of_all(rounds: Sequence[Round], load: str, topic: str, side: str) -> list[float]:
    which = {"load": load, "topic": topic, "side": side}
    spark, node = (_values(rounds, f"{who}_cpu_seconds", **which) for who in ("spark", "node"))
    return [sum(pair) for pair in zip(spark, node, strict=True)]


def _nothing(rounds: Sequence[Round]) -> Iterator[Line]:
    """What a query costs before the first record."""
    for figure, unit in (("seconds", "s"), ("spark_cpu_seconds", "CPU-s")):
        which = {"load": "aggregate", "topic": "nothing"}
        ours, theirs = (_values(rounds, figure, **which, side=side) for side in ("files", "connector"))
        if ours:
            spreads = [Spread.of(spent) for spent in (ours, theirs)]
            yield Line("a query over an empty topic", "", *spreads, _paired(theirs, ours), unit)


def _node_cpu(rounds: Sequence[Round], records: Mapping[str, int]) -> Iterator[Line]:
    """The clock of /proc ticks too coarsely for one round, so the ratio is of their sums."""
    for topic, count in records.items():
        theirs = _values(rounds, "node_cpu_seconds", load="aggregate", topic=topic, side="connector")
        for side, way in WAYS.items():
            ours = _values(rounds, "node_cpu_seconds", load="aggregate", topic=topic, side=side)
            spreads = [Spread.of([each / count * 1e6 for each in spent]) for spent in (ours, theirs)]
            ratio = sum(theirs) / sum(ours) if sum(ours) else None
            yield Line(f"CPU of the node{way}", TITLES[topic], *spreads, ratio, "s per M records")


def _decoder(rounds: Sequence[Round]) -> Iterator[Line]:
    for form, bar in DECODER_BARS.items():
        rates = _values(rounds, "records_per_s", load="decoder", side=form)
        if rates:
            spread = Spread.of([each / 1e6 for each in rates])
            limit = f">= {bar / 1e6:g} M"
            yield Line(
                f"decoder, {form}",
                "100 B",
                spread,
                None,
                None,
                "M records/CPU-s",
                limit,
                spread.median >= bar / 1e6,
            )


def _compaction(rounds: Sequence[Round]) -> Iterator[Line]:
    ours = _values(rounds, "seconds", load="compaction", side="spark")
    theirs = _values(rounds, "seconds", load="compaction", side="processes")
    longer = _paired(ours, theirs)
    title = "compaction on Spark / in two processes"
    met = longer <= COMPACTION_BAR
    yield Line(title, "100 B", Spread.of(ours), Spread.of(theirs), longer, "s", f"<= {COMPACTION_BAR}x", met)
    checking = _values(rounds, "seconds", load="take in", side="checking")
    cleaning = _values(rounds, "seconds", load="take in", side="cleaning")
    ratio = _paired(checking, cleaning)
    yield Line(
        "CPU of the node: checking an offer / cleaning",
        "100 B",
        Spread.of(checking),
        Spread.of(cleaning),
        ratio,
        "s",
    )


# --- as text ------------------------------------------------------------------------------------------------------


def _cells(line: Line) -> tuple[str, ...]:
    met = "" if line.met is None else "yes" if line.met else "NO"
    theirs = _spread(line.theirs) if line.theirs else ""
    ratio = f"{line.ratio:.2f}x" if line.ratio is not None else ""
    return (f"{line.what}, {line.unit}", line.topic, _spread(line.ours), theirs, ratio, line.bar, met)


def _spread(spread: Spread) -> str:
    return f"{spread.median:.3g} ({spread.low:.3g} to {spread.high:.3g})"


def as_text(about: Sequence[str], all_lines: Sequence[Line]) -> str:
    rows = [HEAD, *map(_cells, all_lines)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEAD))]
    told = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([*about, "", *told, ""])


def as_markdown(all_lines: Sequence[Line]) -> str:
    rows = [HEAD, tuple("---" for _ in HEAD), *map(_cells, all_lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def put_into(document: Path, about: Sequence[str], all_lines: Sequence[Line]) -> None:
    """The table into a Markdown document, between its marks; a document without them stays as it is."""
    text = document.read_text()
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        return
    told = "\n".join(f"- {line}" for line in about)
    document.write_text(f"{text[: begin + len(BEGIN)]}\n\n{told}\n\n{as_markdown(all_lines)}\n\n{text[end:]}")
