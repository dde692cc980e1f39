"""`anabranch cluster restore`: bring a cluster back from its object store, without any of its disks."""

import os
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Command, format_option, show_json

if TYPE_CHECKING:
    from anabranch.broker.restore.restore_report import RestoreReport
    from anabranch.broker.restore.restoring import RestoreWish
    from anabranch.errors import StoreUnavailableError

INCARNATION_DIGITS = 16
PROGRESS_SECONDS = 2.0
"""Between two lines on the same subject."""
INTERRUPTED = 130


@click.command(cls=Command)
@click.option("--object-store", required=True, metavar="URL", help="Where the cluster kept its records.")
@click.option("--data-dir", metavar="DIR", help="The folder to create for its first broker; it must be new.")
@click.option(
    "--broker-id", type=click.IntRange(min=0), default=0, show_default=True, help="The id of that broker."
)
@click.option(
    "--credentials-file", metavar="FILE", help="The store's credentials. [those of the environment]"
)
@click.option("--incarnation", metavar="HEX", help="Which cluster, if the store holds several.")
@click.option("--accept-loss", is_flag=True, help="Continue even if some records cannot be restored.")
@click.option(
    "--verify", is_flag=True, help="Read every object that the snapshot names, not only the newest 8 GiB."
)
@click.option(
    "--dry-run", is_flag=True, help="Only show what would be restored; exit with 1 if it would be refused."
)
@format_option()
def restore(
    object_store: str,
    data_dir: str | None,
    broker_id: int,
    credentials_file: str | None,
    incarnation: str | None,
    accept_loss: bool,
    verify: bool,
    dry_run: bool,
    format: str,
) -> None:
    """Restore a cluster from its object store alone.

    Topics in mode object come back with everything that was acknowledged. Records up to the last snapshot in the
    store keep their offsets; newer ones follow after a gap, and some of those may appear twice. Topics in other modes
    come back empty. The committed offsets of groups are those of their last snapshot.

    Every object is looked for in the store's listing with its size. The newest 8 GiB are also read and their checksums
    compared, everything with --verify; the report says how much was not.

    Stop whatever is left of the old cluster first: what it acknowledges later is not in the new one. Then start the
    first broker with `anabranch up --data-dir DIR --object-store URL`; others join it as usual.

    Requests that fail temporarily are retried. A restore that was interrupted can be run again.
    """
    import asyncio
    from dataclasses import replace

    from anabranch.broker.restore.restoring import RestoreWish

    if data_dir is None and not dry_run:
        raise click.UsageError("Name the first broker's folder with --data-dir, or use --dry-run.")
    folder = os.path.realpath(data_dir) if data_dir else ""
    wish = RestoreWish(folder, broker_id, _incarnation(incarnation), dry_run, accept_loss)
    if verify:
        wish = replace(wish, verified_bytes_max=None)
    try:
        report = asyncio.run(_restore(object_store, credentials_file, wish))
    except KeyboardInterrupt:
        click.echo("Interrupted. Run the same command again: it starts from the beginning.", err=True)
        raise SystemExit(INTERRUPTED) from None
    is_refused = bool(report.losses) and not accept_loss
    if format == "json":
        show_json({**report.json(), "data_dir": data_dir, "is_done": not dry_run})
    else:
        for line in report.lines():
            click.echo(line)
        if dry_run:
            how = "with --accept-loss instead of --dry-run" if is_refused else "without --dry-run"
            click.echo(f"Nothing was written: run this {how} to do it.")
        else:
            command = f"anabranch up --data-dir {data_dir} --object-store {object_store}"
            click.echo(f"Done. Start it with: {command}" + (f" --broker-id {broker_id}" if broker_id else ""))
    if is_refused:
        raise SystemExit(1)  # Only of a dry run: the other is refused before.


def _incarnation(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        if len(text) == INCARNATION_DIGITS:
            return int(text, 16)
    except ValueError:
        pass
    raise click.UsageError(
        f"--incarnation {text} is not an incarnation: one has {INCARNATION_DIGITS} hexadecimal digits."
    )


async def _restore(url: str, credentials_file: str | None, wish: "RestoreWish") -> "RestoreReport":
    import asyncio
    import uuid

    from anabranch.broker.restore.restoring import Restoring
    from anabranch.broker.workers import ThreadWorkers
    from anabranch.clock import RealClock
    from anabranch.log.disk.real_files import RealFiles, boot_id
    from anabranch.objects.retrying_store import RetryingStore
    from anabranch.objects.stores import open_store

    files, clock = RealFiles(), RealClock()
    workers = ThreadWorkers(asyncio.get_running_loop(), sync_threads=4, heavy_threads=4)
    try:
        said = _Said()
        opened = open_store(url, files=files, workers=workers, clock=clock, credentials_file=credentials_file)
        store = RetryingStore(opened, clock, on_retry=said.retry)
        try:
            return await Restoring(store, files, clock, boot_id(), uuid.uuid4, said.progress).run(wish)
        finally:
            await store.close()
    finally:
        workers.close()


class _Said:
    """Progress on standard error: a line every few seconds, and one at the end of each part."""

    def __init__(self) -> None:
        self._progress_due = 0.0
        self._retry_due = 0.0

    def progress(self, what: str, done: int, total: int) -> None:
        import time

        if done == total or time.monotonic() >= self._progress_due:
            click.echo(f"Read {done} of {total} {what}.", err=True)
            self._progress_due = time.monotonic() + PROGRESS_SECONDS

    def retry(self, error: "StoreUnavailableError") -> None:
        import time

        if time.monotonic() >= self._retry_due:
            click.echo(f"Retrying: {error}", err=True)
            self._retry_due = time.monotonic() + PROGRESS_SECONDS
