"""What makes a bucket enough by itself: schedules in which every disk is lost, and the rules without which records are.

| what is broken | who notices |
| --- | --- |
| a mode change counts though only the metadata log knows where its records are | snapshots fail while a topic changes |
| collected is what the newest snapshot does not need | the newest snapshot is damaged |
| a snapshot counts before it was read back | the store spoils what is written |
| an older snapshot is taken for as good as the newest | the two newest are damaged |
| merged objects are not looked into | the two newest are damaged |
| a sequence that is missing proves that nothing was acknowledged | an object is damaged |
| objects that the listing has are believed to be whole | an older object is cut, or changed |
| their sizes are not compared | an older object is cut, and nothing is read |
| offsets that no checksum covers are believed | an offset in a merged object is changed |
| a request that fails is not repeated | one of five fails |
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from anabranch.broker.object import mode_changes
from anabranch.broker.object.snapshots import ObjectSnapshots
from anabranch.broker.restore import object_check, object_restore, restoring
from anabranch.broker.restore.bucket_survey import Snapshot
from anabranch.broker.restore.restore_report import RestoreReport
from anabranch.errors import AnabranchError
from anabranch.objects.layout import row_check
from anabranch.objects.layout.format import Range, closing
from anabranch.objects.layout.merge import NO_TIMESTAMP, build_object
from anabranch.objects.layout.row_check import ObjectCheck
from anabranch.objects.layout.snapshots import unpack_snapshot
from anabranch.record.crc32c import crc32c
from anabranch.wire.error_codes import ErrorCode
from support import restore_world
from support.broker_cluster import close_all
from support.restore_world import RestoreCluster, is_named

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def comes_back(cluster: RestoreCluster, *, damaged: int = 0, may_lose: bool = False) -> RestoreReport:
    """Lose every disk and so many snapshots, the newest first, and check what is left."""
    rng = Random(1)
    cluster.vanish()
    for name in cluster.snapshots()[:damaged]:
        cluster.steps.damage(name, rng)
    report = cluster.restore_or_accept(rng, may_lose=may_lose)
    cluster.restart()
    for index, line in cluster.lines().items():
        written = cluster.written[index]
        assert all(line.get(offset, value) == value for offset, value in enumerate(written)), "renamed"
        lost = set(written) - set(line.values())
        assert not lost or is_named(report, index, len(lost)), f"{len(lost)} of {index} are lost silently"
        assert not lost, f"{len(lost)} of partition {index} are lost"
    assert sum(map(len, cluster.written.values())), "the schedule is not what it should be"
    return report


def write(cluster: RestoreCluster, count: int) -> None:
    for number in range(count):
        while not cluster.try_produce(number % 2):
            cluster.run(20)


def collected(cluster: RestoreCluster) -> int:
    return sum(what == "delete" and name.startswith("segments/") for what, name in cluster.steps.requests)


def upkeep_goes_on() -> RestoreCluster:
    """Objects were merged, and deleted a moment ago, as soon as snapshots allowed it."""
    cluster = RestoreCluster("object", 1)
    write(cluster, 50)
    cluster.until(lambda: collected(cluster) > 0, 60_000)
    write(cluster, 50)
    before = collected(cluster)
    cluster.until(lambda: collected(cluster) > before, 60_000)
    return cluster


# --- schedules -------------------------------------------------------------------------------------------------------


def snapshots_fail_while_a_topic_changes() -> None:
    cluster = RestoreCluster("ring", 1)
    write(cluster, 20)
    cluster.steps.fails = lambda what, name: what == "put" and name.startswith("metadata/")
    cluster.change("object", "stored", partitions=2)
    write(cluster, 10)
    report = comes_back(cluster)
    assert report.topics == ["t"], "it has lost its name"
    assert cluster.lines()[0][0] == b"0", "what was copied has lost its offsets"


def the_newest_snapshot_is_damaged() -> None:
    comes_back(upkeep_goes_on(), damaged=1)


def the_two_newest_are_damaged() -> None:
    report = comes_back(upkeep_goes_on(), damaged=2, may_lose=True)
    assert report.losses


def the_store_spoils_what_is_written() -> None:
    cluster = RestoreCluster("object", 1)
    store, real = cluster.steps, cluster.steps.put_now
    spoiled: list[str] = []

    def put_now(name: str, pieces: Any) -> None:
        real(name, pieces)
        if name.startswith("metadata/") and name not in spoiled and len(spoiled) < 30:
            spoiled.append(name)
            store.damage(name, Random(1))

    store.put_now = put_now  # type: ignore[method-assign]
    for _ in range(12):
        write(cluster, 10)
        cluster.run(1000)
    assert spoiled, "the schedule is not what it should be"
    comes_back(cluster)


def an_object_is_damaged() -> None:
    """What its producer sent later was acknowledged all the same."""
    cluster = RestoreCluster("object", 1, partitions=1)
    assert cluster.try_produce(0)
    cluster.run(3000)
    cluster.steps.fails = lambda what, name: what == "put" and name.startswith("metadata/")
    known = set(cluster.steps.names)
    for _ in range(5):
        assert cluster.try_produce(0)
    cluster.vanish()
    first = min(name for name in set(cluster.steps.names) - known if name.startswith("segments/"))
    change(cluster, first, 0)
    report = cluster.restore(Random(1), accepts_loss=True)
    cluster.restart()
    assert any(first in line for line in report.losses)
    lost = {b"0", b"2", b"3", b"4", b"5"} - set(cluster.lines()[0].values())
    assert not lost, f"{len(lost)} that came later are lost silently"


def an_older_object(cluster: RestoreCluster) -> str:
    """One that was merged, and that the newest snapshot names."""
    cluster.run(12_000)
    cluster.vanish()
    table = object_restore.table_of(unpack_snapshot(cluster.steps.content(cluster.snapshots()[0])))
    return min(each.name for each in table.objects.referenced() if each.name.startswith("merged/"))


def is_back_or_named(cluster: RestoreCluster, **wish: Any) -> None:
    report = cluster.restore(Random(1), accepts_loss=True, **wish)
    cluster.restart()
    lost_count = 0
    for index, line in cluster.lines().items():
        written = cluster.written[index]
        assert all(line.get(offset, value) == value for offset, value in enumerate(written)), "renamed"
        lost = set(written) - set(line.values())
        assert not lost or is_named(report, index, len(lost)), f"{len(lost)} of {index} are lost silently"
        lost_count += len(lost)
        for at in range(len(written) + 1):
            assert cluster.fetch(at, index)["error_code"] == ErrorCode.NONE, f"reading ends at {at}"
    assert lost_count, "the schedule is not what it should be"


def an_older_object_is_cut() -> None:
    """And none is read."""
    cluster = upkeep_goes_on()
    name = an_older_object(cluster)
    content, modified_ms = cluster.steps._objects[name]
    cluster.steps._objects[name] = content[: len(content) // 2], modified_ms
    is_back_or_named(cluster, verified_bytes_max=0)


def an_older_object_is_changed() -> None:
    cluster = upkeep_goes_on()
    change(cluster, an_older_object(cluster), 70)
    is_back_or_named(cluster)


def an_offset_in_a_merged_object_is_changed() -> None:
    """Its batch holds all the same."""
    cluster = upkeep_goes_on()
    change(cluster, an_older_object(cluster), 7)
    is_back_or_named(cluster)


def change(cluster: RestoreCluster, name: str, position: int) -> None:
    content, modified_ms = cluster.steps._objects[name]
    changed = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
    cluster.steps._objects[name] = changed, modified_ms


def one_of_five_fails() -> None:
    cluster = RestoreCluster("object", 1)
    write(cluster, 30)
    cluster.steps.is_failing = True
    comes_back(cluster)


# --- rules -----------------------------------------------------------------------------------------------------------


def copies_do_not_say_what_they_are(patch: Patch) -> None:
    """As any object of a partition: of which records, also if of none, but not which offsets it stands for."""

    def build(key: Any, parts: Any, span: Any, object_id: Any) -> Any:
        if not parts:
            return [closing([Range(key, 0, 0, 0, 0, NO_TIMESTAMP, crc32c(b""))])], []
        pieces, rows = build_object({key: parts}, object_id)
        return pieces, rows[key]

    patch.setattr(mode_changes, "build_copied_object", build)


def collected_by_the_newest_alone(patch: Patch) -> None:
    def covers(self: ObjectSnapshots, object_id: Any) -> bool:
        return bool(self._verified) and object_id in self._verified[-1].given_up

    patch.setattr(ObjectSnapshots, "covers", covers)


def an_older_snapshot_is_as_good(patch: Patch) -> None:
    patch.setattr(Snapshot, "is_deep", False)


def merged_objects_are_ignored(patch: Patch) -> None:
    real = restoring.add_copied

    async def add_copied(*args: Any, **named: Any) -> None:
        await real(*args, **{**named, "with_merged": False})

    patch.setattr(restoring, "add_copied", add_copied)


def nothing_is_read_back(patch: Patch) -> None:
    async def verify(self: ObjectSnapshots, snapshot: Any, data: bytes) -> None:
        """Believe it."""

    patch.setattr(ObjectSnapshots, "_verify", verify)


def a_missing_sequence_is_a_proof(patch: Patch) -> None:
    real = object_restore.append_again

    def append_again(*args: Any, **named: Any) -> Any:
        return real(*args, **{**named, "is_whole": True})

    patch.setattr(object_restore, "append_again", append_again)


def the_listing_is_believed(patch: Patch) -> None:
    patch.setattr(object_check, "check_object", lambda data, named: ObjectCheck({}, None))


def sizes_are_ignored(patch: Patch) -> None:
    patch.setattr(object_check, "_is_short", lambda each, named: False)


def offsets_are_believed(patch: Patch) -> None:
    patch.setattr(row_check, "_uncertain", lambda broken, named: {})


def nothing_is_repeated(patch: Patch) -> None:
    patch.setattr(restore_world, "RetryingStore", lambda store, clock: store)


SCHEDULES: list[tuple[Callable[[], None], Callable[[Patch], None], str]] = [
    (snapshots_fail_while_a_topic_changes, copies_do_not_say_what_they_are, "^renamed"),
    (the_newest_snapshot_is_damaged, collected_by_the_newest_alone, "their objects are gone from the store"),
    (the_two_newest_are_damaged, an_older_snapshot_is_as_good, "^renamed"),
    (the_two_newest_are_damaged, merged_objects_are_ignored, r"^\d+ of partition \d are lost"),
    (the_store_spoils_what_is_written, nothing_is_read_back, "no snapshot can be read"),
    (an_object_is_damaged, a_missing_sequence_is_a_proof, r"^4 that came later are lost silently"),
    (an_older_object_is_changed, the_listing_is_believed, "checksum of a record batch does not match"),
    (an_older_object_is_cut, the_listing_is_believed, "bytes where its row says"),
    (an_older_object_is_cut, sizes_are_ignored, "bytes where its row says"),
    (an_offset_in_a_merged_object_is_changed, offsets_are_believed, "^renamed"),
    (one_of_five_fails, nothing_is_repeated, r"^(503|No answer) to "),
]
"""What happens, the rule that is broken, and what is said of it."""


@pytest.mark.parametrize(
    "happens", dict.fromkeys(each for each, _, _ in SCHEDULES), ids=lambda each: each.__name__
)
def test_schedule_loses_nothing(happens: Callable[[], None]) -> None:
    happens()


@pytest.mark.parametrize(
    ("happens", "mutant", "reason"),
    SCHEDULES,
    ids=lambda each: each.__name__ if callable(each) else "for_its_reason",
)
def test_schedule_catches(
    happens: Callable[[], None], mutant: Callable[[Patch], None], reason: str, monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, AnabranchError), match=reason):
        happens()
