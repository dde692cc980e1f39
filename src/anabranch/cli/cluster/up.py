"""`anabranch cluster up`: a local cluster of real processes, one per broker, in one folder.

The first start chooses ports and writes them to DIR/cluster.toml; every later start finds the same cluster there.
Settings given here apply to every broker, for this run only.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Command, Failure, WrongCommandLine, format_option
from anabranch.cli.node.logs import LEVELS

if TYPE_CHECKING:
    from anabranch.local_cluster.layout import Layout

BROKERS_DEFAULT = 3
FIRST_PORT = 9092
OF_ONE_BROKER = frozenset(
    {"broker.id", "listen", "advertise", "http", "data.dir", "peer.listen", "peer.advertise", "peer.join"}
    | {"cluster.secret.file", "broker.rack"}
)
"""Settings that cannot be the same for all brokers, or that the folder decides."""


@click.command(name="up", cls=Command)
@click.option("--brokers", type=int, metavar="N", help="How many brokers. [3, or as many as the folder has]")
@click.option(
    "--data-dir",
    default="anabranch-cluster",
    metavar="DIR",
    show_default=True,
    help="The folder of the whole cluster.",
)
@click.option(
    "--listen-base",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="The first port: N for Kafka, one per broker, then N for peers, then N for HTTP. [the first free from 9092]",
)
@click.option(
    "--flush", type=click.Choice(["always", "interval", "os"]), help="When records are synced. [always]"
)
@click.option(
    "--object-store",
    metavar="URL",
    help="Where topics in mode object are kept: file:///PATH, s3://BUCKET/PREFIX ... Remembered in DIR/cluster.toml.",
)
@click.option(
    "--config", "config_file", metavar="FILE", help="Read settings for all brokers from a TOML file."
)
@click.option(
    "--set", "sets", metavar="NAME=VALUE", multiple=True, help="A setting for all brokers; may be repeated."
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), help="What brokers write to their log files. [warning]"
)
@format_option(help_text="A banner, or one JSON line once every broker answers.")
def command(
    brokers: int | None,
    data_dir: str,
    listen_base: int | None,
    config_file: str | None,
    log_level: str | None,
    format: str,
    **options: object,
) -> None:
    """Start a local cluster and run it until Ctrl-C."""
    from anabranch.cli.cluster.run import run_cluster

    settings = settings_for_all(config_file, options)
    layout = choose_layout(Path(data_dir), brokers, listen_base)
    run_cluster(with_store(layout, settings), arguments_of(settings, log_level), format)


def settings_for_all(config_file: str | None, options: dict[str, object]) -> dict[str, object]:
    """The settings that every broker is started with, checked before anything starts."""
    from anabranch.cli.node.up import given_settings, require_shared_store
    from anabranch.config import NodeSettings

    settings = given_settings(config_file, options)
    for name in sorted(OF_ONE_BROKER & settings.keys()):
        raise WrongCommandLine(f"{name} differs between brokers and is chosen by this command: leave it out.")
    NodeSettings.load(settings)
    require_shared_store(settings)
    return settings


def arguments_of(settings: dict[str, object], log_level: str | None) -> list[str]:
    """The command line of every broker."""
    arguments = ["--log-level", log_level or "warning"]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={_as_text(value)}"]
    return arguments


def _as_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def with_store(layout: "Layout", settings: dict[str, object]) -> "Layout":
    """The same cluster with the object store that was named now. It is remembered, because without it, or with another,
    the records in it could not be found."""
    from dataclasses import replace

    named = settings.get("object.store")
    if named is None or named == layout.object_store:
        return layout
    if layout.object_store is not None:
        raise Failure(
            f"{layout.config_file} names another object store, which holds the records of its topics: leave "
            "--object-store out or, if all objects were moved, change it in the file."
        )
    return replace(layout, object_store=str(named))


def choose_layout(folder: Path, count: int | None, listen_base: int | None) -> "Layout":
    """The cluster of this folder, or a new one on free ports. Raises LocalClusterError if there cannot be one."""
    from anabranch.local_cluster.layout import (
        LOCAL_HOST,
        hold,
        make_layout,
        read_layout,
        require_cluster_folder,
        require_count,
    )
    from anabranch.local_cluster.ports import free_block, require_free

    require_count(count if count is not None else BROKERS_DEFAULT)
    require_cluster_folder(folder)
    os.close(hold(folder))
    known = read_layout(folder)
    if known is not None:
        _require_same(known, count, listen_base)
        require_known_ports(known)
        return known
    count = count if count is not None else BROKERS_DEFAULT
    if listen_base is None:
        ports = free_block(LOCAL_HOST, 3 * count, FIRST_PORT)
    else:
        ports = range(listen_base, listen_base + 3 * count)
        require_free(LOCAL_HOST, ports)
    return make_layout(folder, ports[:count], ports[count : 2 * count], ports[2 * count :])


def _require_same(known: "Layout", count: int | None, listen_base: int | None) -> None:
    from anabranch.config import host_and_port

    if count is not None and count != len(known.places):
        raise Failure(
            f"{known.folder} holds a cluster of {len(known.places)} brokers, not {count}: leave --brokers out, or "
            "choose another --data-dir."
        )
    first = host_and_port(known.places[0].kafka)[1]
    if listen_base is not None and listen_base != first:
        raise Failure(
            f"{known.folder} holds a cluster whose ports begin at {first}, not {listen_base}: leave --listen-base out, "
            f"or change {known.config_file}."
        )


def require_known_ports(known: "Layout") -> None:
    from anabranch.config import host_and_port
    from anabranch.local_cluster.ports import is_free

    for place in known.places:
        for address in (place.kafka, place.peer, place.http):
            if address is not None and not is_free(*host_and_port(address)):
                raise Failure(
                    f"{address} is taken by another process: stop it, or change the port in {known.config_file}."
                )
