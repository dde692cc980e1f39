"""`anabranch log`: verify, dump and repair a data folder while no node runs on it.

`verify` only reads. `repair` does what a node does when it starts after a crash, but over the whole log: it cuts
back to the last good batch, moves the damage and what follows it aside (it never deletes them), and rebuilds indexes.
It shows its plan first, with the number of records that leave the log. The plan is what the repair does to a trial of
the folder, so that both agree.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Failure, Group, confirm, format_option, show_json, show_table, yes_option
from anabranch.cli.terminal import console

if TYPE_CHECKING:
    from anabranch.cli.log.check import Report
    from anabranch.cli.log.repair import Step
    from anabranch.log.disk.real_files import RealFiles


@click.group(cls=Group)
def command() -> None:
    """Verify, dump and repair a data folder offline."""


folder_argument = click.argument("folder", default="anabranch-data", metavar="[FOLDER]")
partition_option = click.option(
    "--partition", "wanted", multiple=True, metavar="TOPIC-N", help="Only this partition; may be repeated."
)
gaps_option = click.option(
    "--gaps-allowed", is_flag=True, help="Do not count missing offsets as damage: the topics were compacted."
)


# --- verify -----------------------------------------------------------------------------------------------


@command.command()
@folder_argument
@partition_option
@gaps_option
@format_option()
def verify(folder: str, wanted: tuple[str, ...], gaps_allowed: bool, format: str) -> None:
    """Check every checksum, offset and index entry. Exit code 1 if anything is wrong."""
    from anabranch.cli.log.offline import held

    with held(folder) as files:
        reports = check_all(files, folder, wanted, gaps_allowed)
    if format == "json":
        show_json([report.as_json() for report in reports])
    else:
        _show_reports(reports)
    damaged = [report.partition for report in reports if report.findings]
    if damaged:
        raise Failure(f"{', '.join(damaged)} {_are(damaged)} damaged: see `anabranch log repair --dry-run`.")


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def check_all(files: "RealFiles", folder: str, wanted: tuple[str, ...], gaps_allowed: bool) -> "list[Report]":
    from anabranch.cli.log.check import check_partition
    from anabranch.cli.log.offline import is_lane, name_of, partition_folders, segment_bases
    from anabranch.cli.log.offline_topics import compacted_partitions
    from anabranch.log import names
    from anabranch.values import Offset, was_in_branches

    bases = {one: segment_bases(files, one) for one in partition_folders(folder, wanted)}
    paths = [names.segment_path(one, Offset(base), names.LOG) for one in bases for base in bases[one]]
    compacted = set(map(name_of, bases)) if gaps_allowed else compacted_partitions(files, folder)
    holed = {one for one in bases if is_lane(one) or was_in_branches(bases[one]) or name_of(one) in compacted}
    with _progress(sum(map(files.size, paths))) as advance:
        return [check_partition(files, one, gaps_allowed=one in holed, on_bytes=advance) for one in bases]


@contextmanager
def _progress(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over the bytes read, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total_bytes)
        yield lambda count: progress.advance(task, count)


def _show_reports(reports: "list[Report]") -> None:
    show_table(
        ["partition", "#segments", "#batches", "#first offset", "#end offset", "#bytes", "verdict"],
        [
            (
                report.partition,
                report.segments,
                report.batches,
                report.start_offset,
                report.end_offset,
                report.size_bytes,
                "damaged" if report.findings else "intact",
            )
            for report in reports
        ],
    )
    rows = [
        (
            report.partition,
            finding.kind.value,
            finding.file,
            finding.position,
            finding.end,
            finding.damaged_records or None,
            finding.problem,
        )
        for report in reports
        for finding in report.findings
    ]
    if rows:
        columns = ["partition", "kind", "file", "#from byte", "#to byte", "#damaged records", "problem"]
        show_table(columns, rows)
    for report in reports:
        if report.first_damage is not None:
            intact = report.intact_behind_damage
            click.echo(
                f"{report.partition}: {intact} intact {'record follows' if intact == 1 else 'records follow'} the "
                f"first damage, and the log ends at offset {report.end_offset}."
            )


# --- dump -------------------------------------------------------------------------------------------------


@command.command()
@folder_argument
@partition_option
@click.option("--records", "with_records", is_flag=True, help="Show the records of each batch too.")
@click.option(
    "--from", "start", type=click.IntRange(min=0), default=0, metavar="OFFSET", help="Begin at this offset."
)
@click.option("--max", "batches_max", type=click.IntRange(min=1), metavar="N", help="Stop after N batches.")
@format_option("text", "json", "ndjson")
def dump(
    folder: str, wanted: tuple[str, ...], with_records: bool, start: int, batches_max: int | None, format: str
) -> None:
    """Print the batches of a data folder, a partition's folder or one .log file."""
    from itertools import islice

    from anabranch.cli.log.dump import batches_below, show
    from anabranch.cli.log.offline import held

    with held(folder) as files:
        show(islice(batches_below(files, folder, wanted, start), batches_max), with_records, format)


