"""Run a local cluster from its banner to its end, for `cluster up` and `up --workers`.

The first SIGINT or SIGTERM stops all brokers cleanly, a second one kills them. Exit code 0: all brokers ran until they
were asked to stop, and stopped cleanly; 1: one of them exited on its own or did not stop.
"""

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

import click

from anabranch.cli.common import Failure, show_json

if TYPE_CHECKING:
    from anabranch.local_cluster.broker_process import BrokerProcess
    from anabranch.local_cluster.layout import Layout
    from anabranch.local_cluster.supervisor import Supervisor


def run_cluster(layout: "Layout", arguments: list[str], format: str, *, ephemeral: bool = False) -> None:
    from anabranch.local_cluster.layout import hold, prepare
    from anabranch.local_cluster.supervisor import Supervisor

    hold(layout.folder)
    prepare(layout)
    supervisor = Supervisor(layout, arguments)
    stopping = _stop_on_signals(supervisor)
    supervisor.start(stopping)
    if not stopping.is_set():
        _announce(supervisor, format, ephemeral)
        supervisor.watch(stopping, lambda process: _tell_end(process, format))
    unclean = supervisor.stop()
    if supervisor.ended:
        raise Failure(f"{_brokers(supervisor.ended)} exited before the cluster was stopped.")
    if unclean:
        raise Failure(f"{_brokers(unclean)} did not stop cleanly: the next start recovers as after a crash.")


def _stop_on_signals(supervisor: "Supervisor") -> threading.Event:
    stopping = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            supervisor.kill()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return stopping


def _announce(supervisor: "Supervisor", format: str, ephemeral: bool) -> None:
    if format == "json":
        show_json(supervisor.facts())
    else:
        from anabranch.cli.node.banner import cluster_banner

        click.echo(
            cluster_banner(supervisor.layout, [process.pid for process in supervisor.processes], ephemeral)
        )


def _tell_end(process: "BrokerProcess", format: str) -> None:
    code = process.exit_code
    assert code is not None
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    words = process.last_sentence()
    text = f"Broker {process.broker_id} (process {process.pid}) {how}; the others keep running."
    if words:
        text += f" Its last message: {words}"
    click.echo(_as_json(process, code, words) if format == "json" else text, err=True)


def _as_json(process: "BrokerProcess", code: int, words: str) -> str:
    import json

    return json.dumps(
        {"ended": process.broker_id, "pid": process.pid, "exit_code": code, "last_words": words}
    )


def _brokers(broker_ids: list[int]) -> str:
    return f"Broker{'s' if len(broker_ids) > 1 else ''} {', '.join(map(str, broker_ids))}"
