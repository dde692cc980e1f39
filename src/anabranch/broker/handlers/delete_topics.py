"""DeleteTopics, versions 1 to 6, by name or by id. The files go in the background; the name is free at once."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import accepted, refused
from anabranch.cluster.metadata import Topic
from anabranch.errors import (
    AnabranchError,
    InvalidRequestError,
    TopicDeletionDisabledError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

NO_ID = UUID(int=0)
TOPICS_SINCE = 6


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if call.header.api_version < TOPICS_SINCE:
        asked = [(name, NO_ID) for name in request["topic_names"]]
    else:
        asked = [(topic["name"], topic["topic_id"]) for topic in request["topics"]]
    return {"responses": [await _row(broker, name, topic_id) for name, topic_id in dict.fromkeys(asked)]}


async def _row(broker: "Broker", name: str | None, topic_id: UUID) -> dict[str, Any]:
    try:
        topic = _find(broker, name, topic_id)
        if not broker.settings.delete_topic_enable:
            raise TopicDeletionDisabledError("delete.topic.enable is false on this node.")
        await broker.delete_topic(topic.name)
    except AnabranchError as error:
        return {**refused(error), "name": name, "topic_id": topic_id}
    return {**accepted(), "name": topic.name, "topic_id": topic.topic_id}


def _find(broker: "Broker", name: str | None, topic_id: UUID) -> Topic:
    if (name is None) == (topic_id == NO_ID):
        raise InvalidRequestError("A topic to delete is named either by its name or by its id.")
    state = broker.topics.find(topic_id if name is None else name)
    if state is not None:
        return state.topic
    if name is None:
        raise UnknownTopicIdError(f"There is no topic with id {topic_id}.")
    raise UnknownTopicOrPartitionError(f"There is no topic {name}.")
