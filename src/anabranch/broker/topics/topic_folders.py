"""TopicFolders: what lies in the data folder besides the logs of known topics.

A deleted topic's folders are renamed to `<topic id>-<partition>.deleted` (a topic's name may leave no room for
more) and then removed, at once or at the next start. A partition folder that no topic names (a crash while a
topic was made, or a metadata log that was replaced by hand) is never deleted: it is moved to `quarantine/` and
said aloud.
"""

import logging
import re
from collections.abc import Iterable
from uuid import UUID

from anabranch.cluster.metadata.rows import Topic
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.values import TopicPartition

logger = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
TUBE_TOPIC = "__branch_log"
"""All rows of all branches (`branch/branch_log.py`)."""
QUARANTINE = "quarantine"
DELETED = ".deleted"
OWNER_FILE = "owner"
RING_FILE = "ring"
"""What a partition that others keep too has promised them."""
BRANCH_FILE = "branch"
"""Which lane a broker has adopted, and in which view the partition went over to branches."""
LEAVING_FILE = "leaving"
"""What a broker holds of the last line of a partition that leaves branches (`branch/lanes/lanes_to_log.py`)."""
LOST = ".lost"
"""Added to the name of a lane that could not become a part of a log."""
_PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")


class TopicFolders:
    def __init__(self, files: Files, data_dir: str, *, says_owners: bool = False) -> None:
        """`says_owners`: a member of a cluster learns only after its start which entries of its metadata log count,
        and must know a folder again whose topic it learns of late."""
        self._files = files
        self._data_dir = data_dir
        self._says_owners = says_owners

    def move_away(self, partitions: list[tuple[TopicPartition, UUID]]) -> list[str]:
        """Free the names of these folders; where they are now."""
        moved = []
        for partition_id, topic_id in partitions:
            folder = f"{self._data_dir}/{partition_id.folder}"
            if not self._files.exists(folder):
                continue
            if self._says_owners and self._owner(folder) != topic_id:
                continue  # A topic of the same name has it by now.
            aside = f"{self._data_dir}/{topic_id.hex}-{partition_id.partition}{DELETED}"
            self._files.rename(folder, aside)
            moved.append(aside)
        self._files.sync_folder(self._data_dir)
        return moved

    def remove(self, folders: Iterable[str]) -> None:
        """Delete folders with all that is in them; any thread."""
        for folder in folders:
            remove_tree(self._files, folder)

    def sweep(self, topics: Iterable[Topic]) -> None:
        """At a start: finish deletions, and move aside what nobody names."""
        known = {f"{topic.name}-{index}" for topic in topics for index in range(topic.partition_count)}
        known |= {f"{METADATA_TOPIC}-0", f"{TUBE_TOPIC}-0"}
        for name in self._files.list(self._data_dir):
            path = f"{self._data_dir}/{name}"
            if not self._files.is_folder(path):
                continue
            if name.endswith(DELETED):
                self._finish_deletion(path)
            elif name not in known and _PARTITION_FOLDER.fullmatch(name):
                self._set_aside(name)

    def _finish_deletion(self, path: str) -> None:
        try:
            remove_tree(self._files, path)
        except OSError as error:
            logger.warning("files of a deleted topic are still there: %s", error)

    def make(self, partitions: Iterable[TopicPartition], topic_id: UUID) -> set[TopicPartition]:
        """Folders for new logs. One that is there already is not theirs, and nothing of it is inherited, unless it
        says that it is: those are the answer."""
        found = set()
        for partition_id in partitions:
            folder = f"{self._data_dir}/{partition_id.folder}"
            if self._files.exists(folder):
                if self._owner(folder) == topic_id:
                    found.add(partition_id)
                    continue
                self._set_aside(partition_id.folder)
            self._files.make_folder(folder, sync=False)
            if self._says_owners:
                self._say_owner(folder, topic_id)
        self._files.sync_folder(self._data_dir)
        return found

    def claim(self, partitions: Iterable[tuple[TopicPartition, UUID]]) -> set[TopicPartition]:
        """At a start: which of these folders are there and belong to these topics, as they say from now on if they did
        not. Of another one it is not known yet which topic of that name is the later; it is left alone."""
        found = set()
        for partition_id, topic_id in partitions:
            folder = f"{self._data_dir}/{partition_id.folder}"
            if not self._files.exists(folder):
                continue
            owner = self._owner(folder)
            if owner is None:
                self._say_owner(folder, topic_id)
            if owner in (None, topic_id):
                found.add(partition_id)
        return found

    def _owner(self, folder: str) -> UUID | None:
        value, _ = read_checkpoint(self._files, f"{folder}/{OWNER_FILE}")
        return UUID(hex=value["topic_id"]) if value is not None else None

    def _say_owner(self, folder: str, topic_id: UUID) -> None:
        write_checkpoint(self._files, f"{folder}/{OWNER_FILE}", {"topic_id": topic_id.hex})

    def unmake(self, partitions: Iterable[TopicPartition]) -> None:
        """Take back those that are still empty: the logs they were made for did not come."""
        for partition_id in partitions:
            folder = f"{self._data_dir}/{partition_id.folder}"
            if self._files.exists(folder) and self._files.list(folder) in ([], [OWNER_FILE]):
                remove_tree(self._files, folder)

    def _set_aside(self, name: str) -> None:
        aside = f"{self._data_dir}/{QUARANTINE}"
        self._files.make_folder(aside)
        target = f"{aside}/{name}"
        number = 1
        while self._files.exists(target):
            target = f"{aside}/{name}.{number}"
            number += 1
        self._files.rename(f"{self._data_dir}/{name}", target)
        self._files.sync_folder(self._data_dir)
        self._files.sync_folder(aside)
        logger.error("the folder %s belongs to no topic and was moved to %s", name, target)


def remove_tree(files: Files, path: str) -> None:
    """Delete a file, or a folder with all that is in it; any thread."""
    if not files.is_folder(path):
        files.unlink(path)
        return
    for name in files.list(path):
        remove_tree(files, f"{path}/{name}")
    files.remove_folder(path)


def clear_folder(files: Files, folder: str, why: str) -> None:
    """Remove what a partition's folder holds of a time that is over; any thread. The files that say of which go last: a
    crash in between leaves the others what they are. Raises StorageError."""
    logger.info("%s begins anew: %s", folder, why)
    last = (BRANCH_FILE, LEAVING_FILE, RING_FILE)
    try:
        for name in sorted(files.list(folder), key=lambda name: (name in last, name == RING_FILE)):
            if name != OWNER_FILE and not name.endswith(LOST):
                remove_tree(files, f"{folder}/{name}")
        files.sync_folder(folder)
    except OSError as error:
        raise StorageError(f"{folder} cannot be cleared: {error.strerror or error}.") from error
