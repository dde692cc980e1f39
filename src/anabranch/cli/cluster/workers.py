"""`anabranch up --workers N`: one broker process per core, as brokers of one cluster on this machine.

Their Kafka ports are consecutive from `--listen` on. Their peer ports are free ones, remembered in the data folder as
those of `cluster up` are. Options that make sense for one broker only are refused.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import DEFAULT_BOOTSTRAP, Failure

if TYPE_CHECKING:
    from anabranch.local_cluster.layout import Layout

OF_ONE_BROKER = {
    "broker_id": "--broker-id",
    "peer_listen": "--peer-listen",
    "joins": "--join",
    "cluster_secret_file": "--cluster-secret-file",
    "rack": "--rack",
    "advertise": "--advertise",
}
PEER_PORTS_ABOVE = 100
"""Peer ports are the first free ones this far above the Kafka ports."""


def run_workers(
    config_file: str | None, log_level: str | None, format: str, options: dict[str, object]
) -> None:
    from anabranch.cli.cluster.run import run_cluster
    from anabranch.cli.node.up import data_folder

    for option, flag in OF_ONE_BROKER.items():
        if options[option]:
            raise click.UsageError(
                f"{flag} is for one broker and --workers starts several: choose one of the two."
            )
    with data_folder(bool(options["ephemeral"]), options["data_dir"]) as folder:
        layout, arguments = plan_workers(config_file, log_level, {**options, "data_dir": folder})
        run_cluster(layout, arguments, format, ephemeral=bool(options["ephemeral"]))


def plan_workers(
    config_file: str | None, log_level: str | None, options: dict[str, object]
) -> "tuple[Layout, list[str]]":
    from anabranch.cli.cluster.up import arguments_of, settings_for_all, with_store
    from anabranch.cli.node.up import given_settings
    from anabranch.config import NodeSettings, host_and_port, http_host_and_port
    from anabranch.local_cluster.layout import require_cluster_folder, require_count

    count = int(str(options["workers"]))
    require_count(count)
    settings = NodeSettings.load(given_settings(config_file, options))
    rest = {**options, "listen": None, "http": None, "data_dir": None}
    for_all = settings_for_all(config_file, rest)
    folder = Path(settings.data_dir)
    require_cluster_folder(folder)
    host, first = host_and_port(settings.listen)
    http = None if settings.http is None else http_host_and_port(settings.http)
    layout = with_store(_layout(folder, count, host, first, http), for_all)
    return layout, arguments_of(for_all, log_level)


def _layout(folder: Path, count: int, host: str, first: int, http: tuple[str, int] | None) -> "Layout":
    from dataclasses import replace

    from anabranch.local_cluster.layout import LOCAL_HOST, make_layout, read_layout
    from anabranch.local_cluster.ports import free_block, require_free

    known = read_layout(folder)
    if known is not None and len(known.places) != count:
        raise Failure(
            f"{folder} holds a cluster of {len(known.places)} brokers, not {count}: use --workers "
            f"{len(known.places)}, or choose another --data-dir."
        )
    if first == 0:
        kafka = free_block(host, count, int(DEFAULT_BOOTSTRAP.rpartition(":")[2]))
    else:
        kafka = range(first, first + count)
        require_free(host, kafka)
    http_ports = None if http is None else range(http[1], http[1] + count)
    if known is None:
        return make_layout(
            folder, kafka, free_block(LOCAL_HOST, count, kafka.stop + PEER_PORTS_ABOVE), http_ports, host
        )
    peers = [int(place.peer.rpartition(":")[2]) for place in known.places]
    return replace(make_layout(folder, kafka, peers, http_ports, host), object_store=known.object_store)
