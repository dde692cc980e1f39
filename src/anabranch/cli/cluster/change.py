"""`anabranch cluster add|drain|remove`: move partitions onto or off a broker, and take a broker out of the cluster.

The moves are Kafka's AlterPartitionReassignments. The command waits until every partition is where it should be, for as
long as ListPartitionReassignments lists moves. Ctrl-C ends the waiting, not the moves; running the same command again
resumes it. While brokers restart or the metadata quorum elects a leader, every request is retried for a while: all of
them are safe to repeat.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, confirm, format_option, show_json, yes_option
from anabranch.errors import ClusterAnswerError, ClusterBusyError

if TYPE_CHECKING:
    from anabranch.cli.cluster.plan import Move
    from anabranch.cli.cluster.view import ClusterView
    from anabranch.local_cluster.cluster_client import ClusterClient

T = TypeVar("T")

LOOK_SECONDS = 0.5
MOVES_PER_REQUEST = 1000
"""Keeps a request below `request.elements.max`: a move has one element for each replica."""
NAMED_MAX = 20
PATIENCE_SECONDS = 30.0
"""How long a cluster that changes its leaders may be silent or list no moves before that is an error."""

LOOK_AT_BROKERS_SECONDS = 2.0

wait_option = click.option("--no-wait", is_flag=True, help="Return once the moves are under way.")
broker_argument = click.argument("broker_id", metavar="ID", type=click.IntRange(min=0))


@click.command(cls=Command)
@broker_argument
@wait_option
@broker_options
@format_option()
def add(broker_id: int, no_wait: bool, broker: Broker, format: str) -> None:
    """Move partitions onto a broker that has joined."""
    from anabranch.cli.cluster.plan import moves_onto

    with _client(broker) as client:
        view = _view(client, broker_id)
        if view.brokers[broker_id].is_fenced:
            raise Failure(
                f"Broker {broker_id} is fenced, so nothing can move there: start it, then run this again."
            )
        moves = moves_onto(view, broker_id)
        _say_draining(client, broker_id, is_draining=False)
        _carry_out(client, moves, wait=not no_wait, format=format)
    _tell(format, "added", broker_id, moves, no_wait)


@click.command(cls=Command)
@broker_argument
@wait_option
@broker_options
@format_option()
def drain(broker_id: int, no_wait: bool, broker: Broker, format: str) -> None:
    """Move everything off a broker; it stays in the cluster."""
    with _client(broker) as client:
        view = _view(client, broker_id)
        moves = _drain_plan(view, broker_id)
        _say_draining(client, broker_id, is_draining=True)
        _carry_out(client, moves, wait=not no_wait, format=format)
        if not no_wait:
            _wait_for_others(client, broker_id, format)
    _tell(format, "drained", broker_id, moves, no_wait)


@click.command(cls=Command)
@broker_argument
@click.option(
    "--stop-timeout", type=click.FloatRange(min=0), default=120.0, show_default=True, metavar="SECONDS",
    help="How long to wait for its process to stop.",
)  # fmt: skip
@yes_option
@broker_options
@format_option()
def remove(broker_id: int, stop_timeout: float, yes: bool, broker: Broker, format: str) -> None:
    """Take a broker out of the cluster for good, once its partitions have moved and its process has stopped.

    Refused while it holds the only copy of a partition: `anabranch cluster drain` moves those away.
    """
    with _client(broker) as client:
        view = _view(client, broker_id)
        _require_copies(view, broker_id)
        moves = _drain_plan(view, broker_id)
        confirm(f"Remove broker {broker_id} and move {len(moves)} partitions off it?", yes)
        _say_draining(client, broker_id, is_draining=True)
        _carry_out(client, moves, wait=True, format=format)
        _wait_for_others(client, broker_id, format)
        view = _wait_for_stop(client, broker_id, stop_timeout, format)
        # Partitions may have been placed there in the meantime.
        _require_copies(view, broker_id)
        _carry_out(client, _drain_plan(view, broker_id), wait=True, format=format)
        _unregister(client, broker_id)
    if format == "json":
        show_json({"removed": broker_id, "moved": len(moves)})
    else:
        click.echo(f"Removed broker {broker_id}; its data folder is no longer needed.")


def _require_copies(view: "ClusterView", broker_id: int) -> None:
    from anabranch.cli.cluster.plan import kept_nowhere_else

    alone = kept_nowhere_else(view, broker_id)
    if alone and view.brokers[broker_id].is_fenced:
        raise Failure(
            f"Broker {broker_id} is not up and holds the only copy of {_named(alone)}: start it again, then run "
            f"`anabranch cluster drain {broker_id}`. If its disk is lost, start it with an empty folder and --join, "
            "which gives up these records."
        )
    if alone:
        raise Failure(
            f"Broker {broker_id} holds the only copy of {_named(alone)}: move them away first with "
            f"`anabranch cluster drain {broker_id}`."
        )


def _wait_for_stop(client: "ClusterClient", broker_id: int, seconds_max: float, format: str) -> "ClusterView":
    """Wait until the broker is fenced: one that still ran would only join again."""
    deadline = time.monotonic() + seconds_max
    view = _view(client, broker_id)
    if not view.brokers[broker_id].is_fenced and format != "json":
        click.echo(f"Broker {broker_id} no longer keeps anything: stop its process now.", err=True)
    while not view.brokers[broker_id].is_fenced:
        if time.monotonic() > deadline:
            raise Failure(
                f"Broker {broker_id} no longer keeps anything, but still runs and would join again: stop its process, "
                "then run this again."
            )
        time.sleep(LOOK_SECONDS)
        view = _view(client, broker_id)
    return view


# --- what they share --------------------------------------------------------------------------------------


def _client(broker: Broker) -> "ClusterClient":
    from anabranch.local_cluster.cluster_client import ClusterClient

    broker.require_answer()
    return ClusterClient(broker.bootstrap, broker.seconds_max)


def patiently(ask: Callable[[], T]) -> T:
    """Retry until there is an answer. Raises ClusterBusyError if there is none for a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except ClusterBusyError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_SECONDS)


