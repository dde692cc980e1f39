"""From a data folder to the metadata log of its node: the partition is opened, or completed first if a crash has
interrupted the taking over of a leader's snapshot, and the table read back."""

import uuid
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.metadata.quorum_store import QuorumStore
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.topics.stored_state import StoredState, partition_key
from anabranch.broker.topics.topic_folders import METADATA_TOPIC
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.raft.messages import Member
from anabranch.log.disk.files import Files, folder_of
from anabranch.values import Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.peers.peers import Peers
    from anabranch.log.coordinates import FileCoordinates

METADATA_ID = uuid.UUID(int=1)
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)


def open_metadata(
    core: BrokerCore,
    opener: PartitionOpener,
    state: StoredState,
    me: Member,
    *,
    is_founder: bool,
    peers: "Peers | None",
    chance: Callable[[int], int],
) -> MetadataLog:
    """Without `peers` the node is the sole voter. With them, a blank folder either founds a cluster or waits to be
    told which one it belongs to. Raises StorageError, CorruptDataError."""
    store = QuorumStore(opener.files, state.metadata_snapshot_path, state.quorum_state_path)
    start_offset = store.prepare(opener.folder_of(METADATA_PARTITION))
    partition = opener.open(
        METADATA_PARTITION,
        METADATA_ID,
        opener.default_settings({"retention.ms": "-1"}),
        always_sync=True,
        precious=True,  # Without an entry its topic would be taken for nobody's and moved aside.
        shares_syncs=store.read_state() is not None,
        start_offset=start_offset,
    )
    metadata = MetadataLog(
        core,
        store,
        partition,
        me=me,
        is_founder=is_founder,
        peers=peers,
        chance=chance,
        coordinates=_coordinates(opener.files, folder_of(state.metadata_snapshot_path)),
    )
    point = state.recovery_points.get(partition_key(METADATA_ID, 0))
    metadata.load(point.offset if point is not None else Offset(0))  # It never lies beyond what is committed.
    return metadata


def _coordinates(files: Files, data_dir: str) -> "Callable[[], FileCoordinates]":
    """Made at the first use, for whoever has objects."""

    @cache
    def make() -> "FileCoordinates":
        from anabranch.log.coordinates import FileCoordinates

        return FileCoordinates(files, data_dir)

    return make
