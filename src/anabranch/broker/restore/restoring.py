"""Restoring: `anabranch cluster restore`, from the first look at a bucket to a data folder with which a broker starts.

    choose a life and its newest snapshot > fence > survey > rebuild > snapshots of the new life > the folder

The fence comes before the survey: an old cluster that is still alive deletes nothing from then on, so that what was
found stays. It counts once the new life has a snapshot. Whatever fails before that leaves the bucket as it was, and
what fails behind it is found by the next restore, which then brings back the new life.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from anabranch.broker.restore.bucket_survey import (
    Life,
    Progress,
    Snapshot,
    add_copied,
    list_objects,
    lives,
    no_progress,
    read_groups,
    read_newer,
    read_snapshot,
)
from anabranch.broker.restore.object_check import VERIFIED_BYTES_MAX, check_named
from anabranch.broker.restore.object_restore import Rebuilt, Survey, frontier_of, rebuild, table_of
from anabranch.broker.restore.restore_report import RestoreReport
from anabranch.broker.restore.restored_folder import check_folder, write_folder
from anabranch.clock import Clock
from anabranch.cluster.objects.restore import newer_objects, unknown_objects
from anabranch.errors import (
    CorruptDataError,
    ObjectExistsError,
    RestoreRefusedError,
    StorageError,
    StoreUnavailableError,
)
from anabranch.log.disk.files import Files
from anabranch.objects.layout.snapshots import (
    FenceId,
    GroupsId,
    MetadataId,
    groups_value,
    metadata_value,
    pack_snapshot,
)
from anabranch.objects.store import ObjectStore

WRITES_MAX = 3
"""Of one object whose bytes are not those that were written."""


@dataclass(frozen=True)
class RestoreWish:
    data_dir: str
    broker_id: int = 0
    incarnation: int | None = None
    """Which life to bring back, if there are several."""
    is_dry_run: bool = False
    accepts_loss: bool = False
    verified_bytes_max: int | None = VERIFIED_BYTES_MAX
    """How much is read of what the snapshot names; None: all of it."""


class Restoring:
    def __init__(
        self,
        store: ObjectStore,
        files: Files,
        clock: Clock,
        boot: str,
        new_id: Callable[[], UUID],
        progress: Progress = no_progress,
    ) -> None:
        """`store`: one that repeats what fails in passing (`objects.retrying_store`)."""
        self._store = store
        self._progress = progress
        self._files = files
        self._clock = clock
        self._boot = boot
        self._new_id = new_id

    async def run(self, wish: RestoreWish) -> RestoreReport:
        """Raises RestoreRefusedError, StoreError, StorageError."""
        if not wish.is_dry_run:
            check_folder(self._files, wish.data_dir)
        life = await self._choose(wish)
        successor = self._new_id().int >> 64
        if wish.is_dry_run:
            _, report = await self._rebuilt(life, wish, successor)
            return report
        fence = FenceId(life.incarnation, successor)
        await self._put(fence.name, {"time_ms": self._clock.wall_ms()})
        try:
            rebuilt, report = await self._rebuilt(life, wish, successor)
            _refuse_loss(report, wish)
            await self._put_groups(rebuilt, successor)
        except BaseException:
            with contextlib.suppress(Exception):
                await self._store.delete([fence.name])
            raise
        # If this fails, it may have been done all the same: the fence stays, and counts if it was.
        await self._put_metadata(rebuilt, report, successor)
        self._write_folder(wish, rebuilt, report)
        return report

    # --- reading -------------------------------------------------------------------------------------------------

    async def _choose(self, wish: RestoreWish) -> Life:
        found = await lives(self._store)
        if wish.incarnation is not None:
            found = [life for life in found if life.incarnation == wish.incarnation]
        if not found:
            which = "" if wish.incarnation is None else f" of {wish.incarnation:016x}"
            raise RestoreRefusedError(
                f"{self._store.url} holds no snapshot{which} of a cluster: check the URL, the folder in it included."
            )
        if len(found) > 1:
            names = ", ".join(f"{life.incarnation:016x}" for life in found)
            raise RestoreRefusedError(
                f"{self._store.url} holds {len(found)} clusters: say which with --incarnation. The newest first: "
                f"{names}."
            )
        return found[0]

    async def _rebuilt(self, life: Life, wish: RestoreWish, successor: int) -> tuple[Rebuilt, RestoreReport]:
        snapshot = await read_snapshot(self._store, life)
        report = RestoreReport(
            store=self._store.url,
            snapshot=snapshot.name,
            snapshot_time_ms=snapshot.value["time_ms"],
            incarnation=f"{life.incarnation:016x}",
            successor=f"{successor:016x}",
            broker_id=wish.broker_id,
            now_ms=self._clock.wall_ms(),
            passed_over=list(snapshot.passed_over),
        )
        if snapshot.is_deep:
            report.losses.append(_deep_loss(snapshot))
        survey = await self._survey(snapshot, wish, report)
        rebuilt = rebuild(survey, report, successor, self._new_id)
        seen = {each.object_id for each in survey.listed}
        report.stored_meanwhile = sum(
            each.object_id.incarnation == life.incarnation and each.object_id not in seen
            for each in await list_objects(self._store)
        )
        return rebuilt, report

    async def _survey(self, snapshot: Snapshot, wish: RestoreWish, report: RestoreReport) -> Survey:
        try:
            table = table_of(snapshot.value)
            frontier = frontier_of(snapshot.value, table)
        except (CorruptDataError, LookupError, TypeError, ValueError) as error:
            raise RestoreRefusedError(
                f"{report.snapshot} is whole, but cannot be understood ({error!r}): was it written by a newer version?"
            ) from error
        listed = await list_objects(self._store)
        checked = await check_named(
            self._store,
            table.objects,
            listed,
            bytes_max=wish.verified_bytes_max,
            progress=self._progress,
        )
        newer = await read_newer(self._store, newer_objects(listed, frontier), self._progress)
        unknown = unknown_objects(listed, frontier, table.objects.knows)
        await add_copied(self._store, unknown, newer, with_merged=snapshot.is_deep, progress=self._progress)
        groups, passed_over = await read_groups(self._store, frontier.incarnation)
        report.passed_over += passed_over
        return Survey(snapshot.value, listed, checked, newer, groups, snapshot.is_deep)

    # --- writing -------------------------------------------------------------------------------------------------

    async def _put_groups(self, rebuilt: Rebuilt, successor: int) -> None:
        for found in rebuilt.groups:
            value = groups_value(
                found.stored.json(),
                time_ms=found.time_ms,
                partition_count=found.partition_count,
                generation=0,
                end=0,
            )
            await self._put(GroupsId(successor, found.partition, 0).name, value)

    async def _put_metadata(self, rebuilt: Rebuilt, report: RestoreReport, successor: int) -> None:
        """From here on the bucket alone brings back the new life: twice, so that it does not hang on one object."""
        for end in (rebuilt.end, rebuilt.end - 1):
            snapshot = MetadataId(successor, end)
            value = metadata_value(
                snapshot,
                rebuilt.table,
                time_ms=report.now_ms,
                producer_silence_ms=rebuilt.producer_silence_ms,
            )
            await self._put(snapshot.name, value)

    async def _put(self, name: str, value: Mapping[str, Any]) -> None:
        """Write it and read it back. Raises StoreUnavailableError too if the store has something else then."""
        data = pack_snapshot(value)
        for _ in range(WRITES_MAX):
            with contextlib.suppress(ObjectExistsError):  # Names are new: an earlier try has done it.
                await self._store.put(name, [data])
            if await self._store.get(name) == data:
                return
            await self._store.delete([name])
        raise StoreUnavailableError(
            f"{self._store.url} has other bytes of {name} than were written, {WRITES_MAX} times: check the store, and "
            "run the restore again."
        )

    def _write_folder(self, wish: RestoreWish, rebuilt: Rebuilt, report: RestoreReport) -> None:
        try:
            write_folder(
                self._files,
                wish.data_dir,
                rebuilt,
                wish.broker_id,
                self._new_id(),
                self._boot,
                report.now_ms,
            )
        except OSError as error:
            raise StorageError(
                f"{wish.data_dir} cannot be written ({error.strerror or error}): try again with another --data-dir."
            ) from error


def _deep_loss(snapshot: Snapshot) -> str:
    if snapshot.name is None:
        found = "no snapshot can be read" if snapshot.passed_over else "there is no snapshot in the bucket"
        what = f"{found}, and names and configs of topics are lost"
    else:
        what = f"the {len(snapshot.passed_over)} newest snapshots cannot be read"
    return (
        f"{what}: objects that are needed without them may have been deleted. Records in no object are lost, others "
        "may be there twice, and in compacted topics older values may have come back"
    )


def _refuse_loss(report: RestoreReport, wish: RestoreWish) -> None:
    if report.losses and not wish.accepts_loss:
        lost = "; ".join(report.losses)
        raise RestoreRefusedError(
            f"Not everything can be brought back, --accept-loss goes on without: {lost}."
        )