def _view(client: "ClusterClient", broker_id: int) -> "ClusterView":
    from anabranch.cli.cluster.view import read_view

    view = patiently(lambda: read_view(client))
    if broker_id not in view.brokers:
        known = ", ".join(map(str, view.brokers))
        raise Failure(f"There is no broker {broker_id} in this cluster: it has {known}.")
    return view


def _drain_plan(view: "ClusterView", broker_id: int) -> "list[Move]":
    from anabranch.cli.cluster.plan import cannot_move, moves_off, shrunk

    moves = moves_off(view, broker_id)
    frozen = cannot_move(view, moves)
    if frozen:
        raise Failure(
            f"Too few copies are up to move {_named(frozen)}: start broker {broker_id} again first, with an empty "
            "folder if its disk is lost."
        )
    movable = {(move.topic, move.partition) for move in moves}
    stuck = [
        partition.name
        for partition in view.partitions
        if partition.is_assigned
        and broker_id in partition.replicas
        and (partition.topic, partition.partition) not in movable
    ]
    if stuck:
        raise Failure(f"No other broker that is up could take {_named(stuck)}: start or add one first.")
    fewer = shrunk(moves)
    if fewer:
        click.echo(f"Fewer copies than before, because there are too few brokers: {_named(fewer)}.", err=True)
    return moves


