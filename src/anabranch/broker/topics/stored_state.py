"""StoredState: the small files of the data folder that say what the logs cannot say themselves.

    node               cluster id, directory id, broker id: written once
    clean-shutdown     there only between a clean stop and the next start
    recovery-points    where each log's recovery scan may begin, and how long its snapshot of producers holds
    log-start-offsets  where each log starts, once DeleteRecords or retention has moved it
    cleaner-offsets    how far each log has been cleaned
    metadata-snapshot, quorum-state    are the metadata log's (`quorum_store`)

Partitions are named by topic id and number, so that a topic made again under an old name inherits nothing.
"""

import logging
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import (
    ProducersMark,
    RecoveryMark,
    RecoveryPoint,
    read_checkpoint,
    read_offsets,
    read_recovery_points,
    write_checkpoint,
    write_offsets,
    write_recovery_points,
)
from anabranch.log.disk.files import Files
from anabranch.values import Offset

logger = logging.getLogger(__name__)


def partition_key(topic_id: uuid.UUID, partition: int) -> str:
    return f"{topic_id.hex}-{partition}"


def directory_of(new_id: uuid.UUID) -> str:
    """The directory id of a folder that was begun with this id."""
    return uuid.uuid5(new_id, "directory").hex


class NodeIdentity(NamedTuple):
    cluster_id: str
    directory_id: str
    broker_id: int


class StoredState:
    def __init__(self, files: Files, data_dir: str, boot: str) -> None:
        self._files = files
        self.boot = boot
        self._node_path = f"{data_dir}/node"
        self._clean_path = f"{data_dir}/clean-shutdown"
        self._recovery_path = f"{data_dir}/recovery-points"
        self._starts_path = f"{data_dir}/log-start-offsets"
        self._cleaner_path = f"{data_dir}/cleaner-offsets"
        self._data_dir = data_dir
        self.metadata_snapshot_path = f"{data_dir}/metadata-snapshot"
        self.quorum_state_path = f"{data_dir}/quorum-state"
        self.was_clean = False
        self.recovery_points: dict[str, RecoveryPoint] = {}
        self.start_offsets: dict[str, Offset] = {}
        self.cleaner_offsets: dict[str, Offset] = {}

    def load(self) -> None:
        """Read everything, and take the mark of a clean shutdown away: from here on a crash is a crash. Raises
        StorageError."""
        self.was_clean = read_checkpoint(self._files, self._clean_path).value is not None
        self.recovery_points, _ = read_recovery_points(self._files, self._recovery_path, self.boot)
        self.start_offsets, reason = read_offsets(self._files, self._starts_path)
        if reason is not None and self._files.exists(self._node_path):
            logger.error("%s is lost (%s): deleted records may be back", self._starts_path, reason)
        self.cleaner_offsets, _ = read_offsets(self._files, self._cleaner_path)
        if self._files.exists(self._clean_path):
            self._take_mark_away()

    def _take_mark_away(self) -> None:
        try:
            self._files.unlink(self._clean_path)
            self._files.sync_folder(self._data_dir)
        except OSError as error:
            raise StorageError(
                f"{self._clean_path} cannot be removed: {error.strerror or error}. A crash would be taken for a clean "
                "stop then: let this user write to the data folder, and start again."
            ) from error

    @property
    def is_blank(self) -> bool:
        """Nobody has started on this folder yet."""
        return not self._files.exists(self._node_path)

    def identity(self, broker_id: int, new_id: uuid.UUID, cluster_id: str | None = None) -> NodeIdentity:
        """Who this folder belongs to; decided at its first start. `cluster_id`: of the cluster it joins then."""
        known, reason = read_checkpoint(self._files, self._node_path)
        if known is None and self._files.exists(self._node_path):
            raise StorageError(
                f"{self._node_path} says who this data folder belongs to, but {reason}: restore it from a backup, or "
                "remove it to let the folder begin a cluster of its own."
            )
        if known is None:
            if not self._files.exists(self._starts_path):
                self.write_start_offsets({})  # From now on its absence means a loss.
            cluster_id = cluster_id or new_id.hex[:22]
            identity = NodeIdentity(cluster_id, directory_of(new_id), broker_id)
            write_checkpoint(self._files, self._node_path, identity._asdict())
            return identity
        if known["broker_id"] != broker_id:
            raise StorageError(
                f"The data folder {self._data_dir} belongs to broker {known['broker_id']}, not {broker_id}: "
                "take another folder, or start with the broker.id it was made with."
            )
        return NodeIdentity(**known)

    def write_recovery_points(
        self, marks: Mapping[str, RecoveryMark], producers: Mapping[str, ProducersMark] | None = None
    ) -> None:
        write_recovery_points(self._files, self._recovery_path, self.boot, marks, producers)

    def write_start_offsets(self, offsets: Mapping[str, Offset]) -> None:
        write_offsets(self._files, self._starts_path, offsets)

    def write_cleaner_offsets(self, offsets: Mapping[str, Offset]) -> None:
        write_offsets(self._files, self._cleaner_path, offsets)

    def mark_clean(self) -> None:
        write_checkpoint(self._files, self._clean_path, {"clean": True})
