"""Objects: all that a node with an object store has besides: the store, and what writes to it and reads from it.

A node without one never loads this. Partitions are told here when the agreed table has changed for them: first they
move their high watermarks, then writers are answered.
"""

import uuid
from typing import TYPE_CHECKING

from anabranch.broker.object_partition import ObjectPartition
from anabranch.broker.proposals import Proposals
from anabranch.cluster.metadata import Entry
from anabranch.objects.store import ObjectStore
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


class Objects:
    def __init__(self, broker: "Broker", store: ObjectStore) -> None:
        self._broker = broker
        self.store = store
        self.proposals = Proposals(broker.metadata, broker.peers)
        broker.metadata.subscribe(self._follow)

    def _follow(self, offset: Offset, entry: Entry | None) -> None:
        """An entry has changed the table; None: all of it was replaced."""
        now_ms = self._broker.clock.wall_ms()
        if entry is None:
            for partition in self._broker.topics.object_partitions():
                assert isinstance(partition, ObjectPartition)
                partition.applied(now_ms)
        elif entry["type"] == "objects-commit":
            keys = {(topic_id, number) for commit in entry["commits"] for topic_id, number in commit["keys"]}
            for topic_id, number in keys:
                found = self._broker.topics.find_partition(uuid.UUID(hex=topic_id), number)
                if isinstance(found, ObjectPartition):
                    found.applied(now_ms)