def _carry_out(client: "ClusterClient", moves: "list[Move]", *, wait: bool, format: str) -> None:
    if not moves:
        return
    _reassign(client, moves)
    if not wait:
        return
    heard = time.monotonic()
    left, progress, brokers = moves, _progress(format), BrokersMissed(is_quiet=format == "json")
    while left:
        try:
            moving = under_way(client)
            left = not_there_yet(moves, client.metadata())
            brokers.look(client, left)
        except ClusterAnswerError:
            if time.monotonic() - heard > PATIENCE_SECONDS:
                raise
        else:
            if any((move.topic, move.partition) in moving for move in left):
                heard = time.monotonic()
            elif left and time.monotonic() - heard > PATIENCE_SECONDS:
                stuck = [f"{move.topic}-{move.partition}" for move in left]
                raise Failure(
                    f"Nothing is moving any more, but not all partitions have arrived: {_named(stuck)}. Run this again."
                )
        progress(len(moves) - len(left), len(moves))
        if left:
            time.sleep(LOOK_SECONDS)


def _wait_for_others(client: "ClusterClient", broker_id: int, format: str) -> None:
    """Wait until other brokers write and hold what no reassignment moves: topics in mode branch, and topics on their
    way to the object store."""
    from anabranch.cli.cluster.plan import left_by_themselves
    from anabranch.cli.cluster.view import read_replicas

    def look() -> list[str]:
        view = _view(client, broker_id)
        return left_by_themselves(view, patiently(lambda: read_replicas(client, view.live)), broker_id)

    left: list[str] = []
    heard = time.monotonic()
    while now_left := look():
        if now_left != left:
            left, heard = now_left, time.monotonic()
            if format != "json":
                click.echo(f"Waiting for other brokers to take over {_named(left)}", err=True)
        elif time.monotonic() - heard > PATIENCE_SECONDS:
            raise Failure(
                f"Other brokers have not taken over {_named(left)} yet, and nothing has changed for a while: look at "
                "`anabranch cluster status` and `anabranch topic describe`, then run this again."
            )
        time.sleep(LOOK_SECONDS)


