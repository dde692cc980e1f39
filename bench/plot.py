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
        return "There is no plot: nothing was measured."
    figure = _figure([len(panel) for panel in panels])
    for axes, panel in zip(figure.axes, panels, strict=True):
        _panel(axes, panel)
    first, second = head.splitlines()
    figure.suptitle(
        "How many times better than Apache Kafka 4.3.1",
        x=0.01,
        y=0.995,
        ha="left",
        fontsize=14,
        weight="bold",
    )
    figure.text(
        0.01, 1 - 0.42 / figure.get_figheight(), f"{first}\n{second}", va="top", fontsize=8, color=QUIET
    )
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


def _panel(axes: Any, lines: "Sequence[Line]") -> None:
    values = [_value(line) for line in lines]
    marks = [mark for line in lines for mark in _marks(line)]
    reach = max(2.0, *(max(value, 1 / value) for value in (*values, *marks))) * 1.25
    for place, (line, value) in enumerate(zip(lines, values, strict=True)):
        _line(axes, place, line, value, is_new_row=place == 0 or lines[place - 1].row is not line.row)
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
    is_limit = lines[0].theirs is None or (lines[0].bar is not None and lines[0].bar.against != KAFKA)
    axes.set_xlabel(
        "times better than the limit"
        if is_limit
        else "worse   ←   Kafka = 1   →   better         | bar   ¦ stretch"
    )


def _value(line: "Line") -> float:
    if line.bar is not None and line.bar.against != KAFKA and line.verdict is not None:
        return advantage(line.figure.better, line.verdict.value, line.bar.bar)
    assert line.theirs is not None
    return advantage(line.figure.better, line.ours.median, line.theirs.median)


def _marks(line: "Line") -> list[float]:
    """The bar and the stretch on the axis of advantages."""
    if line.bar is None:
        return []
    base = 1.0 if line.bar.against == KAFKA else line.bar.bar
    goals = [line.bar.bar] + ([line.bar.stretch] if line.bar.stretch is not None else [])
    return [advantage(line.figure.better, goal, base) for goal in goals]


def _line(axes: Any, place: int, line: "Line", value: float, *, is_new_row: bool) -> None:
    axes.barh(place, value - 1, left=1, height=0.62, color=AHEAD if value >= 1 else BEHIND, zorder=2)
    for mark, colour, style in zip(_marks(line), (BAR, STRETCH), ("-", (0, (2, 1))), strict=False):
        axes.plot(
            [mark, mark], [place - 0.42, place + 0.42], color=colour, linestyle=style, linewidth=1.8, zorder=3
        )
    if is_new_row:
        axes.axhline(
            place - 0.5, xmin=-0.9, xmax=1.6, color="#e6e6e6", linewidth=0.7, clip_on=False, zorder=0
        )
        axes.annotate(
            line.row.id, (-0.89, place), xycoords=("axes fraction", "data"), va="center", weight="bold"
        )
    axes.annotate(
        line.figure.title,
        (-0.02, place),
        xycoords=("axes fraction", "data"),
        va="center",
        ha="right",
        fontsize=8.5,
    )
    axes.annotate(
        _label(line, value),
        (1.02, place),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=8.5,
        color=QUIET,
    )


def _label(line: "Line", value: float) -> str:
    from bench.report import number

    unit = "" if line.figure.unit == "x" else f" {line.figure.unit}".replace(" /s", "/s").replace("us", "µs")
    if line.bar is not None and line.bar.against != KAFKA and line.verdict is not None:
        sign = "≤" if line.figure.better is Better.LESS else "≥"
        shown = f"{number(line.verdict.value)}{unit if line.bar.against == LIMIT else 'x'}"
        met = "met" if line.verdict.is_met else "NOT met"
        return f"{shown}, {met}: {sign} {number(line.bar.bar)}"
    assert line.theirs is not None
    met = "" if line.verdict is None else "  met" if line.verdict.is_met else "  NOT met"
    return f"{number(line.ours.median)} against {number(line.theirs.median)}{unit}{met}"
