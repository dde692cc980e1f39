"""`anabranch up`: run one node until SIGINT or SIGTERM.

Nothing slow is imported before the port answers. Settings come from `--config`, then `--set`, then the
options, the later winning. With `--format json` stdout carries exactly one line, once clients can connect. A
stop answers what was accepted and exits 0; one that takes longer than `STOP_SECONDS_MAX` is given up with
exit code 1, and the next start recovers as after a crash.
"""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Command, Failure, format_option, pairs_of
from anabranch.cli.logs import LEVELS

if TYPE_CHECKING:
    from anabranch.config import NodeSettings
    from anabranch.node import Node

STOP_SECONDS_MAX = 4.5


@click.command(cls=Command)
@click.option(
    "--listen", metavar="HOST:PORT", help="Where clients connect; port 0 picks one. [127.0.0.1:9092]"
)
@click.option("--data-dir", metavar="DIR", help="The folder of everything the node keeps. [./anabranch-data]")
@click.option("--ephemeral", is_flag=True, help="Keep everything in a temporary folder, removed at stop.")
@click.option(
    "--flush", type=click.Choice(["always", "interval", "os"]), help="When records are synced. [always]"
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="The address told to clients. [the one they connected to]"
)
@click.option("--http", metavar="HOST:PORT", help="Serve /metrics and /healthz there. [nowhere]")
@click.option("--allow-unauthenticated", is_flag=True, help="Allow an address that other machines can reach.")
@click.option("--config", "config_file", metavar="FILE", help="Read settings from a TOML file.")
@click.option(
    "--set", "sets", metavar="NAME=VALUE", multiple=True, help="Any other setting; may be repeated."
)
@click.option("--log-level", type=click.Choice(LEVELS), help="JSON logs on stderr from this level. [warning]")
@format_option(help_text="A banner, or one JSON line once the port answers.")
def command(config_file: str | None, log_level: str | None, format: str, **options: object) -> None:
    """Start a node and run it until Ctrl-C.

    Settings by --set or in the file have Kafka's names where they mean what Kafka's mean:
    num.partitions, log.retention.ms, message.max.bytes ... docs/settings.md lists them all.
    """
    from anabranch.cli.logs import log_to_stderr

    log_to_stderr(log_level or ("error" if format == "json" else "warning"))
    with data_folder(bool(options["ephemeral"]), options["data_dir"]) as folder:
        settings = gather_settings(config_file, {**options, "data_dir": folder})
        prepare_folder(settings.data_dir)
        run(settings, format, ephemeral=bool(options["ephemeral"]))


@contextlib.contextmanager
def data_folder(ephemeral: bool, chosen: object) -> Iterator[str | None]:
    if not ephemeral:
        yield None if chosen is None else str(chosen)
        return
    if chosen is not None:
        raise click.UsageError("--ephemeral and --data-dir exclude each other: choose one.")
    folder = tempfile.mkdtemp(prefix="anabranch-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def gather_settings(config_file: str | None, options: dict[str, object]) -> "NodeSettings":
    from anabranch.config import NodeSettings, read_settings_file

    settings = read_settings_file(config_file) if config_file else {}
    sets = options["sets"]
    assert isinstance(sets, tuple)
    settings.update(pairs_of(sets, "--set"))
    for option in ("listen", "data_dir", "flush", "advertise", "http"):
        if options[option] is not None:
            settings[option.replace("_", ".")] = options[option]
    if options["allow_unauthenticated"]:
        settings["allow.unauthenticated"] = True
    return NodeSettings.load(settings)


def prepare_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise Failure(
            f"The data folder {folder} cannot be made ({error.strerror}): choose another --data-dir."
        ) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Failure(
            f"The data folder {folder} is not writable: change its owner or choose another --data-dir."
        )


KEPT_BYTES_MAX = 32 * 1024 * 1024
"""What the process may keep of the memory it freed: batches come and go, and each wants about as much as the last."""


def run(settings: "NodeSettings", format: str, *, ephemeral: bool) -> None:
    import asyncio

    gc.disable()  # Until the node is up: nearly all that is made on the way there stays for good.
    try:
        asyncio.run(_serve(settings, format, ephemeral))
    except OSError as error:
        raise Failure(explain_os_error(error, settings)) from error


async def _serve(settings: "NodeSettings", format: str, ephemeral: bool) -> None:
    import asyncio
    import signal

    from anabranch.node import Node

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    node = Node(settings)
    await node.start()
    settle_memory()
    announce(node, settings, format, ephemeral)
    await stopping.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A second Ctrl-C must be able to end a stop that hangs.
        loop.remove_signal_handler(number)
    try:
        await asyncio.wait_for(node.stop(), STOP_SECONDS_MAX)
    except TimeoutError:
        raise Failure(
            f"The node did not stop within {STOP_SECONDS_MAX} s and was ended: the next start recovers."
        ) from None


def settle_memory() -> None:
    """What is there now is left out of every later search for garbage, which would hold up requests; and what requests
    free is kept for the next ones."""
    from anabranch.record.form import COMPILED

    gc.freeze()
    gc.enable()
    if COMPILED:
        from anabranch.record._fast import keep_freed_memory

        keep_freed_memory(KEPT_BYTES_MAX)


def announce(node: "Node", settings: "NodeSettings", format: str, ephemeral: bool) -> None:
    from anabranch.cli.banner import banner, facts

    if format == "json":
        import json

        click.echo(json.dumps(facts(node, settings, ephemeral)))
    else:
        click.echo(banner(node, settings, ephemeral))


def explain_os_error(error: OSError, settings: "NodeSettings") -> str:
    """What the operating system refused, as a sentence and the next step."""
    import errno

    if error.errno == errno.ENOSPC:
        return f"The disk of {settings.data_dir} is full: make room, or choose another --data-dir."
    if error.filename is not None:
        return f"{error.filename} cannot be used ({error.strerror}): choose another --data-dir."
    return f"The system refused ({error.strerror or error}): `anabranch doctor` checks this machine."
