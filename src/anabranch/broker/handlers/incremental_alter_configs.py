"""IncrementalAlterConfigs, versions 0 and 1: set, delete, append to and subtract from single configs."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.config_resources import alter_each
from anabranch.broker.requests.call import Call
from anabranch.config import append_to_list, subtract_from_list
from anabranch.errors import InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topics.topics import TopicState

SET, DELETE = 0, 1


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    def altered(state: "TopicState", configs: list[dict[str, Any]]) -> dict[str, str | None]:
        current = {entry.name: entry.value or "" for entry in state.settings.describe(broker.settings)}
        overrides: dict[str, str | None] = dict(state.topic.overrides)
        for config in configs:
            _alter(current, overrides, config["name"], config["config_operation"], config["value"])
        return overrides

    return await alter_each(broker, request, altered)


def is_repeatable(request: dict[str, Any]) -> bool:
    """Setting and resetting twice is the same as once; appending to a list is not."""
    return all(
        config["config_operation"] in (SET, DELETE)
        for resource in request["resources"]
        for config in resource["configs"]
    )


def _alter(
    current: dict[str, str], overrides: dict[str, str | None], name: str, operation: int, value: str | None
) -> None:
    """Enter one alteration; a name or value that is none is refused when all overrides are checked together."""
    match operation:
        case 0:
            overrides[name] = value
        case 1:
            overrides.pop(name, None)  # Also what is no config: tools so clean up what Kafka once had.
        case 2:
            overrides[name] = append_to_list(name, current.get(name, ""), value or "")
        case 3:
            overrides[name] = subtract_from_list(name, current.get(name, ""), value or "")
        case _:
            raise InvalidRequestError(
                f"{operation} is no config operation: set 0, delete 1, append 2, subtract 3."
            )
