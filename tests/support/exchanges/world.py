"""What every exchange needs: names that exist, names that do not, and the one row of an answer."""

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from support.raw_client import RawClient, batch_of

NO_ID = uuid.UUID(int=0)
STRANGE_ID = uuid.UUID(int=0xDEAD)
TOPIC, BROKER = 2, 4


class World(NamedTuple):
    """A topic of two partitions with three records in its first."""

    topic: str
    topic_id: uuid.UUID

    @property
    def missing(self) -> str:
        return f"{self.topic}-missing"

    def fresh(self, what: str) -> str:
        return f"{what}-{uuid.uuid4().hex[:12]}"


def make_world(client: RawClient) -> World:
    name = f"world-{uuid.uuid4().hex[:12]}"
    topic_id = client.create_topic(name, partitions=2)
    assert client.produce(name, 0, batch_of(b"a", b"b", b"c"))["error_code"] == 0
    return World(name, topic_id)


Exchange = Callable[[RawClient, int, World], None]
Body = dict[str, Any]


def only(rows: list[Body]) -> Body:
    assert len(rows) == 1, rows[:3]
    return rows[0]
