"""What the config APIs share: which resources have configs here, and how an alteration is carried out."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.errors import AnabranchError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from anabranch.broker.broker import Broker
    from anabranch.broker.topics import TopicState

TOPIC, BROKER = 2, 4
DELETE = 1
TYPE_NAMES = {TOPIC: "topic", BROKER: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}


def topic_of(broker: "Broker", name: str) -> "TopicState":
    broker.topics.check_name(name)
    return broker.topics.known(name)


def check_broker(broker: "Broker", name: str) -> None:
    if name not in ("", str(broker.id)):
        raise InvalidRequestError(f"There is no broker {name!r}: this one is {broker.id}.")


def no_such_type(resource_type: int) -> InvalidRequestError:
    name = TYPE_NAMES.get(resource_type, f"type {resource_type}")
    return InvalidRequestError(f"There are no configs of a {name} here: ask for a topic or a broker.")


async def alter_each(
    broker: "Broker",
    request: dict[str, Any],
    overrides_of: "Callable[[TopicState, list[dict[str, Any]]], Mapping[str, str | None]]",
) -> dict[str, Any]:
    """Both alter APIs: `overrides_of` says what a topic's overrides become."""
    times = Counter((each["resource_type"], each["resource_name"]) for each in request["resources"])
    rows = []
    for resource in request["resources"]:
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
        check_broker(broker, resource["resource_name"])
        raise InvalidRequestError(
            "The settings of a node are fixed while it runs: restart it with --set name=value."
        )
    if resource["resource_type"] != TOPIC:
        raise no_such_type(resource["resource_type"])
    state = topic_of(broker, resource["resource_name"])
    configs = resource["configs"]
    if len({config["name"] for config in configs}) < len(configs):
        raise InvalidRequestError("A config is altered twice in one request.")
    _check_values(configs)
    if only_validate:
        broker.topics.check_overrides(overrides_of(state, configs))
    else:
        await broker.topics.alter(state.topic.name, lambda now: overrides_of(now, configs))


def _check_values(configs: list[dict[str, Any]]) -> None:
    """Only a deletion comes without a value."""
    for config in configs:
        if config["value"] is None and config.get("config_operation") != DELETE:
            raise InvalidRequestError(f"{config['name']} has no value: to reset it, delete it.")
