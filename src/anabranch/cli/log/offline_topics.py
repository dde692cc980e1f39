"""Which partitions of a data folder may have gaps, read from the node's own files without starting one.

A topic that is or was compacted has offsets without records; so does one that came out of mode branch. The topics are
in the metadata log and its snapshot; `cleaner-offsets` says how far each partition was cleaned. A topic that cannot be
read counts as not compacted: a gap is then reported, and the user can pass --gaps-allowed.
"""

import os

from anabranch.broker.topics.stored_state import partition_key
from anabranch.broker.topics.topic_folders import METADATA_TOPIC
from anabranch.cli.log.dump import batches_below
from anabranch.cli.log.offline import data_folder_of, segment_bases
from anabranch.cluster.metadata.entries import decode_entry
from anabranch.cluster.metadata.rows import NO_MOVE, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.errors import AnabranchError
from anabranch.log.disk.checkpoint import read_checkpoint, read_offsets
from anabranch.log.disk.real_files import RealFiles
from anabranch.record.records import records_of


def compacted_partitions(files: RealFiles, path: str) -> set[str]:
    """Folder names of the partitions where missing offsets are expected."""
    data_folder = data_folder_of(path)
    if data_folder is None:
        return set()
    cleaned, _ = read_offsets(files, f"{data_folder}/cleaner-offsets")
    return {
        f"{topic.name}-{number}"
        for topic in _topics(files, data_folder)
        for number in range(topic.partition_count)
        if _may_have_gaps(topic, number) or partition_key(topic.topic_id, number) in cleaned
    }


def _may_have_gaps(topic: Topic, number: int) -> bool:
    has_left = number < len(topic.placements) and topic.placements[number].left != NO_MOVE
    return has_left or "compact" in topic.overrides.get("cleanup.policy", "")


def _topics(files: RealFiles, data_folder: str) -> list[Topic]:
    table = MetadataTable()
    snapshot, _ = read_checkpoint(files, f"{data_folder}/metadata-snapshot")
    start = 0
    if snapshot is not None:
        table.restore({name: value for name, value in snapshot["table"].items() if name != "objects"})
        start = snapshot["offset"]
    folder = f"{data_folder}/{METADATA_TOPIC}-0"
    if os.path.isdir(folder) and segment_bases(files, folder):
        _replay(files, folder, start, table)
    return list(table.topics.values())


def _replay(files: RealFiles, folder: str, start: int, table: MetadataTable) -> None:
    try:
        for batch in batches_below(files, folder, (), start):
            for record in records_of(batch.data):
                if record.offset >= start and record.key is None and record.value is not None:
                    entry = decode_entry(record.value)
                    # Records in the object store are not in this folder.
                    if not entry["type"].startswith("objects-"):
                        table.apply(entry, record.offset)
    except (AnabranchError, KeyError):
        return  # Damaged metadata is reported by the check of its own partition.
