"""RingOpener: makes a partition one of a ring's replicas, with what its folder says of its past.

Such a partition has a file `ring`: what its replica has promised and entered, and during which boot of the machine it
last ran.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace

from anabranch.broker.ring.driver import RingDriver, ring_state
from anabranch.broker.ring.replication_chunks import Pieces
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.topic_folders import RING_FILE
from anabranch.broker.write.core import BrokerCore
from anabranch.cluster.metadata.rows import Placement
from anabranch.config import NodeSettings
from anabranch.errors import StorageError
from anabranch.log.disk.checkpoint import read_checkpoint, write_checkpoint
from anabranch.log.disk.files import Files
from anabranch.modes.generations import Generations, Row
from anabranch.modes.ring.effects import Kept
from anabranch.modes.ring.mode import RingMode
from anabranch.values import BrokerId, Generation, Offset, TopicPartition

logger = logging.getLogger(__name__)


class RingOpener:
    def __init__(
        self,
        core: BrokerCore,
        settings: NodeSettings,
        files: Files,
        boot: str,
        drop_snapshot: Callable[[Partition], None],
        doubted: list[TopicPartition],
    ) -> None:
        self._core = core
        self._settings = settings
        self._files = files
        self._boot = boot
        self._drop_snapshot = drop_snapshot
        self._doubted = doubted

    def join(
        self, partition: Partition, placement: Placement, *, is_stranger: bool = False, clean: bool = True
    ) -> None:
        """Make it one of several replicas, with what its folder says of its past. Raises StorageError."""
        log, settings = partition.log, self._settings
        kept = self._kept(partition, placement, is_stranger, clean)
        sync_first = self._is_synced_first
        if sync_first and not log.is_synced and not log.fenced:
            log.sync()
        # What lies above may yet be withdrawn: the recovery points must not speak of it.
        log.firm_offset = max(partition.high_watermark, log.firm_offset or Offset(0))
        clock, pieces = self._core.clock, Pieces(log)
        mode = RingMode(
            BrokerId(settings.broker_id),
            kept.replicas or placement.replicas,
            kept,
            log.end_offset,
            clock.monotonic_ms(),
            fits=pieces.fits,
            sync_first=sync_first,
            safe=partition.high_watermark,
        )
        if placement.since_view == placement.view > 0 and kept.promised == placement.generation:
            mode.replica.begin_at_once()  # It has just come from the object store: nobody has led it here yet.
        partition.mode = mode
        partition.driver = driver = RingDriver(
            partition,
            mode,
            clock,
            self._core.workers,
            self._files,
            self._boot,
            pieces=pieces,
            sync_now=self._core.syncer.request,
            drop_snapshot=self._drop_snapshot,
            acks1_waits=settings.ring_acks1 == "safe",
        )
        if log.fenced:  # While it was kept here alone.
            driver.fence()
        partition.role_changed(mode.generation)

    @property
    def _is_synced_first(self) -> bool:
        """Records are on the disk before anybody counts on them."""
        return self._settings.flush == "always"

    def may_be_torn(self, folder: str) -> bool:
        """Whether the machine has lost power since: of the writes that waited for one sync then, any may be missing.
        A process that was killed leaves none out, so that a gap is rot."""
        state, _ = read_checkpoint(self._files, f"{folder}/{RING_FILE}")
        return state is not None and bool(self._boot) and state["boot"] != self._boot

    def _kept(self, partition: Partition, placement: Placement, is_stranger: bool, clean: bool) -> Kept:
        """What its replica has promised; rule 7 says whether it may be trusted with it."""
        log, boot = partition.log, self._boot
        path = f"{log.folder}/{RING_FILE}"
        state, reason = read_checkpoint(self._files, path)
        if state is not None:
            before = Kept.from_state(state)
            is_same_boot = bool(boot) and state["boot"] == boot
            was_synced_first = state.get("sync_first", self._is_synced_first)
            may_lack = not clean and not is_same_boot and not was_synced_first
            is_outdated = not is_same_boot or was_synced_first != self._is_synced_first
            if placement.replicas == before.replicas == (BrokerId(self._settings.broker_id),):
                may_lack = False  # Nobody else could have what it lacks.
        else:
            is_lost = self._files.exists(path)
            # With the file the table is lost, and nobody knows which of the records are the leader's too.
            table = Generations() if is_lost else _of_one_leader(log.end_offset)
            before = Kept(table=table, view=placement.view, replicas=placement.replicas)
            is_keeper = BrokerId(self._settings.broker_id) in placement.replicas
            is_same_boot, is_outdated = True, False
            may_lack = is_lost or is_stranger or (is_keeper and log.end_offset < placement.start)
            if is_lost:
                logger.error("%s says what was promised, but %s", path, reason)
        promised = Generation(max(before.promised, placement.generation))
        is_recovered = placement.is_forced and before.view < placement.view
        return_id = None if is_recovered else before.return_id
        # After a power cut the end of a log may be torn, and what follows the tear is set aside. Of one that was kept
        # here alone nobody has written down during which boot, and nobody else could have what it lacks.
        was_alone = state is None and placement.replicas == (BrokerId(self._settings.broker_id),)
        is_odd = is_same_boot and bool(log.quarantined) and not was_alone
        if return_id is None and (may_lack or log.damaged or is_odd):
            return_id = uuid.uuid4().hex
            self._doubted.append(partition.id)
        kept = replace(before, promised=promised, table=before.table.cut(log.end_offset), return_id=return_id)
        if before.view < placement.view:
            kept = replace(kept, view=placement.view, sealed=None, replicas=placement.replicas)
        if kept != before or is_outdated:
            self._write_kept(path, kept)
        return kept

    def _write_kept(self, path: str, kept: Kept) -> None:
        try:
            state = ring_state(kept, self._boot, sync_first=self._is_synced_first)
            write_checkpoint(self._files, path, state)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error


def _of_one_leader(end: Offset) -> Generations:
    """Of a log that one broker has written alone."""
    return Generations([Row(Generation(0), Offset(0))] if end else [])
