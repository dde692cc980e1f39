"""`anabranch up`: run one node until SIGINT or SIGTERM.

With `--peer-listen` it is a broker of a cluster, with `--workers` several of them in processes of their own. Nothing
slow is imported before the port answers. Settings come from `--config` (one file may serve many brokers), then
`--set`, then the options, the later winning. With `--format json` stdout carries exactly one line, once clients can
connect. A stop answers what was accepted and exits 0; one that takes longer than `STOP_SECONDS_MAX` is given up with
exit code 1, and the next start recovers as after a crash.
"""

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Command, Failure, WrongCommandLine, format_option, pairs_of
from anabranch.cli.node.logs import LEVELS
from anabranch.errors import InvalidConfigError

if TYPE_CHECKING:
    import asyncio

    from anabranch.config import NodeSettings
    from anabranch.node import Node

STOP_SECONDS_MAX = 4.5
LEAVE_SECONDS_MAX = 8.0
"""What a broker of a cluster may take beyond that: it hands over before it stops."""
SWITCH_SECONDS = 0.001
"""How long a worker may keep the interpreter from the loop, which needs it anew after each system call, while everybody
who is connected waits. Python's default is five times as much."""


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
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    help="Serve records by HTTP and WebSocket there, /metrics and /healthz. [nowhere]",
)
@click.option("--broker-id", metavar="N", help="The number of this broker in its cluster. [0]")
@click.option(
    "--peer-listen", metavar="HOST:PORT", help="Be a broker of a cluster: where the others connect. [alone]"
)
@click.option(
    "--join",
    "joins",
    metavar="HOST:PORT",
    multiple=True,
    help="The peer address of any broker of the cluster to join; may be repeated. [begin a cluster]",
)
@click.option("--cluster-secret-file", metavar="FILE", help="What the brokers of a cluster share and prove.")
@click.option(
    "--object-store",
    metavar="URL",
    help="Where topics in mode object are kept: file:///PATH, s3://BUCKET/PREFIX, gs://... or az://...",
)
@click.option("--rack", metavar="NAME", help="Where this broker stands: copies are spread over racks.")
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Run N broker processes as one cluster on this machine, on ports from --listen on.",
)
@click.option(
    "--exit-with-parent",
    type=int,
    metavar="PID",
    hidden=True,
    help="Stop when this process, the parent, ends.",
)
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
    from anabranch.cli.node.logs import log_to_stderr

    if options["workers"] is not None:
        from anabranch.cli.cluster.workers import run_workers

        run_workers(config_file, log_level, format, options)
        return
    log_to_stderr(log_level or ("error" if format == "json" else "warning"))
    if options["exit_with_parent"] is not None:
        from anabranch.local_cluster.exit_with_parent import exit_with_parent

        exit_with_parent(int(str(options["exit_with_parent"])))
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
    from anabranch.config import NodeSettings

    return NodeSettings.load(given_settings(config_file, options))


SETTING_OF_OPTION = {
    "listen": "listen",
    "data_dir": "data.dir",
    "flush": "flush",
    "advertise": "advertise",
    "http": "http",
    "broker_id": "broker.id",
    "peer_listen": "peer.listen",
    "cluster_secret_file": "cluster.secret.file",
    "rack": "broker.rack",
    "object_store": "object.store",
}


def given_settings(config_file: str | None, options: dict[str, object]) -> dict[str, object]:
    """What the file, `--set` and the options say, not yet judged."""
    from anabranch.config import read_settings_file, settings_of_broker

    sets, joins = options["sets"], options.get("joins", ())
    assert isinstance(sets, tuple)
    assert isinstance(joins, tuple)
    said: dict[str, object] = dict(pairs_of(sets, "--set", "log.retention.ms=60000"))
    for option, name in SETTING_OF_OPTION.items():
        if options.get(option) is not None:
            said[name] = options[option]
    if options.get("allow_unauthenticated"):
        said["allow.unauthenticated"] = True
    if joins:
        said["peer.join"] = list(joins)
    file = read_settings_file(config_file) if config_file else {}
    settings = {**settings_of_broker(file, said.get("broker.id")), **said}
    _check_cluster(settings)
    return settings


def _check_cluster(settings: dict[str, object]) -> None:
    for name, option in (
        ("peer.join", "--join"),
        ("cluster.secret.file", "--cluster-secret-file"),
        ("peer.advertise", "peer.advertise"),
    ):
        if settings.get(name) and not settings.get("peer.listen"):
            raise WrongCommandLine(
                f"{option} is for a broker of a cluster, and this one would listen to no other: add --peer-listen, "
                f"or leave {option} out."
            )
    if settings.get("peer.listen"):
        require_shared_store(settings)
    listen = settings.get("listen")
    if listen is not None and listen == settings.get("peer.listen") and not str(listen).endswith(":0"):
        raise WrongCommandLine(
            f"listen and peer.listen are both {listen}: clients and brokers need a port each."
        )


def require_shared_store(settings: dict[str, object]) -> None:
    """Every broker here is a process of its own."""
    if str(settings.get("object.store") or "").startswith("memory:"):
        raise WrongCommandLine(
            "object.store=memory: is seen by one process only, and the brokers of a cluster need one that all of them "
            "see: choose file:///PATH or a bucket."
        )


def prepare_folder(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Failure(
            f"The data folder {folder} cannot be made ({error.strerror}): choose another --data-dir."
        ) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Failure(
            f"The data folder {folder} is not writable: change its owner or choose another --data-dir."
        )


def run(settings: "NodeSettings", format: str, *, ephemeral: bool) -> None:
    import asyncio

    gc.disable()  # Until the node is up: nearly all that is made on the way there stays for good.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        asyncio.run(_serve(settings, format, ephemeral))
    except OSError as error:
        raise Failure(explain_os_error(error, settings)) from error
    except InvalidConfigError as error:  # The command line is right: what it names is not.
        raise Failure(str(error)) from error


async def _serve(settings: "NodeSettings", format: str, ephemeral: bool) -> None:
    import asyncio
    import signal

    from anabranch.cli.node.memory import can_return_memory, return_freed_memory, settle_memory
    from anabranch.node import Node

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    node = Node(settings)
    starting, asked = loop.create_task(node.start()), loop.create_task(stopping.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        await starting
        settle_memory()
        announce(node, settings, format, ephemeral)
        returning = loop.create_task(return_freed_memory()) if can_return_memory() else None
        await asked
        if returning is not None:
            returning.cancel()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A second Ctrl-C must be able to end a stop that hangs.
        loop.remove_signal_handler(number)
    seconds_max = STOP_SECONDS_MAX + (LEAVE_SECONDS_MAX if settings.peer_listen else 0.0)
    try:
        await asyncio.wait_for(stop(node, starting), seconds_max)
    except TimeoutError:
        raise Failure(
            f"The node did not stop within {seconds_max} s and was ended: the next start recovers."
        ) from None


async def stop(node: "Node", starting: "asyncio.Task[None]") -> None:
    """Also one that is still starting, which may take for ever where brokers wait for each other."""
    import asyncio

    if starting.done():
        await node.stop()
        return
    starting.cancel()
    await asyncio.wait((starting,))
    if not starting.cancelled():
        await starting


def announce(node: "Node", settings: "NodeSettings", format: str, ephemeral: bool) -> None:
    from anabranch.cli.node.banner import banner, facts

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
