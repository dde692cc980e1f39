"""AlterConfigs, versions 0 to 2: the named configs become all the overrides a topic has, as Kafka defines it."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.config_resources import alter_each
from anabranch.broker.requests.call import Call
from anabranch.broker.topics.internal_topics import with_required
from anabranch.cluster.metadata.rows import MODE_CONFIG

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topics.topics import TopicState


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return await alter_each(broker, request, _replaced)


def _replaced(state: "TopicState", configs: list[dict[str, Any]]) -> dict[str, str | None]:
    # Where the records are is not reset by whoever names only what they care about.
    kept: dict[str, str | None] = {MODE_CONFIG: state.topic.mode} if not state.topic.is_placed else {}
    named = {**kept, **{config["name"]: config["value"] for config in configs}}
    return with_required(state.topic.name, named, state.topic.overrides)
