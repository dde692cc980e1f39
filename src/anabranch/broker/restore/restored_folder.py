"""The data folder of the first broker of a cluster that was brought back from its bucket.

It is made under another name, and has its own once all of it is on the disk: a folder that a crash has left half done
is never taken for a broker's, and is removed by the next restore into the same place.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from uuid import UUID

from anabranch.broker.metadata.quorum_store import QuorumStore
from anabranch.broker.restore.object_restore import Rebuilt
from anabranch.broker.topics.stored_state import StoredState
from anabranch.broker.topics.topic_folders import remove_tree
from anabranch.broker.topics.topics import OFFSETS_TOPIC
from anabranch.cluster.raft.messages import Member, Members, Snapshot
from anabranch.coordination.groups.messages import LogRecord
from anabranch.coordination.groups.stored_offsets import records_of
from anabranch.errors import RestoreRefusedError
from anabranch.log.disk.files import Files, folder_of
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.record.batch import read_header, stamp
from anabranch.record.builder import BatchBuilder
from anabranch.values import Generation, TopicPartition

ASIDE = ".restoring"
RECORDS_PER_BATCH = 500
NO_TERM_YET = 0


def check_folder(files: Files, data_dir: str) -> None:
    """Raises RestoreRefusedError unless a folder can be made there without touching anybody's."""
    if files.exists(data_dir) and (not files.is_folder(data_dir) or files.list(data_dir)):
        raise RestoreRefusedError(
            f"{data_dir} is not empty: a cluster is brought back into a new folder; choose another --data-dir."
        )


def write_folder(
    files: Files, data_dir: str, rebuilt: Rebuilt, broker_id: int, new_id: UUID, boot: str, now_ms: int
) -> None:
    """Raises StorageError and OSError; then nothing is at `data_dir`."""
    aside = data_dir + ASIDE
    if files.exists(aside):
        remove_tree(files, aside)  # What is left of a restore that was interrupted.
    files.make_folder(aside)
    state = StoredState(files, aside, boot)
    identity = state.identity(broker_id, new_id)
    for found in rebuilt.groups:
        folder = f"{aside}/{TopicPartition(OFFSETS_TOPIC, found.partition).folder}"
        _write_log(files, folder, list(records_of(found.stored, now_ms)), now_ms)
    members = Members(frozenset({Member(broker_id, identity.directory_id)}))
    quorum = QuorumStore(files, state.metadata_snapshot_path, state.quorum_state_path)
    quorum.write_snapshot(Snapshot(rebuilt.end, NO_TERM_YET, members), rebuilt.table, replaces_log=True)
    files.sync_folder(aside)
    if files.exists(data_dir):
        files.remove_folder(data_dir)
    files.rename(aside, data_dir)
    files.sync_folder(folder_of(data_dir))


def _write_log(files: Files, folder: str, records: Sequence[LogRecord], now_ms: int) -> None:
    files.make_folder(folder)
    log = Log.open(files, folder, LogConfig(), clean=True)
    for batch in _batches(records, now_ms):
        stamp(batch, 0, log.end_offset, Generation(0))
        header = read_header(batch)
        log.append([(batch, header.base_offset, header.last_offset, header.max_timestamp)], now_ms)
    log.sync()
    log.close(clean=True)


def _batches(records: Sequence[LogRecord], now_ms: int) -> Iterator[bytearray]:
    left = iter(records)
    while some := list(islice(left, RECORDS_PER_BATCH)):
        builder = BatchBuilder()
        for key, value in some:
            builder.add(key, value, timestamp_ms=now_ms)
        yield builder.build()
