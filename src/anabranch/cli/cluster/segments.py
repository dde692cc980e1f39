"""`anabranch cluster segments`: the segments that brokers collect for the object store, and its objects."""

import json
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.client import Broker, broker_options
from anabranch.cli.common import Command, Failure, format_option, show_json, show_table

if TYPE_CHECKING:
    from anabranch.errors import ClusterAnswerError
    from anabranch.local_cluster.cluster_client import ClusterClient

OBJECTS_RESOURCE = 100
"""Our own type of resource in DescribeConfigs."""
Facts = dict[str, Any]


@click.command(cls=Command)
@broker_options
@format_option()
def segments(broker: Broker, format: str) -> None:
    """Show the segments that brokers collect for the object store, their states, and the objects in it."""
    from anabranch.cli.cluster.view import read_view
    from anabranch.local_cluster.cluster_client import ClusterClient

    broker.require_answer()
    with ClusterClient(broker.bootstrap, broker.seconds_max) as client:
        answers = read_facts(client, read_view(client).live)
    known = {broker_id: facts for broker_id, facts in answers.items() if isinstance(facts, dict)}
    refusals = {broker_id: facts for broker_id, facts in answers.items() if isinstance(facts, str)}
    if not known:
        raise Failure(" ".join(dict.fromkeys(refusals.values())))
    if format == "json":
        show_json({"brokers": known, "without": refusals})
        return
    show_table(
        ["#broker", "state", "#number", "#batches", "#bytes", "#age ms", "#failures"],
        [row for broker_id, facts in known.items() for row in _rows(broker_id, facts)],
        _title(known),
    )
    for line in refusals.values():
        click.echo(line)


def read_facts(client: "ClusterClient", broker_ids: list[int]) -> dict[int, Facts | str]:
    """What each broker says of its object store, or why it says nothing."""
    from anabranch.wire.api_keys import ApiKey

    bodies = {
        broker_id: {
            "resources": [
                {
                    "resource_type": OBJECTS_RESOURCE,
                    "resource_name": str(broker_id),
                    "configuration_keys": None,
                }
            ]
        }
        for broker_id in broker_ids
    }
    answers = client.ask_each(ApiKey.DESCRIBE_CONFIGS, bodies)
    return {broker_id: _facts(broker_id, answer) for broker_id, answer in answers.items()}


def _facts(broker_id: int, answer: "dict[str, Any] | ClusterAnswerError") -> Facts | str:
    from anabranch.errors import ClusterAnswerError

    if isinstance(answer, ClusterAnswerError):
        return str(answer)
    (row,) = answer["results"]
    if row["error_code"]:
        return row["error_message"] or f"Broker {broker_id} refused without a reason."
    facts = {config["name"]: json.loads(config["value"]) for config in row["configs"]}
    return {
        "store": facts["store"],
        "segments": [value for name, value in facts.items() if name.startswith("segment.")],
        "flushed": facts["flushed"],
        "objects": facts["objects"],
    }


def _rows(broker_id: int, facts: Facts) -> list[tuple[object, ...]]:
    flushed = facts["flushed"]
    rows = [
        (
            broker_id,
            each["state"],
            each["number"],
            each["batches"],
            each["bytes"],
            each["age_ms"],
            each["failures"],
        )
        for each in facts["segments"]
    ]
    done = (
        broker_id,
        f"FLUSHED: {flushed['segments']} since its start",
        None,
        flushed["batches"],
        flushed["bytes"],
        None,
        flushed["failures"],
    )
    return [*rows, done]


def _title(known: dict[int, Facts]) -> str:
    """The agreed totals, from the broker that knows most of them."""
    facts = max(known.values(), key=lambda each: int(each["objects"]["rows"]))
    objects = facts["objects"]
    waiting = objects["unreferenced"] + objects["tombstoned"]
    return (
        f"{facts['store']['url']}: {objects['written']} written and {objects['merged']} merged objects hold "
        f"{objects['bytes']} bytes of {objects['partitions']} partitions; {waiting} are waiting to be deleted"
    )
