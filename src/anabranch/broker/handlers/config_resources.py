"""What the config APIs share: which resources have configs here, and how an alteration is carried out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.errors import (
    AnabranchError,
    InvalidConfigError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from anabranch.broker.broker import Broker
    from anabranch.broker.topics import TopicState

TOPIC, BROKER = 2, 4
TYPE_NAMES = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}


def topic_of(broker: "Broker", name: str) -> "TopicState":
    broker.topics.check_name(name)
    state = broker.topics.find(name)
    if state is None:
        raise UnknownTopicOrPartitionError(f"There is no topic {name}.")
    return state


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
    seen: set[tuple[int, str]] = set()
    rows = []
    for resource in request["resources"]:
        key = resource["resource_type"], resource["resource_name"]
        row = {"resource_type": key[0], "resource_name": key[1]}
        try:
            if key in seen:
                raise InvalidRequestError(f"{key[1]} appears twice in one request.")
            seen.add(key)
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
    match resource["resource_type"]:
        case 2:
            state = topic_of(broker, resource["resource_name"])
            configs = resource["configs"]
            if len({config["name"] for config in configs}) < len(configs):
                raise InvalidRequestError("A config is altered twice in one request.")
            if only_validate:
                broker.topics.check_overrides(overrides_of(state, configs))
            else:
                await broker.topics.alter(state.topic.name, lambda now: overrides_of(now, configs))
        case 4:
            check_broker(broker, resource["resource_name"])
            raise InvalidConfigError(
                "The settings of a node are fixed while it runs: restart it with --set name=value."
            )
        case other:
            raise no_such_type(other)
