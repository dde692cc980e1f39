"""DeleteTopics, versions 1 to 6, by name or by id. The files go in the background; the name is free at once.

A topic that a request names twice, in whatever way, is not deleted: Kafka takes that for a mistake.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anabranch.broker.handlers.answers import Deadline, accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.cluster.metadata.rows import Topic
from anabranch.errors import AnabranchError, InvalidRequestError, TopicDeletionDisabledError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

NO_ID = UUID(int=0)
TOPICS_SINCE = 6


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if call.header.api_version < TOPICS_SINCE:
        asked = [(name, NO_ID) for name in request["topic_names"]]
    else:
        asked = [(topic["name"], topic["topic_id"]) for topic in request["topics"]]
    meant = [_key(broker, name, topic_id) for name, topic_id in asked]
    times = Counter(meant)
    distinct = dict(zip(meant, asked, strict=True)).items()
    pace, deadline = broker.turns.pace(), Deadline(broker, request["timeout_ms"])
    rows = []
    for key, each in distinct:
        await pace.row()
        rows.append(await _row(broker, *each, deadline, is_repeated=times[key] > 1))
    return {"responses": rows}


def _key(broker: "Broker", name: str | None, topic_id: UUID) -> tuple[str | None, UUID]:
    """What a row of the request means: the topic if there is one, else its own words."""
    if (name is None) == (topic_id == NO_ID):
        return name, topic_id
    state = broker.topics.find(topic_id if name is None else name)
    return (name, topic_id) if state is None else (state.topic.name, state.topic.topic_id)


async def _row(
    broker: "Broker", name: str | None, topic_id: UUID, deadline: Deadline, *, is_repeated: bool
) -> dict[str, Any]:
    try:
        deadline.check()
        if is_repeated:
            raise InvalidRequestError("One request deletes this topic twice.")
        topic = _find(broker, name, topic_id)
        if not broker.settings.delete_topic_enable:
            raise TopicDeletionDisabledError("delete.topic.enable is false on this node.")
        await broker.topics.delete(topic.topic_id if name is None else topic.name)
    except AnabranchError as error:
        return {**refused(error), "name": name, "topic_id": topic_id}
    return {**accepted(), "name": topic.name, "topic_id": topic.topic_id}


def _find(broker: "Broker", name: str | None, topic_id: UUID) -> Topic:
    if (name is None) == (topic_id == NO_ID):
        raise InvalidRequestError("A topic to delete is named either by its name or by its id.")
    return broker.topics.known(topic_id if name is None else name).topic


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    asked = [{"name": name, "topic_id": NO_ID} for name in request["topic_names"]] or request["topics"]
    return {
        "responses": [
            {**refused(error), "name": each["name"], "topic_id": each["topic_id"]} for each in asked
        ]
    }
