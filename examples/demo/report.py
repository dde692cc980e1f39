"""What came out: the figures of each stage next to the source file's, delays by hour, and where to look next."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from examples.demo.figures import Figures
from examples.demo.warehouse import CATALOG, JOINED, NAMESPACE, catalog_uri

PLOT = "delays.png"
BAR_MINUTES = 2
"""A block of the bar stands for this many minutes of delay."""


class Hour(NamedTuple):
    hour: int
    flights: int
    departed: int
    delay_sum: int
    late: int

    @property
    def delay_mean(self) -> float:
        return self.delay_sum / self.departed if self.departed else 0.0

    @property
    def late_share(self) -> float:
        return self.late / self.departed if self.departed else 0.0


def hours_of(groups: pa.Table) -> list[Hour]:
    """The joined table by hour of the day, New York's time."""
    names = ("flights", "departed", "delay_sum", "late")
    sums = groups.group_by("hour").aggregate([(name, "sum") for name in names]).sort_by("hour")
    columns = [sums["hour"].to_pylist(), *(sums[f"{name}_sum"].to_pylist() for name in names)]
    return [Hour(*row) for row in zip(*columns, strict=True)]


def differing(stages: Mapping[str, Figures]) -> list[str]:
    """The stages whose figures are not those of the first one."""
    expected = next(iter(stages.values()))
    return [name for name, figures in stages.items() if figures != expected]


def figures_table(stages: Mapping[str, Figures]) -> RenderableType:
    table = _table("", "#rows", "#sum(dep_delay)", "#without dep_delay", "")
    wrong = differing(stages)
    for name, figures in stages.items():
        table.add_row(name, *(f"{figure:,}" for figure in figures), "differs" if name in wrong else "")
    return table


def hours_table(hours: Sequence[Hour]) -> RenderableType:
    table = _table("#hour", "#flights", "#cancelled", "#mean delay", "#later than 15 min", "")
    for hour in hours:
        table.add_row(
            f"{hour.hour:02}", f"{hour.flights:,}", f"{hour.flights - hour.departed:,}",
            f"{hour.delay_mean:.1f} min" if hour.departed else "-",
            f"{hour.late_share:.0%}" if hour.departed else "-",
            "█" * round(hour.delay_mean / BAR_MINUTES),
        )  # fmt: skip
    return Group(Text("Departures by scheduled hour, New York's time"), table)


def look_next(address: str, folder: Path, *, running: bool) -> str:
    """`address` is what a command needs besides its name to find the node that is running."""
    program = command_to_type()
    if running:
        when = "in another terminal, while the node runs"
    else:
        when, address = f"after `{program} up --data-dir {folder}/data`", ""
    return f"""Look next
  the plot     {folder}/{PLOT}
  the tables   any Iceberg reader; for example in {near(sys.executable)}:
                 from pyiceberg.catalog import load_catalog
                 catalog = load_catalog("{CATALOG}", type="sql", uri="{catalog_uri(folder)}")
                 catalog.load_table("{NAMESPACE}.{JOINED}").scan().to_pandas()
  the topics   {when}:
                 {program} topic list{address}
                 {program} consume planes --from -3{address}
                 {program} group list{address}
  your own     docs/pipeline.md goes from zero to a table; examples/ has a declarative and a stateful pipeline
  once more    `make run` goes on with what is there; delete {folder} to start anew"""


def command_to_type() -> str:
    """How to call anabranch from here: its name, or its path if it is not on the PATH."""
    return (
        "anabranch" if shutil.which("anabranch") else near(str(Path(sys.executable).with_name("anabranch")))
    )


def near(program: str) -> str:
    relative = os.path.relpath(program)
    return program if relative.startswith("..") else relative


def show(console: Console, *parts: RenderableType) -> None:
    for part in parts:
        console.print(part)
        console.print()


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(
            heading.lstrip("#"), justify="right" if heading.startswith("#") else "left", no_wrap=True
        )
    return table
