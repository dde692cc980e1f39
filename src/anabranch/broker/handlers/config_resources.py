"""What the config APIs share: which resources have configs here, and how an alteration is carried out."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.topics import internal_topics
from anabranch.cluster.metadata.entries import broker_draining_entry
from anabranch.cluster.metadata.residence import BRANCH, BRANCHED, OBJECT
from anabranch.cluster.metadata.rows import MODE_CONFIG
from anabranch.cluster.placement import RING, SOLO, check_ring_possible
from anabranch.config import ConfigEntry
from anabranch.errors import AnabranchError, InvalidConfigError, InvalidRequestError
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anabranch.broker.broker import Broker
    from anabranch.broker.topics.topics import TopicState
    from anabranch.cluster.metadata.rows import Placement, Topic

TOPIC, BROKER = 2, 4
OBJECTS = 100
"""What a broker says of its object store. Kafka has no such type, and none near."""
DELETE = 1
ALONE = (
    "start it from now on as the first broker of a cluster, with --peer-listen 127.0.0.1:0 and --cluster-secret-file "
    "FILE (made by: umask 077; openssl rand -hex 32 > FILE). It keeps all it has, and may stay the only one."
)
DRAINING = "broker.draining"
TYPE_NAMES = {TOPIC: "topic", BROKER: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}


def topic_of(broker: "Broker", name: str) -> "TopicState":
    broker.topics.check_name(name)
    return broker.topics.known(name)


def check_broker(broker: "Broker", name: str) -> None:
    """Only a broker itself knows what it was started with."""
    if name in ("", str(broker.id)):
        return
    if name in broker_names(broker):
        raise InvalidRequestError(f"Ask broker {name} itself for its settings: this one is {broker.id}.")
    raise InvalidRequestError(f"There is no broker {name!r}: this one is {broker.id}.")


def broker_names(broker: "Broker") -> list[str]:
    return [str(broker_id) for broker_id in sorted(broker.orchestrator.rows())]


def no_such_type(resource_type: int) -> InvalidRequestError:
    name = TYPE_NAMES.get(resource_type, f"type {resource_type}")
    return InvalidRequestError(f"There are no configs of a {name} here: ask for a topic or a broker.")


def with_mode(entries: list[ConfigEntry], placements: "Sequence[Placement]") -> list[ConfigEntry]:
    """A topic's configs, with the mode that holds if it has set none."""
    holds = RING if any(len(placement.replicas) > 1 for placement in placements) else SOLO
    return [
        entry._replace(value=holds) if entry.name == MODE_CONFIG and entry.value is None else entry
        for entry in entries
    ]


def _check_new_mode(broker: "Broker", topic: "Topic", overrides: Mapping[str, str | None]) -> None:
    """The records follow by themselves: the orchestrator moves what does not fit its mode."""
    mode = overrides.get(MODE_CONFIG)
    if mode == topic.mode:
        return
    if mode == BRANCH:
        _check_into_branches(broker, topic)
    elif topic.mode == BRANCH:
        _check_out_of_branches(broker, topic)
    if OBJECT in (mode, topic.mode):
        _check_store(broker, topic)
    if mode == SOLO and topic.is_internal:
        raise InvalidConfigError(
            f"{topic.name} is internal, and kept on as many brokers as there are for a ring."
        )
    if mode == RING:
        check_ring_possible(len(broker.orchestrator.keepers()))


def _check_into_branches(broker: "Broker", topic: "Topic") -> None:
    """Whether what brokers keep of a topic may become the first lane of its branches."""
    if topic.is_internal:
        raise InvalidConfigError(f"{topic.name} is internal, and kept by brokers: leave its mode out.")
    if broker.peers is None:
        raise InvalidConfigError(
            f"Topic {topic.name} cannot go into mode {BRANCH} on a node that runs alone: {ALONE}"
        )


def _check_out_of_branches(broker: "Broker", topic: "Topic") -> None:
    """Whether all who may have a branch of their own are there to promise that they open none more."""
    if BRANCHED not in topic.all_forms:
        return
    if topic.is_internal:
        raise InvalidConfigError(f"{topic.name} is internal: it has the mode that offsets.mode says.")
    if broker.peers is None:
        raise InvalidConfigError(
            f"Topic {topic.name} cannot go out of mode {BRANCH} on a node that runs alone: {ALONE}"
        )
    rows = broker.metadata.table.brokers.values()
    away = [
        str(row.broker_id)
        for row in sorted(rows, key=lambda row: row.broker_id)
        if row.is_fenced or not (row.broker_id == broker.id or broker.peers.is_up(row.broker_id))
    ]
    if away:
        raise InvalidConfigError(
            f"Topic {topic.name} cannot go out of mode {BRANCH} while broker {', '.join(away)} is not reached, who may "
            "have records that nobody else has: start it again, or take it out of the cluster for good with "
            "'anabranch cluster remove'."
        )


