"""Segments that a job compacted go in when they are right, and change nothing when they are not or at a crash."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from compacted_logs import (
    CONFIG,
    due_plan,
    fill_table,
    killed_at_every_step,
    open_compacted,
    opened_as_before,
    put,
    table,
)
from log_helpers import FOLDER, NOW_MS, read_all

from anabranch.errors import CorruptDataError, OfferRefusedError, PipelineError, StorageError
from anabranch.log.cleaner import clean_now
from anabranch.log.disk.files import Files
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.external_compaction import answer, is_offered, left_over, matched, read_offer, take
from anabranch.log.log import Log
from anabranch.pipeline.jobs.compact_partition import CompactTask, await_outcome, offer_compacted
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.compaction.offer_format import FOLDER as OFFERED
from anabranch.record.compaction.offer_format import (
    MANIFEST_BYTES_MAX,
    Offer,
    OfferedSource,
    Outcome,
    file_name,
)
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset
from support.offers import Spoil, lay_manifest, lay_offer

LAST_OFFSETS: dict[int, int] = {}


def take_in(files: Files, log: Log, *, now_ms: int = NOW_MS, keys_max: int = 10_000) -> None:
    """What the broker does, in one thread."""
    offer = read_offer(files, log.folder)
    if offer is not None:
        mapped = matched(offer, due_plan(log, now_ms=now_ms), keys_max, LAST_OFFSETS)
        for group in mapped.groups:
            log.prepare_rewrite()
            rewritten = take(files, mapped, group)
            assert log.swap_in(rewritten)
            log.finish_swap(rewritten)
    answer(files, log.folder, None if offer is None else Outcome(offer.id, True, ""))


def log_files(disk: FakeDisk) -> dict[str, bytes]:
    return {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if name.endswith(".log")}


def test_an_offer_goes_in_as_if_the_cleaner_had_written_it() -> None:
    ours, theirs = FakeDisk(), FakeDisk()
    for disk in (ours, theirs):
        log = open_compacted(disk)
        fill_table(log, Random(1), 100)
        before, end = table(log), log.end_offset
        if disk is ours:
            clean_now(disk, log, due_plan(log))
        else:
            lay_offer(disk, log, NOW_MS)
            take_in(disk, log)
        assert (table(log), log.end_offset) == (before, end)
        log.close()
    sizes = [{name: len(data) for name, data in log_files(disk).items()} for disk in (ours, theirs)]
    assert sizes[0] == sizes[1]
    assert left_over(theirs, FOLDER) == frozenset()
    again = open_compacted(theirs, clean=True)
    assert (table(again), again.quarantined) == (before, [])


def test_the_job_offers_from_real_files_what_the_broker_takes(tmp_path: Path) -> None:
    files, folder = RealFiles(), str(tmp_path / "t-0")
    log = Log.open(files, folder, CONFIG, clean=False)
    fill_table(log, Random(4), 120)
    before, size = table(log), log.size_bytes
    task = CompactTask(0, folder, 0, CONFIG.segment_bytes, CONFIG.delete_retention_ms, 0, 1000, 2**20)
    offered = offer_compacted(task, NOW_MS - 500)
    assert offered.offer_id
    assert offered.bytes_after < offered.bytes_before / 3
    assert "another" in offer_compacted(task).reason
    take_in(files, log)
    assert table(log) == before
    assert log.size_bytes < size / 3
    settled = await_outcome(folder, offered, deadline=0.0)
    assert (settled.taken, settled.reason) == (True, "")
    assert "not compacted before" in offer_compacted(replace(task, first_dirty=log.end_offset)).reason
    log.close()


def test_the_job_leaves_alone_what_is_younger_than_the_minimal_lag(tmp_path: Path) -> None:
    files, folder = RealFiles(), str(tmp_path / "t-0")
    log = Log.open(files, folder, replace(CONFIG, compaction_lag_ms_min=1000), clean=False)
    fill_table(log, Random(4), 40)
    task = CompactTask(0, folder, 0, CONFIG.segment_bytes, CONFIG.delete_retention_ms, 1000, 1000, 2**20)
    assert not offer_compacted(task, NOW_MS + 999).offer_id
    assert offer_compacted(task, NOW_MS + 1000).offer_id
    take_in(files, log, now_ms=NOW_MS + 1000)
    log.close()


def test_the_job_writes_private_files_and_follows_no_link(tmp_path: Path) -> None:
    files, folder = RealFiles(), str(tmp_path / "t-0")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    log = Log.open(files, folder, CONFIG, clean=False)
    fill_table(log, Random(4), 120)
    task = CompactTask(0, folder, 0, CONFIG.segment_bytes, CONFIG.delete_retention_ms, 0, 1000, 2**20)
    aside = Path(folder) / "offered"
    aside.symlink_to(outside)
    with pytest.raises(PipelineError, match="symbolic link"):
        offer_compacted(task, NOW_MS - 500)
    assert [each.name for each in outside.iterdir()] == ["precious"]
    aside.unlink()
    assert offer_compacted(task, NOW_MS - 500).offer_id
    assert aside.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in aside.iterdir()} == {0o600}
    log.close()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_every_step_of_taking_in_the_last_value_of_every_key_is_there(seed: int) -> None:
    for killed in killed_at_every_step(seed, take_in, lambda disk, log: lay_offer(disk, log, NOW_MS)):
        for after in killed.disks(6):
            again = opened_as_before(killed, after)
            _settle_what_is_left(after, again)
            assert table(again) == killed.table, f"step {killed.step}, looked at again"
            assert left_over(after, FOLDER) == frozenset()
    assert killed.step > 25


def _settle_what_is_left(disk: FakeDisk, log: Log) -> None:
    if is_offered(disk, FOLDER):
        try:
            take_in(disk, log)
        except OfferRefusedError as error:
            answer(disk, FOLDER, Outcome("job", False, str(error)))
    elif left_over(disk, FOLDER):
        answer(disk, FOLDER, None)


def doubled(batches: list[bytes]) -> list[bytes]:
    return [*batches[:1], *batches]


def shuffled(batches: list[bytes]) -> list[bytes]:
    return batches[::-1]


def shortened(batches: list[bytes]) -> list[bytes]:
    return batches[:-1]


def emptied(batches: list[bytes]) -> list[bytes]:
    return []


def torn(batches: list[bytes]) -> list[bytes]:
    return [*batches[:-1], batches[-1][:-1]]


def rotten(batches: list[bytes]) -> list[bytes]:
    spoiled = bytearray(batches[0])
    spoiled[70] ^= 1
    return [bytes(spoiled), *batches[1:]]


def followed_by_zeros(batches: list[bytes]) -> list[bytes]:
    return [*batches, bytes(200)]


def with_a_stranger(batches: list[bytes]) -> list[bytes]:
    builder = BatchBuilder(read_header(batches[-1]).last_offset + 1)
    builder.add(b"key0", b"from nowhere", timestamp_ms=NOW_MS)
    return [*batches, bytes(builder.build())]


def with_another_value(batches: list[bytes]) -> list[bytes]:
    header = read_header(batches[-1])
    builder = BatchBuilder(header.base_offset, producer_id=header.producer_id)
    builder.add(b"key0", b"forged", timestamp_ms=NOW_MS)
    return [*batches[:-1], bytes(builder.build(header.last_offset_delta))]


@pytest.mark.parametrize(
    "spoil",
    [
        doubled,
        shuffled,
        shortened,
        emptied,
        torn,
        rotten,
        followed_by_zeros,
        with_a_stranger,
        with_another_value,
    ],
)
def test_a_spoiled_file_is_refused_and_the_segments_it_speaks_of_stay(spoil: Spoil) -> None:
    disk = FakeDisk()
    log = open_compacted(disk, config=replace(CONFIG, segment_bytes=100_000))
    for _ in range(3):
        fill_table(log, Random(2), 30)
        log.roll()
    fill_table(log, Random(2), 1)
    lay_offer(disk, log, NOW_MS, spoil=spoil)
    before, batches = log_files(disk), read_all(log)
    with pytest.raises(OfferRefusedError):
        take_in(disk, log)
    assert read_all(log) == batches
    log.prepare_rewrite()
    assert log_files(disk) == before
    answer(disk, FOLDER, Outcome("job", False, "spoiled"))
    assert left_over(disk, FOLDER) == frozenset()
    clean_now(disk, log, due_plan(log))


@pytest.mark.parametrize("seed", range(40))
def test_one_flipped_bit_anywhere_loses_nothing(seed: int) -> None:
    rng, disk = Random(seed), FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 60)
    before = table(log)
    lay_offer(disk, log, NOW_MS)
    name = rng.choice(
        [name for name in disk.list(f"{FOLDER}/{OFFERED}") if disk.size(f"{FOLDER}/{OFFERED}/{name}")]
    )
    path = f"{FOLDER}/{OFFERED}/{name}"
    disk.flip_bit(path, rng.randrange(disk.size(path)))
    with pytest.raises(OfferRefusedError):
        take_in(disk, log)
    assert table(log) == before


def test_an_offer_for_a_log_that_has_changed_is_refused() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(5), 60)
    lay_offer(disk, log, NOW_MS)
    clean_now(disk, log, due_plan(log))
    fill_table(log, Random(6), 60)
    after = read_all(log)
    with pytest.raises(OfferRefusedError, match="changed meanwhile"):
        take_in(disk, log)
    assert read_all(log) == after


def test_an_offer_made_of_the_active_segment_is_refused() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(5), 20)
    offer = lay_offer(disk, log, NOW_MS)
    active = log.segments[-1]
    groups = [*offer.groups, [OfferedSource(active.base_offset, active.published_bytes)]]
    lay_manifest(disk, FOLDER, Offer("job", log.end_offset, groups))
    with pytest.raises(OfferRefusedError, match="may be compacted"):
        take_in(disk, log)


def test_an_offer_that_leaves_out_a_segment_is_refused() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(5), 60)
    offer = lay_offer(disk, log, NOW_MS)
    lay_manifest(disk, FOLDER, offer._replace(groups=offer.groups[1:]))
    with pytest.raises(OfferRefusedError, match="other segments"):
        take_in(disk, log)


def test_an_offer_that_claims_to_know_keys_it_did_not_read_is_refused() -> None:
    disk = FakeDisk()
    log = open_compacted(disk, config=replace(CONFIG, segment_bytes=100_000))
    put(log, [(b"a", b"1")])
    put(log, [(b"b", b"1")])
    put(log, [(b"a", b"2")])
    log.roll()
    offer = lay_offer(disk, log, NOW_MS)
    lay_manifest(disk, FOLDER, offer._replace(upto=Offset(2)))
    with pytest.raises(OfferRefusedError, match="offset 0"):
        take_in(disk, log)
    assert table(log) == {b"a": b"2", b"b": b"1"}


def test_more_keys_than_the_cleaners_map_holds_are_refused_with_the_setting_to_raise() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 80, keys=40)
    lay_offer(disk, log, NOW_MS)
    with pytest.raises(OfferRefusedError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        take_in(disk, log, keys_max=6)


def test_a_map_that_was_full_half_way_is_taken_as_far_as_it_reached() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 80, keys=40)
    before = table(log)
    offer = lay_offer(disk, log, NOW_MS, keys_max=6)
    assert offer.upto < log.segments[-1].base_offset
    take_in(disk, log, keys_max=6)
    assert table(log) == before


def test_a_missing_file_is_refused() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 60)
    lay_offer(disk, log, NOW_MS)
    disk.unlink(f"{FOLDER}/{OFFERED}/{file_name(log.segments[0].base_offset)}")
    with pytest.raises(OfferRefusedError, match="not there"):
        take_in(disk, log)


def test_a_manifest_of_any_size_is_not_read() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    disk.make_folder(f"{FOLDER}/{OFFERED}")
    disk.write(f"{FOLDER}/{OFFERED}/manifest", bytes(MANIFEST_BYTES_MAX + 1))
    with pytest.raises(OfferRefusedError, match="bytes"):
        read_offer(disk, log.folder)


def test_a_batch_of_the_log_itself_that_does_not_hold_is_no_fault_of_the_offer() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 60)
    lay_offer(disk, log, NOW_MS)
    disk.flip_bit(log.segments[1].file.path, 80)
    with pytest.raises(CorruptDataError):
        take_in(disk, log)


def test_a_disk_that_refuses_leaves_the_log_as_it_was() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 60)
    before = read_all(log)
    lay_offer(disk, log, NOW_MS)
    disk.fail_next("create", path_contains=".clean")
    with pytest.raises(StorageError):
        take_in(disk, log)
    assert read_all(log) == before
    take_in(disk, log)


def test_an_offer_that_was_answered_already_is_only_removed() -> None:
    disk = FakeDisk()
    log = open_compacted(disk)
    fill_table(log, Random(3), 60)
    lay_offer(disk, log, NOW_MS)
    take_in(disk, log)
    after = read_all(log)
    put(log, [(b"z", b"1")])
    log.roll()
    lay_offer(disk, log, NOW_MS)
    assert read_offer(disk, FOLDER) is None
    answer(disk, FOLDER, None)
    assert left_over(disk, FOLDER) == frozenset()
    assert read_all(log)[: len(after)] == after


def test_what_changes_in_the_file_after_it_was_checked_is_not_taken() -> None:
    disk = FakeDisk()
    log = open_compacted(disk, config=replace(CONFIG, segment_bytes=100_000))
    fill_table(log, Random(3), 60)
    log.roll()
    before = table(log)
    offer = lay_offer(disk, log, NOW_MS)
    mapped = matched(offer, due_plan(log), 10_000, LAST_OFFSETS)
    log.prepare_rewrite()
    rewritten = take(disk, mapped, mapped.groups[0])
    path = f"{FOLDER}/{OFFERED}/{file_name(Offset(0))}"
    disk.write(path, b"x" * disk.size(path))
    assert log.swap_in(rewritten)
    log.finish_swap(rewritten)
    assert table(log) == before