class BrokersMissed:
    """Watch for moves that wait for brokers which are not up: report them, and give up after a while."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._looked = self._since = time.monotonic()
        self._said = ""

    def look(self, client: "ClusterClient", left: "list[Move]") -> None:
        from anabranch.cli.cluster.plan import cannot_move
        from anabranch.cli.cluster.view import read_view

        now = time.monotonic()
        if now - self._looked < LOOK_AT_BROKERS_SECONDS:
            return
        self._looked, view = now, read_view(client)
        frozen = set(cannot_move(view, left))
        if not frozen:
            self._since, self._said = now, ""
            return
        kept_by = [move.before for move in left if f"{move.topic}-{move.partition}" in frozen]
        missed = sorted({each for replicas in kept_by for each in replicas if each not in view.live})
        why = f"too few copies are up to move {_named(sorted(frozen))} (brokers not up: {', '.join(map(str, missed))})"
        if now - self._since > PATIENCE_SECONDS:
            raise Failure(
                f"The moves are stuck: {why}. Bring those brokers back up: the moves then continue on their own."
            )
        if why != self._said and not self._is_quiet:
            self._said = why
            click.echo(f"Waiting: {why}.", err=True)


def not_there_yet(moves: "list[Move]", metadata: dict[str, Any]) -> "list[Move]":
    """Moves whose partition is not kept by the right brokers yet. A deleted topic needs none."""
    kept = {
        (topic["name"], row["partition_index"]): set(row["replica_nodes"])
        for topic in metadata["topics"]
        for row in topic["partitions"]
    }
    return [
        move for move in moves if kept.get((move.topic, move.partition), set(move.after)) != set(move.after)
    ]


def _reassign(client: "ClusterClient", moves: "list[Move]") -> None:
    for start in range(0, len(moves), MOVES_PER_REQUEST):
        some = moves[start : start + MOVES_PER_REQUEST]
        patiently(partial(_reassign_once, client, some))


def _reassign_once(client: "ClusterClient", moves: "list[Move]") -> None:
    from anabranch.cli.cluster.view import require
    from anabranch.local_cluster.cluster_client import refusal
    from anabranch.wire.api_keys import ApiKey
    from anabranch.wire.error_codes import ErrorCode

    topics: dict[str, list[dict[str, object]]] = {}
    for move in moves:
        row = {"partition_index": move.partition, "replicas": list(move.after)}
        topics.setdefault(move.topic, []).append(row)
    body = {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}
    answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
    require(answer["error_code"], answer["error_message"], "The cluster did not accept the moves")
    rows = [(topic["name"], row) for topic in answer["responses"] for row in topic["partitions"]]
    refused = [
        f"{name}-{row['partition_index']}: {refusal(row['error_code'], row['error_message'])}"
        for name, row in rows
        if row["error_code"]
        not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)  # Deleted: nothing to move.
    ]
    passing = (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
    )
    if refused and all(row["error_code"] in passing for _, row in rows):
        raise ClusterBusyError(f"Some partitions are not moving yet: {_named(refused)}. Run this again.")
    if refused:
        raise Failure(f"Some partitions may not move: {_named(refused)}.")


def under_way(client: "ClusterClient") -> set[tuple[str, int]]:
    """Partitions that are moving."""
    from anabranch.cli.cluster.view import require
    from anabranch.wire.api_keys import ApiKey

    answer = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None})
    require(answer["error_code"], answer["error_message"], "The moves were not listed")
    return {
        (topic["name"], row["partition_index"]) for topic in answer["topics"] for row in topic["partitions"]
    }


def _say_draining(client: "ClusterClient", broker_id: int, *, is_draining: bool) -> None:
    """Set whether new partitions may be placed there; otherwise a drained broker would soon have some again."""
    from anabranch.cli.cluster.view import require
    from anabranch.wire.api_keys import ApiKey

    config = {"name": "broker.draining", "config_operation": 0, "value": "true" if is_draining else "false"}
    resource = {"resource_type": 4, "resource_name": str(broker_id), "configs": [config]}

    verb = "starts" if is_draining else "stops"

    def ask() -> None:
        answer = client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False}
        )
        row = answer["responses"][0]
        require(
            row["error_code"],
            row["error_message"],
            f"The cluster did not accept that broker {broker_id} {verb} draining",
        )

    patiently(ask)


def _unregister(client: "ClusterClient", broker_id: int) -> None:
    from anabranch.cli.cluster.view import require
    from anabranch.wire.api_keys import ApiKey
    from anabranch.wire.error_codes import ErrorCode

    tries = 0

    def ask() -> None:
        nonlocal tries
        tries += 1
        answer = client.ask(ApiKey.UNREGISTER_BROKER, {"broker_id": broker_id})
        if tries > 1 and answer["error_code"] == ErrorCode.BROKER_ID_NOT_REGISTERED:
            return  # An earlier attempt has done it.
        require(answer["error_code"], answer["error_message"], f"Broker {broker_id} was not removed")

    patiently(ask)


def _progress(format: str) -> Callable[[int, int], None]:
    """Report progress on stderr whenever it changes; say nothing when JSON was asked for."""
    last = [-1]

    def say(done: int, total: int) -> None:
        if format != "json" and done != last[0]:
            last[0] = done
            click.echo(f"{done} of {total} partitions have moved", err=True)

    return say


def _tell(format: str, verb: str, broker_id: int, moves: "list[Move]", is_under_way: bool) -> None:
    if format == "json":
        show_json({verb: broker_id, "moved": [move._asdict() for move in moves], "done": not is_under_way})
    elif not moves:
        click.echo(f"Nothing has to move for broker {broker_id}.")
    elif is_under_way:
        what = "1 partition is" if len(moves) == 1 else f"{len(moves)} partitions are"
        click.echo(f"{what} moving; `anabranch cluster ring` shows where they are.")
    else:
        what = "1 partition has" if len(moves) == 1 else f"{len(moves)} partitions have"
        click.echo(f"{what} moved: broker {broker_id} is {verb}.")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