def _check_store(broker: "Broker", topic: "Topic") -> None:
    """Whether a topic may go into the object store, or out of it."""
    if topic.is_internal:
        raise InvalidConfigError(f"{topic.name} is internal, and kept by brokers: leave its mode out.")
    if broker.peers is None:
        raise InvalidConfigError(
            f"Topic {topic.name} cannot go into or out of the object store on a node that runs alone: {ALONE}"
        )
    if broker.objects is None:
        raise InvalidConfigError(
            f"Topic {topic.name} cannot go into or out of the object store: broker {broker.id}, which leads the "
            "cluster, was started without one. Start every broker with --object-store."
        )


async def alter_each(
    broker: "Broker",
    request: dict[str, Any],
    overrides_of: "Callable[[TopicState, list[dict[str, Any]]], Mapping[str, str | None]]",
) -> dict[str, Any]:
    """Both alter APIs: `overrides_of` says what a topic's overrides become."""
    times = Counter((each["resource_type"], each["resource_name"]) for each in request["resources"])
    pace = broker.turns.pace()
    rows = []
    for resource in request["resources"]:
        await pace.row()
        key = resource["resource_type"], resource["resource_name"]
        row = {"resource_type": key[0], "resource_name": key[1]}
        try:
            if times[key] > 1:  # Which of them counts is not said, so Kafka carries out none.
                raise InvalidRequestError(f"{key[1]} appears {times[key]} times in one request.")
            await _alter(broker, resource, overrides_of, only_validate=request["validate_only"])
        except AnabranchError as error:
            rows.append({**row, **refused(error)})
        else:
            rows.append({**row, **accepted()})
    return {"responses": rows}


async def _alter(
    broker: "Broker",
    resource: dict[str, Any],
    overrides_of: "Callable[[TopicState, list[dict[str, Any]]], Mapping[str, str | None]]",
    *,
    only_validate: bool,
) -> None:
    if resource["resource_type"] == BROKER:
        await _alter_broker(broker, resource, only_validate=only_validate)
        return
    if resource["resource_type"] != TOPIC:
        raise no_such_type(resource["resource_type"])
    state = topic_of(broker, resource["resource_name"])
    configs = resource["configs"]
    if len({config["name"] for config in configs}) < len(configs):
        raise InvalidRequestError("A config is altered twice in one request.")
    _check_values(configs)

    def altered(now: "TopicState") -> Mapping[str, str | None]:
        overrides = broker.topics.check_overrides(overrides_of(now, configs))
        internal_topics.check_overrides(now.topic.name, broker.settings, overrides, now.topic.overrides)
        _check_new_mode(broker, now.topic, overrides)
        return overrides

    if only_validate:
        altered(state)
    else:
        await broker.topics.alter(state.topic.name, altered)


async def _alter_broker(broker: "Broker", resource: dict[str, Any], *, only_validate: bool) -> None:
    """One thing about a broker is agreed on rather than set at its start: whether it drains."""
    name, configs = resource["resource_name"], resource["configs"]
    if name not in ("", *broker_names(broker)):
        check_broker(broker, name)
    if all(each.get("config_operation") == DELETE and each["name"] != DRAINING for each in configs):
        return  # What was changed while it ran is as it was: nothing was. Tools so clean up after a move.
    if not name or [config["name"] for config in configs] != [DRAINING]:
        raise InvalidRequestError(
            "The settings of a node are fixed while it runs: restart it with --set name=value."
        )
    is_draining = configs[0]["value"] == "true"
    if not is_draining and configs[0]["value"] not in ("false", None):
        raise InvalidConfigError(f"{DRAINING} is true or false, not {configs[0]['value']!r}.")
    async with broker.metadata.lock:
        others = [row for row in broker.orchestrator.keepers() if str(row.broker_id) != name]
        if is_draining and not others:
            raise InvalidRequestError(
                f"Broker {name} cannot be drained: there is no other that could take what it keeps. Add one first."
            )
        if not only_validate:
            await broker.metadata.commit(broker_draining_entry(BrokerId(int(name)), is_draining=is_draining))


def _check_values(configs: list[dict[str, Any]]) -> None:
    """Only a deletion comes without a value."""
    for config in configs:
        if config["value"] is None and config.get("config_operation") != DELETE:
            raise InvalidRequestError(f"{config['name']} has no value: to reset it, delete it.")


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    keys = dict.fromkeys((each["resource_type"], each["resource_name"]) for each in request["resources"])
    return {
        "responses": [{**refused(error), "resource_type": kind, "resource_name": name} for kind, name in keys]
    }
