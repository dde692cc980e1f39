"""One picture: how many times better than Kafka each figure is, and where its bar and its stretch lie.

To the right of 1 we are ahead, to the left behind, on a logarithmic axis, so that twice and half are equally far.
The labels carry the plain figures. Figures held against a limit instead of Kafka have a panel of their own, where 1
is the limit.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figures import KAFKA, LIMIT, Better

if TYPE_CHECKING:
    from bench.report import Line

AHEAD, BEHIND, BAR, STRETCH, QUIET = "#2a7f62", "#c0492f", "#222222", "#8a8a8a", "#5a5a5a"
INCHES_PER_LINE = 0.3
SVG_SALT = "anabranch"  # Else every drawing gets new ids and looks changed.


def advantage(better: Better, ours: float, other: float) -> float:
    """How many times better than the other: 2 is twice as good, 0.5 half as good."""
    return other / ours if better is Better.LESS else ours / other


def draw(all_lines: "Sequence[Line]", results: Path, head: str) -> str:
    """Writes plot.png and plot.svg; a sentence when that is not possible, else nothing."""
    try:
        import matplotlib
    except ImportError:
        return "There is no plot: matplotlib is missing (pip install 'anabranch[bench]')."
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": SVG_SALT, "font.size": 9, "font.family": "DejaVu Sans"})
    compared = [line for line in all_lines if line.theirs is not None and line.is_shown]
    limited = [
        line for line in all_lines if line.bar is not None and line.bar.against != KAFKA and line.verdict
    ]
    panels = [panel for panel in (compared, limited) if panel]
    if not panels:
        return "There is no plot: nothing was measured that could be compared."
    figure = _figure([len(panel) for panel in panels])
    for axes, panel in zip(figure.axes, panels, strict=True):
        _panel(axes, panel, is_limit=panel is limited)
    figure.suptitle(
        "How many times better than Apache Kafka 4.3.1",
        x=0.01,
        y=0.995,
        ha="left",
        fontsize=14,
        weight="bold",
    )
    figure.text(0.01, 1 - 0.42 / figure.get_figheight(), head, va="top", fontsize=8, color=QUIET)
    figure.savefig(results / "plot.png", dpi=130)
    figure.savefig(results / "plot.svg", metadata={"Date": None})
    return ""


def _figure(counts: Sequence[int]) -> Any:
    from matplotlib.figure import Figure

    top, bottom, gap = 0.95, 0.75, 0.9
    height = top + bottom + gap * (len(counts) - 1) + INCHES_PER_LINE * (sum(counts) + len(counts))
    figure = Figure(figsize=(11.5, height))
    upper = height - top
    for count in counts:
        panel_height = INCHES_PER_LINE * (count + 1)
        figure.add_axes((0.36, (upper - panel_height) / height, 0.40, panel_height / height))
        upper -= panel_height + gap
    return figure


def _panel(axes: Any, lines: "Sequence[Line]", *, is_limit: bool) -> None:
    values = [_value(line, is_limit) for line in lines]
    marks = [mark for line in lines for mark in _marks(line, is_limit)]
    reach = max(2.0, *(max(value, 1 / value) for value in (*values, *marks))) * 1.25
    for place, (line, value) in enumerate(zip(lines, values, strict=True)):
        _bar(axes, place, value, _marks(line, is_limit))
        _labels(
            axes, place, line, "" if place and lines[place - 1].row is line.row else line.row.id, is_limit
        )
    axes.set_xscale("log", base=2)
    axes.set_xlim(1 / min(reach, 8), reach)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.axvline(1, color=BAR, linewidth=1.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x" if value >= 1 else f"1/{1 / value:g}")
    axes.set_yticks([])
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(
        "times better than the limit"
        if is_limit
        else "worse   ←   Kafka = 1   →   better         | bar   ¦ stretch"
    )


def _value(line: "Line", is_limit: bool) -> float:
    if is_limit:
        assert line.bar is not None
        assert line.verdict is not None
        return advantage(line.figure.better, line.verdict.value, line.bar.bar)
    assert line.theirs is not None
    return advantage(line.figure.better, line.ours.median, line.theirs.median)


def _marks(line: "Line", is_limit: bool) -> list[float]:
    """The bar and the stretch on the axis of advantages."""
    if line.bar is None or is_limit != (line.bar.against != KAFKA):
        return []
    base = line.bar.bar if is_limit else 1.0
    goals = [line.bar.bar] + ([line.bar.stretch] if line.bar.stretch is not None else [])
    return [advantage(line.figure.better, goal, base) for goal in goals]


def _bar(axes: Any, place: int, value: float, marks: Sequence[float]) -> None:
    axes.barh(place, value - 1, left=1, height=0.62, color=AHEAD if value >= 1 else BEHIND, zorder=2)
    for mark, colour, style in zip(marks, (BAR, STRETCH), ("-", (0, (2, 1))), strict=False):
        ends = [place - 0.42, place + 0.42]
        axes.plot([mark, mark], ends, color=colour, linestyle=style, linewidth=1.8, zorder=3)


def _labels(axes: Any, place: int, line: "Line", row_id: str, is_limit: bool) -> None:
    """The row's name where it begins, the figure's name, and the plain figures."""
    across = ("axes fraction", "data")
    if row_id:
        axes.axhline(
            place - 0.5, xmin=-0.9, xmax=1.6, color="#e6e6e6", linewidth=0.7, clip_on=False, zorder=0
        )
        axes.annotate(row_id, (-0.89, place), xycoords=across, va="center", weight="bold")
    small = {"xycoords": across, "va": "center", "fontsize": 8.5}
    axes.annotate(line.figure.title, (-0.02, place), ha="right", **small)
    axes.annotate(_limit_text(line) if is_limit else _kafka_text(line), (1.02, place), color=QUIET, **small)


def _unit(line: "Line") -> str:
    return {"x": "x", "/s": "/s", "us": " µs"}.get(line.figure.unit, f" {line.figure.unit}")


def _kafka_text(line: "Line") -> str:
    from bench.report import number

    assert line.theirs is not None
    has_bar = line.verdict is not None and line.bar is not None and line.bar.against == KAFKA
    met = "" if not has_bar or line.verdict is None else "  met" if line.verdict.is_met else "  NOT met"
    return f"{number(line.ours.median)} against {number(line.theirs.median)}{_unit(line)}{met}"


def _limit_text(line: "Line") -> str:
    from bench.report import number

    assert line.bar is not None
    assert line.verdict is not None
    unit = _unit(line) if line.bar.against == LIMIT else f"x of {line.bar.against}"
    sign = "≤" if line.figure.better is Better.LESS else "≥"
    met = "met" if line.verdict.is_met else "NOT met"
    return f"{number(line.verdict.value)}{unit}, {met}: {sign} {number(line.bar.bar)}"
