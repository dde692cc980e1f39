"""The steps of the demo, each with what it says: load the topics, fill the tables, report."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.errors import PipelineError
from examples.demo.children import PORT, start_spark
from examples.demo.figures import figures_of_flights, figures_of_groups
from examples.demo.plot import draw
from examples.demo.report import (
    PLOT,
    differing,
    figures_table,
    hours_of,
    hours_table,
    look_next,
    show,
)
from examples.demo.screen import Screen, Stopwatch
from examples.demo.source_files import SourceTables
from examples.demo.topics import Loader, Topic, topics_of
from examples.demo.warehouse import JOINED, NAMESPACE, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_topics(source: SourceTables, bootstrap: str, screen: Screen) -> None:
    loader = Loader(bootstrap)
    for topic in topics_of(source):
        watch = Stopwatch()
        with screen.bar(f"topic {topic.name}", topic.table.num_rows) as advance:
            added = loader.load(topic, advance)
        screen.say(f"topic {topic.name}", _loaded(topic, added), watch.lap())


def _loaded(topic: Topic, added: int) -> str:
    rows = topic.table.num_rows
    kind = ", compacted" if topic.configs.get("cleanup.policy") == "compact" else ""
    if added == rows:
        return f"{rows:,} records, key {topic.key_column}{kind}"
    if added == 0:
        return f"{rows:,} records, all there from an earlier run{kind}"
    return f"{rows:,} records, the last {added:,} of them now{kind}"


def fill_tables(source: SourceTables, bootstrap: str, folder: Path, screen: Screen) -> None:
    watch = Stopwatch()
    rows = sum(table.num_rows for table in source)
    with start_spark(folder, bootstrap) as spark, screen.bar("records to tables", rows) as advance:
        for answer in spark.answers():
            if "batch_of" in answer:
                advance(answer["read"])
            elif "error" in answer:
                raise PipelineError(f"{answer['error']} Spark's own words are in {folder}/spark.log.")
            else:
                screen.say(*_filled(answer), watch.lap())


def _filled(answer: "Mapping[str, Any]") -> tuple[str, str]:
    if "spark" in answer:
        return "spark", f"{answer['spark']} on {answer['master']}"
    name = f"table {answer['table'].removeprefix(NAMESPACE + '.')}"
    if "rows" in answer:
        return name, f"{answer['rows']:,} rows from the three topics joined"
    batches = f"{answer['batches']} batch{'es' if answer['batches'] != 1 else ''}"
    return name, f"{answer['read']:,} read = {answer['written']:,} written + {answer['dlq']:,} dlq, {batches}"


def report(source: SourceTables, bootstrap: str, folder: Path, screen: Screen, *, stay: bool) -> None:
    """PipelineError if a table does not hold what the file holds."""
    groups = read_table(folder, JOINED)
    stages = {
        "the source file": figures_of_flights(source.flights),
        f"Iceberg table {NAMESPACE}.flights": figures_of_flights(read_table(folder, "flights", "dep_delay")),
        f"Iceberg table {NAMESPACE}.{JOINED}": figures_of_groups(groups),
    }
    draw(groups, folder / PLOT)
    screen.console.print()
    show(screen.console, figures_table(stages), hours_table(hours_of(groups)))
    if differing(stages):
        raise PipelineError(
            f"{' and '.join(differing(stages))} differ from the file: keep {folder} and tell us."
        )
    is_usual = bootstrap.endswith(f":{PORT}")
    screen.console.print(
        look_next("" if is_usual else f" --bootstrap {bootstrap}", folder, running=stay), soft_wrap=True
    )
