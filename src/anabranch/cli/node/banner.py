"""What `anabranch up` says once clients can connect: where, how safe, and what to try next."""

import os
import shutil
import sys
from typing import TYPE_CHECKING

import anabranch
from anabranch.cli.common import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from anabranch.config import NodeSettings
    from anabranch.local_cluster.layout import Layout
    from anabranch.node import Node


def durability(settings: "NodeSettings") -> str:
    """The flush mode in words: what a power cut may take."""
    return {
        "always": "flush=always: acks=all is answered after the sync to disk",
        "interval": f"flush=interval: a power cut may lose the last {settings.flush_interval_ms} ms",
        "os": "flush=os: a power cut may lose what the system had not written yet",
    }[settings.flush]


def facts(node: "Node", settings: "NodeSettings", ephemeral: bool) -> dict[str, object]:
    """The one line of `--format json`."""
    return {
        "bootstrap": node.bootstrap,
        "http": node.http_address,
        "data_dir": os.path.abspath(node.data_dir),
        "persists": not ephemeral,
        "flush": settings.flush,
        "authentication": False,
        "pid": os.getpid(),
        "version": anabranch.__version__,
        **({} if settings.object_store is None else {"object_store": settings.object_store}),
        **_membership(node, settings),
    }


def _membership(node: "Node", settings: "NodeSettings") -> dict[str, object]:
    """What there is to say of a broker in a cluster; nothing of a node that is alone."""
    if not settings.peer_listen:
        return {}
    return {
        "broker_id": settings.broker_id,
        "peer": settings.peer_advertise or _bound(node) or settings.peer_listen,
        "cluster_id": node.broker.cluster_id,
    }


def _bound(node: "Node") -> str | None:
    """Where others find it, if the system chose the port."""
    if node.broker.peers_bound is None:
        return None
    host, port = node.broker.peers_bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cluster_lines(node: "Node", settings: "NodeSettings") -> str:
    member = _membership(node, settings)
    if not member:
        return ""
    rack = f" in rack {settings.broker_rack}" if settings.broker_rack else ""
    return f"""
  broker           {member["broker_id"]} of cluster {member["cluster_id"]}{rack}
  peer address     {member["peer"]}"""


def banner(node: "Node", settings: "NodeSettings", ephemeral: bool) -> str:
    where = os.path.abspath(node.data_dir)
    kept = "removed when the node stops" if ephemeral else "kept when the node stops"
    http = (
        f"http://{node.http_address} (records, WebSocket, /metrics)"
        if node.http_address
        else "off (--http :8080 for records by HTTP and WebSocket, and /metrics)"
    )
    bootstrap = "" if node.bootstrap == DEFAULT_BOOTSTRAP else f" --bootstrap {node.bootstrap}"
    command = command_to_type()
    return f"""anabranch {anabranch.__version__} is ready

  Kafka address    {node.bootstrap}{_cluster_lines(node, settings)}
  data folder      {where} ({kept}){_store_line(settings.object_store)}
  durability       {durability(settings)}
  authentication   off{_who_may_connect(settings)}
  HTTP             {http}

Try next, in another terminal:
  echo hello | {command} produce demo{bootstrap}
  {command} consume demo{bootstrap}
  {command} topic list{bootstrap}
Stop with Ctrl-C."""


def cluster_banner(layout: "Layout", pids: list[int], ephemeral: bool) -> str:
    """One banner for all brokers of a local cluster."""
    kept = "removed when the cluster stops" if ephemeral else "kept when the cluster stops"
    rows = "\n".join(
        f"  broker {place.broker_id:<9} {place.kafka}, peers {place.peer}{_http(place.http)}, process {pid}"
        for place, pid in zip(layout.places, pids, strict=True)
    )
    if len(pids) == 2:
        rows += "\n  failover         none: with two brokers both must be up; three go on without one"
    command, bootstrap = command_to_type(), f"--bootstrap {layout.places[0].kafka}"
    return f"""anabranch {anabranch.__version__}: a cluster of {len(pids)} brokers is ready

  bootstrap        {layout.bootstrap}
{rows}
  data folder      {layout.folder.absolute()} ({kept}){_store_line(layout.object_store)}
  logs             {layout.folder.absolute()}/broker-N.log

Try next, in another terminal:
  {command} cluster status {bootstrap}
  {command} cluster ring {bootstrap}
  echo hello | {command} produce demo {bootstrap}
Stop with Ctrl-C."""


def _store_line(url: str | None) -> str:
    return "" if url is None else f"\n  object store     {url}"


def _http(address: str | None) -> str:
    return "" if address is None else f", http://{address}"


def command_to_type() -> str:
    """How to call this program from the same folder: its name, or its path if it is not on PATH (`make run`)."""
    if shutil.which("anabranch"):
        return "anabranch"
    program = os.path.join(os.path.dirname(sys.executable), "anabranch")
    near = os.path.relpath(program)
    return near if not near.startswith("..") else program


def _who_may_connect(settings: "NodeSettings") -> str:
    from anabranch.config import host_and_port, http_host_and_port, is_loopback

    if not is_loopback(host_and_port(settings.listen)[0]):
        return " (anyone who reaches this address can read and write)"
    if not settings.http or is_loopback(http_host_and_port(settings.http)[0]):
        return " (only this machine can connect)"
    if settings.gateway_token_file:
        return " (only this machine can connect; by HTTP whoever has the token)"
    return " (anyone who reaches the HTTP address can read and write)"