# --- repair -----------------------------------------------------------------------------------------------


@command.command()
@folder_argument
@partition_option
@gaps_option
@click.option("--dry-run", is_flag=True, help="Show what would be done and do nothing.")
@yes_option
@format_option()
def repair(
    folder: str, wanted: tuple[str, ...], gaps_allowed: bool, dry_run: bool, yes: bool, format: str
) -> None:
    """Cut back to the last good batch, move aside what follows the damage, and rebuild indexes."""
    from anabranch.cli.log.offline import held, partition_folders
    from anabranch.cli.log.repair import plan, repair_partition

    with held(folder) as files:
        reports = check_all(files, folder, wanted, gaps_allowed)
        places = zip(reports, partition_folders(folder, wanted), strict=True)
        damaged = [(report, place) for report, place in places if report.findings]
        plans = [plan(files, place, report) for report, place in damaged]
        steps = [step for each in plans for step in each.steps]
        left = [each.left for each in plans if each.left.findings]
        if format == "text":
            _show_steps(steps, dry_run)
        if damaged and not dry_run:
            confirm("Do this?", yes)
            for report, place in damaged:
                if report.segments:
                    repair_partition(files, place, gaps_allowed=report.gaps_allowed)
            left = [report for report in check_all(files, folder, wanted, gaps_allowed) if report.findings]
    _show_outcome(steps, left, dry_run, format)


def _show_steps(steps: "list[Step]", dry_run: bool) -> None:
    if not steps:
        click.echo("Nothing is damaged.")
        return
    click.echo("A repair would do this:" if dry_run else "The repair will do this:")
    show_table(["partition", "step", "file", "#damaged records", "#intact records", "why"], steps)
    counts = {
        "damaged": sum(step.damaged_records for step in steps),
        "intact": sum(step.intact_records for step in steps),
    }
    moved, total = [f"{count} {kind}" for kind, count in counts.items() if count], sum(counts.values())
    if moved:
        leave = "would leave" if dry_run else "leaves" if total == 1 else "leave"
        records = "record" if total == 1 else "records"
        click.echo(f"{' and '.join(moved)} {records} {leave} the log for quarantine/.")
    if counts["intact"]:
        click.echo(
            "Without a repair a node serves those intact records that it knew to be synced: all, after a clean stop."
        )


def _show_outcome(steps: "list[Step]", left: "list[Report]", dry_run: bool, format: str) -> None:
    """`left` is what the repair has left, or what it would leave."""
    if format == "json":
        remains = [report.as_json() for report in left]
        show_json({"dry_run": dry_run, "steps": [step._asdict() for step in steps], "left": remains})
    elif left and not dry_run:
        _show_reports(left)
    elif steps and not dry_run:
        click.echo("Repaired.")
    if left and not dry_run:
        is_refused = any(finding.position is not None for report in left for finding in report.findings)
        stays = "reads of it are refused" if is_refused else "readers pass over the missing offsets"
        raise Failure(f"Some damage cannot be repaired: {stays}, and everything else is served.")
