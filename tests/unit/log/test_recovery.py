"""What a crash, a cut or rot leaves behind is cut, rebuilt or moved aside, never served wrong."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch, offsets_of, open_on, read_all

from anabranch.errors import CorruptDataError, StorageError
from anabranch.log.disk.checkpoint import RecoveryPoint
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
from anabranch.log.quarantine import listed
from anabranch.log.repair import put_back, rotten, suspect
from anabranch.log.segment.timestamps import settled
from anabranch.log.settings import LogConfig
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

LOG = f"{FOLDER}/00000000000000000000.log"
INDEX = f"{FOLDER}/00000000000000000000.index"
TIME_INDEX = f"{FOLDER}/00000000000000000000.timeindex"


def test_a_tail_cut_at_every_byte_of_the_last_batch_leaves_the_batches_before(
    open_log: Open, disk: FakeDisk
) -> None:
    written = fill(open_log(), 3)
    whole = b"".join(written)
    for size in range(len(written[0]) + len(written[1]), len(whole)):
        disk.kill()
        disk.write(LOG, whole[:size])
        log = open_log()
        assert read_all(log) == written[:2]
        assert disk.size(LOG) == len(written[0]) + len(written[1])
        assert fill(log, 1) == written[2:]


@pytest.mark.parametrize("zeros", [1, 11, 12, 16, 17, 60, 61, 62, 4096, 100_000])
def test_a_tail_of_zeros_is_cut(open_log: Open, disk: FakeDisk, zeros: int) -> None:
    written = fill(open_log(), 3)
    disk.kill()
    disk.write(LOG, bytes(zeros), disk.size(LOG))
    log = open_log()
    assert read_all(log) == written
    assert (log.cut_bytes, log.quarantined) == (zeros, [])


def test_the_scan_begins_near_the_recovery_point(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(index_interval_bytes=300)
    written = fill(log, 200)
    log.flush_indexes()
    written += fill(log, 50)
    disk.kill()
    again = open_log(point=195, index_interval_bytes=300)
    assert again.scanned_bytes < len(b"".join(written[185:]))
    assert read_all(again) == written
    assert settled(again.max_timestamp()) == (249, NOW_MS + 249, 3)


def test_bytes_of_a_failed_write_before_the_next_segment_are_cut_and_nothing_else(
    open_log: Open, disk: FakeDisk
) -> None:
    written = fill(open_log(), 3)
    whole = b"".join(written)
    torn, following = make_batch(3, value_bytes=500)[0], make_batch(3)[0]
    disk.kill()
    disk.write(LOG, whole + torn[:300])
    disk.write(f"{FOLDER}/{3:020d}.log", following)
    log = open_log(point=3)
    assert read_all(log) == [*written, bytes(following)]
    assert (disk.size(LOG), log.quarantined) == (len(whole), [])


def test_a_log_cut_by_hand_below_its_recovery_point_still_opens(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(index_interval_bytes=100)
    written = fill(log, 20)
    log.flush_indexes()
    disk.kill()
    disk.write(LOG, b"".join(written[:7])[:-5])
    assert read_all(open_log(point=20)) == written[:6]


def test_a_clean_mark_that_lies_is_found_out_by_the_last_batch(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 5)
    log.close()
    disk.kill()
    disk.write(LOG, b"".join(written)[:-1])
    assert read_all(open_log(clean=True)) == written[:4]


def test_the_indexes_of_a_recovered_log_are_those_of_one_that_was_never_stopped(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log(index_interval_bytes=300)
    fill(log, 100)
    log.flush_indexes()
    expected = disk.read(INDEX)
    for path in (INDEX, TIME_INDEX):
        disk.unlink(path)
    disk.kill()
    log = open_log(index_interval_bytes=300)
    log.flush_indexes()
    assert disk.read(INDEX) == expected
    assert len(expected) % 8 == 0
    assert expected


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: None,
        lambda data: b"",
        lambda data: data[:-3],
        lambda data: data[:24],
        lambda data: bytes(len(data)),
        lambda data: data[:40] + bytes(len(data) - 40),
        lambda data: b"\xff" * len(data),
        lambda data: data[8:16] + data[:8] + data[16:],
        lambda data: data + (2**30).to_bytes(4, "big") * 2,
        lambda data: bytes(reversed(data)),
        lambda data: b"".join(
            bytes([byte ^ 1]) if at % 8 == 7 else bytes([byte]) for at, byte in enumerate(data)
        ),
        lambda data: b"".join(
            bytes([byte ^ 1]) if at % 8 == 3 else bytes([byte]) for at, byte in enumerate(data)
        ),
    ],
)
@pytest.mark.parametrize("which", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_short_or_garbled_index_changes_no_answer(
    open_log: Open, disk: FakeDisk, damage: object, which: str, clean: bool
) -> None:
    log = open_log(segment_bytes=4000, index_interval_bytes=200)
    written = fill(log, 90)
    log.close()
    disk.kill()
    garbled = damage(disk.read(which))
    disk.unlink(which)
    if garbled is not None:
        disk.write(which, garbled)
    log = open_log(clean=clean, point=80, segment_bytes=4000, index_interval_bytes=200)
    assert read_all(log, bytes_max=500) == written
    for offset in range(90):
        assert offsets_of(read_all(log, offset, bytes_max=1)[:1]) == [offset]
    if which == INDEX:
        for offset in range(90):
            assert settled(log.offset_for_time(NOW_MS + offset)) == (offset, NOW_MS + offset, 3)


@pytest.mark.parametrize("seed", range(20))
def test_true_entries_of_an_index_in_any_order_change_no_answer(
    open_log: Open, disk: FakeDisk, seed: int
) -> None:
    log = open_log(segment_bytes=4000, index_interval_bytes=200)
    written = fill(log, 90)
    log.close()
    data = disk.read(INDEX)
    entries = [data[at : at + 8] for at in range(0, len(data), 8)]
    Random(seed).shuffle(entries)
    disk.write(INDEX, b"".join(entries))
    log = open_log(clean=True, segment_bytes=4000, index_interval_bytes=200)
    assert read_all(log, bytes_max=500) == written
    for offset in range(90):
        assert offsets_of(read_all(log, offset, bytes_max=1)[:1]) == [offset]


def test_a_flipped_bit_anywhere_in_a_sealed_segment_is_an_error_or_harmless(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log(segment_bytes=500, index_interval_bytes=100)
    written = fill(log, 12)
    log.close()
    whole = disk.read(LOG)
    assert len(log.segments) > 2
    for position in range(len(whole)):
        disk.kill()
        disk.flip_bit(LOG, position, position % 8)
        log = open_log(clean=True, segment_bytes=500, index_interval_bytes=100)
        with pytest.raises(CorruptDataError):
            read_all(log)
        for start in (1, 3):
            with suppress(CorruptDataError):
                assert read_all(log, start) == written[start:]
        after = log.segments[1].base_offset
        assert read_all(log, after) == written[after:]
        disk.flip_bit(LOG, position, position % 8)


def test_a_flipped_bit_is_found_in_what_was_read_as_good_before(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=500)
    fill(log, 12)
    log.close()
    log = open_log(clean=True, segment_bytes=500)
    read_all(log)
    disk.flip_bit(LOG, 70)
    with pytest.raises(CorruptDataError):
        log.slice(Offset(0), 100, Offset(12)).read()
    log = open_log(clean=True, segment_bytes=500)
    found = log.slice(Offset(0), 100, Offset(12))
    assert not found.verified
    with pytest.raises(CorruptDataError):
        found.verify()


def test_segments_after_a_torn_one_are_moved_aside_and_listed(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=300)
    written = fill(log, 12)
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    disk.kill()
    torn = f"{FOLDER}/{bases[2]:020d}.log"
    disk.write(torn, disk.read(torn)[:-7])
    log = open_log(clean=False, segment_bytes=300)
    assert read_all(log) == written[: bases[3] - 1]
    moved = {entry.name for entry in log.quarantined}
    assert {f"{base:020d}.log" for base in bases[3:]} <= moved
    assert listed(disk, FOLDER) == log.quarantined
    kept = disk.list(f"{FOLDER}/quarantine")
    assert moved <= set(kept)
    assert b"".join(disk.read(f"{FOLDER}/quarantine/{base:020d}.log") for base in bases[3:]) == b"".join(
        written[bases[3] :]
    )
    again = fill(log, 4)
    assert read_all(log) == written[: bases[3] - 1] + again


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rest", [b"garbage", bytes(100)])
def test_bytes_behind_the_last_record_of_a_sealed_segment_are_cut_and_nothing_else(
    open_log: Open, disk: FakeDisk, rest: bytes, clean: bool
) -> None:
    log = open_log(segment_bytes=300)
    written = fill(log, 12)
    path = log.segments[1].file.path
    log.close()
    disk.kill()
    disk.write(path, disk.read(path) + rest)
    log = open_log(clean=clean, segment_bytes=300)
    assert (read_all(log), log.cut_bytes, log.quarantined) == (written, len(rest), [])


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_batch_that_reaches_into_the_next_segment_is_cut_when_that_is_moved_aside(
    open_log: Open, disk: FakeDisk, is_sealed: bool
) -> None:
    log = open_log(segment_bytes=300)
    written = fill(log, 6, count=5)
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    disk.kill()
    disk.flip_bit(f"{FOLDER}/{bases[2]:020d}.log", 7, bit=4)
    if not is_sealed:
        disk.unlink(f"{FOLDER}/{bases[2]:020d}.seal")
    log = open_log(segment_bytes=300)
    assert (log.end_offset, read_all(log)) == (bases[2], written[:2])


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_segment_leaves_what_comes_before_and_moves_aside_what_comes_after(
    open_log: Open, disk: FakeDisk, clean: bool
) -> None:
    log = open_log(segment_bytes=300)
    written = fill(log, 12)
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    disk.kill()
    disk.unlink(f"{FOLDER}/{bases[2]:020d}.log")
    log = open_log(clean=clean, segment_bytes=300)
    assert read_all(log) == written[: bases[2]]
    assert all("missing" in entry.reason for entry in log.quarantined)
    assert len(log.quarantined) >= len(bases) - 3


def test_a_log_file_with_an_unreadable_name_is_moved_aside(open_log: Open, disk: FakeDisk) -> None:
    fill(open_log(), 2)
    disk.write(f"{FOLDER}/1.log", b"what is this")
    disk.write(f"{FOLDER}/notes.txt", b"not ours to touch")
    disk.kill()
    log = open_log()
    assert [entry.name for entry in log.quarantined] == ["1.log"]
    assert log.end_offset == 2
    assert disk.read(f"{FOLDER}/notes.txt") == b"not ours to touch"


def test_good_batches_behind_a_bad_one_are_kept_aside_before_the_cut(open_log: Open, disk: FakeDisk) -> None:
    written = fill(open_log(), 5)
    disk.kill()
    disk.flip_bit(LOG, len(written[0]) + 70)
    log = open_log()
    assert read_all(log) == written[:1]
    (entry,) = log.quarantined
    assert entry.size_bytes == len(b"".join(written[1:]))


def test_segments_below_the_start_of_the_log_are_removed_not_mourned(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=300)
    fill(log, 12)
    bases = [segment.base_offset for segment in log.segments]
    disk.kill()
    disk.unlink(f"{FOLDER}/{bases[1]:020d}.log")
    log = Log.open(disk, FOLDER, LogConfig(), clean=False, start_offset=Offset(bases[2] + 1))
    assert (log.start_offset, log.end_offset, log.quarantined) == (bases[2] + 1, 12, [])
    assert not disk.exists(LOG)


def test_a_batch_given_twice_the_same_offset_ends_the_log_before_it(open_log: Open, disk: FakeDisk) -> None:
    written = fill(open_log(), 4)
    disk.kill()
    disk.write(LOG, b"".join([*written, bytes(make_batch(2)[0])]))
    assert read_all(open_log()) == written


def test_what_an_older_process_wrote_is_verified_though_this_one_appends_behind_it(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log()
    fill(log, 5)
    log.close()
    disk.kill()
    disk.flip_bit(LOG, 80)
    log = open_log(clean=True)
    written = fill(log, 5)
    assert read_all(log, 5) == written
    with pytest.raises(CorruptDataError):
        read_all(log)


def test_what_is_appended_after_a_truncation_is_what_is_read(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    fill(log, 5)
    log.close()
    disk.kill()
    log = open_log(clean=True)
    read_all(log)
    log.truncate_to(Offset(2))
    fill(log, 3, value_bytes=21)
    log.close()
    disk.kill()
    log = open_log(clean=True)
    assert not log.slice(Offset(0), 10_000, Offset(5)).verified
    assert offsets_of(read_all(log)) == [0, 1, 2, 3, 4]


def test_a_log_that_ends_below_its_durable_start_goes_on_at_its_start(disk: FakeDisk) -> None:
    def open_at(start: int, *, clean: bool = False) -> Log:
        return Log.open(disk, FOLDER, LogConfig(), clean=clean, start_offset=Offset(start))

    fill(open_at(0), 5)
    disk.kill()
    log = open_at(10)
    assert (log.start_offset, log.end_offset) == (10, 10)
    written = fill(log, 3)
    log.close()
    disk.kill()
    again = open_at(10, clean=True)
    assert (again.start_offset, again.end_offset) == (10, 13)
    assert read_all(again) == written


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("loss", ["shortened", "removed"])
def test_what_was_safe_stays_where_it_is_behind_a_segment_that_rots(
    open_log: Open, disk: FakeDisk, loss: str, clean: bool
) -> None:
    log = open_log(segment_bytes=400)
    written = fill(log, 40)
    log.close()
    disk.kill()
    path, third = log.segments[1].file.path, log.segments[2].base_offset
    if loss == "shortened":
        disk.write(path, disk.read(path)[:-5])
    else:
        disk.unlink(path)
    again = open_log(clean=clean, point=RecoveryPoint(Offset(40), Offset(40)), segment_bytes=400)
    assert (again.start_offset, again.end_offset, again.quarantined) == (0, 40, [])
    assert len(again.damaged) == 1
    assert read_all(again, start=third) == written[third:]
    if loss == "shortened":
        with pytest.raises(CorruptDataError):
            read_all(again)


def shortened(disk: FakeDisk) -> None:
    disk.write(LOG, disk.read(LOG)[:-5])


def flipped(disk: FakeDisk) -> None:
    disk.flip_bit(LOG, 70)


def garbled(disk: FakeDisk) -> None:
    disk.write(LOG, b"no batch" * 50)


@pytest.mark.parametrize("spoil", [shortened, flipped, garbled, lambda disk: disk.unlink(LOG)])
def test_a_precious_log_that_has_lost_what_was_safe_is_not_opened_and_not_touched(
    open_log: Open, disk: FakeDisk, spoil: Callable[[FakeDisk], None]
) -> None:
    log = open_log(index_interval_bytes=100)
    fill(log, 20)
    log.sync()
    log.flush_indexes()
    disk.kill()
    spoil(disk)
    before = disk.read(LOG) if disk.exists(LOG) else b""
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="restore data/t-0 from a backup"):
            Log.open(
                disk,
                FOLDER,
                LogConfig(),
                clean=False,
                recovery_point=RecoveryPoint(Offset(0), Offset(20)),
                precious=True,
            )
    assert (disk.read(LOG) if disk.exists(LOG) else b"") == before


def test_a_precious_log_whose_last_write_was_torn_opens(disk: FakeDisk, open_log: Open) -> None:
    written = fill(open_log(), 5)
    disk.kill()
    disk.write(LOG, disk.read(LOG)[:-5])
    point = RecoveryPoint(Offset(0), Offset(4))
    log = Log.open(disk, FOLDER, LogConfig(), clean=False, recovery_point=point, precious=True)
    assert read_all(log) == written[:4]
    assert log.damaged == []


def test_a_log_that_is_gone_does_not_give_its_offsets_again(disk: FakeDisk, open_log: Open) -> None:
    log = open_log(clean=True, point=RecoveryPoint(Offset(20), Offset(20)))
    assert (log.start_offset, log.end_offset, len(log.damaged)) == (20, 20, 1)
    written = fill(log, 2)
    log.close()
    disk.kill()
    assert read_all(open_log(clean=True)) == written


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(
    ("loss", "knows"),
    [(loss, "point") for loss in ("shortened", "emptied", "removed")] + [("shortened", "seal")],
)
def test_an_only_copy_that_has_lost_its_end_does_not_give_its_offsets_again(
    open_log: Open, disk: FakeDisk, loss: str, knows: str, clean: bool
) -> None:
    log = open_log(segment_bytes=400)
    written = fill(log, 40)
    log.close()
    disk.kill()
    path = log.segments[-1].file.path
    if loss == "removed":
        disk.unlink(path)
    else:
        disk.write(path, disk.read(path)[:-5] if loss == "shortened" else b"", sync=True)
    disk.sync_folder(FOLDER)
    point = RecoveryPoint(Offset(40), Offset(40)) if knows == "point" else None

    def open_again(*, clean: bool = clean) -> Log:
        config = LogConfig(segment_bytes=400)
        return Log.open(disk, FOLDER, config, clean=clean, recovery_point=point, is_only_copy=True)

    again = open_again()
    left = read_all(again)
    assert left == written[: len(left)]
    assert (again.end_offset, len(left) < 40, bool(again.damaged)) == (40, True, True)
    assert again.synced_offset == (40 if clean or point is not None else 0)
    assert not again.is_synced, "the next sync makes the new segment's name durable"
    added = fill(again, 3)
    assert read_all(again) == left + added
    again.sync()
    disk.crash(Random(1))
    once_more = open_again(clean=False)
    assert (read_all(once_more), once_more.end_offset) == (left + added, 43)


@pytest.mark.parametrize("kind", ["fake", "real"])
def test_a_segment_that_somebody_removes_is_damage_and_no_reason_to_try_again(
    disk: FakeDisk, tmp_path: Path, kind: str
) -> None:
    files, folder = (disk, FOLDER) if kind == "fake" else (RealFiles(), f"{tmp_path}/t-0")
    open_log = open_on(files, folder)
    log = open_log(segment_bytes=400)
    written = fill(log, 40)
    log.close()
    log = open_log(clean=True, segment_bytes=400)
    first, gone, third = log.segments[:3]
    files.unlink(gone.file.path)
    assert read_all(log, start=third.base_offset) == written[third.base_offset :]
    with pytest.raises(CorruptDataError, match="is missing: somebody has removed it"):
        read_all(log)
    with pytest.raises(CorruptDataError, match="is missing"):
        settled(log.offset_for_time(NOW_MS + gone.base_offset))
    (bad,) = rotten(suspect(gone))
    with pytest.raises(StorageError, match="cannot be repaired"):
        put_back(gone.file, bad, b"".join(written[bad.start : bad.end]))
    dropped = log.slice(Offset(0), 10_000, first.published_offset)
    log.drop([first])
    log.delete_files([first])
    with pytest.raises(StorageError, match="closed"):
        dropped.read()


@pytest.mark.parametrize("clean", [False, True])
def test_a_first_segment_that_is_gone_is_a_loss_unless_it_was_deleted(
    open_log: Open, disk: FakeDisk, clean: bool
) -> None:
    log = open_log(segment_bytes=400)
    fill(log, 40)
    log.close()
    disk.kill()
    second = log.segments[1].base_offset
    disk.unlink(log.segments[0].file.path)

    def open_again(start_offset: int) -> Log:
        return Log.open(
            disk,
            FOLDER,
            LogConfig(segment_bytes=400),
            clean=clean,
            recovery_point=RecoveryPoint(Offset(40), Offset(40)),
            start_offset=Offset(start_offset),
            is_start_sure=True,
        )

    log = open_again(0)
    assert (log.start_offset, log.damaged) == (
        second,
        [f"{FOLDER} begins at {second}, and began at 0 before"],
    )
    assert open_again(second).damaged == []


def test_a_copy_that_others_have_too_ends_where_its_records_do(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 20)
    log.close()
    disk.write(LOG, disk.read(LOG)[:-5])
    again = open_log(clean=True, point=RecoveryPoint(Offset(20), Offset(20)))
    assert (read_all(again), again.end_offset, bool(again.damaged)) == (written[:19], 19, True)


def readable(log: Log) -> dict[int, bytes]:
    """The batch that a reader gets at each offset, of those that it can read."""
    found = {}
    for offset in range(log.start_offset, log.end_offset):
        with suppress(CorruptDataError):
            data = log.slice(Offset(offset), 1, log.end_offset).read()
            found[offset] = data[: next(batch_spans(data))[1]]
    return found


def change(disk: FakeDisk, batches: list[bytes], number: int, position: int, bit: int) -> None:
    """Flip one bit in one of the batches that the first segment begins with."""
    disk.flip_bit(LOG, len(b"".join(batches[:number])) + position, bit)


@pytest.mark.parametrize("number", [0, 5, 9])
@pytest.mark.parametrize("clean", [True, False])
def test_a_changed_head_in_what_a_clean_stop_left_costs_its_own_batch_and_moves_nothing(
    open_log: Open, disk: FakeDisk, number: int, clean: bool
) -> None:
    log = open_log()
    written = fill(log, 10)
    log.close()
    if not clean:
        written += fill(open_log(clean=True), 3)
    disk.kill()
    intact = {offset: batch for offset, batch in enumerate(written) if offset != number}
    for bit in range(17 * 8):
        change(disk, written, number, bit // 8, bit % 8)
        log = open_log(clean=clean)
        assert (log.end_offset, log.quarantined, readable(log)) == (len(written), [], intact)
        change(disk, written, number, bit // 8, bit % 8)


def test_a_changed_head_is_found_again_after_more_records_and_another_clean_stop(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log(index_interval_bytes=300)
    written = fill(log, 50)
    log.close()
    change(disk, written, 45, 7, 6)
    for _ in range(3):
        log = open_log(clean=True, index_interval_bytes=300)
        written += fill(log, 20)
        intact = {offset: batch for offset, batch in enumerate(written) if offset != 45}
        assert readable(log) == intact
        log.close()
    change(disk, written, 45, 7, 6)
    log = open_log(clean=True, index_interval_bytes=300)
    assert (read_all(log), log.damaged) == (written, [])
    assert settled(log.max_timestamp()) == (109, NOW_MS + 109, 3)


@pytest.mark.parametrize("number", [0, 4, 8])
def test_damage_below_the_recovery_point_stays_where_it_is_and_costs_no_neighbour(
    open_log: Open, disk: FakeDisk, number: int
) -> None:
    log = open_log()
    written = fill(log, 10)
    log.sync()
    torn = fill(log, 1)
    for position, bit in ((7, 4), (3, 0), (11, 2), (16, 1), (70, 3)):
        disk.kill()
        disk.write(LOG, b"".join(written) + torn[0][:50])
        change(disk, written, number, position, bit)
        log = open_log(point=RecoveryPoint(Offset(10), Offset(10)))
        assert (log.end_offset, log.cut_bytes) == (10, 50)
        intact = {offset: batch for offset, batch in enumerate(written) if offset != number}
        assert readable(log) == intact
        assert log.damaged


def test_a_seal_that_a_cut_has_removed_does_not_come_back(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 5)
    log.close()
    disk.sync_folder(FOLDER)
    log = open_log(clean=True)
    log.truncate_to(Offset(2))
    written[2:] = fill(log, 3, value_bytes=30)
    log.sync()
    for seed in range(20):
        survivor = disk.copy()
        survivor.crash(Random(seed))
        again = open_on(survivor)(point=RecoveryPoint(Offset(5), Offset(5)))
        assert (read_all(again), again.damaged) == (written, [])


@pytest.mark.parametrize("number", [0, 2, 5])
@pytest.mark.parametrize("keeps_cuts", [True, False])
def test_a_log_without_sums_is_cut_before_a_changed_head_and_not_behind_it(
    disk: FakeDisk, open_log: Open, number: int, keeps_cuts: bool
) -> None:
    written = fill(open_log(), 10)
    disk.kill()
    change(disk, written, number, 7, 4)
    before = disk.read(LOG)
    log = Log.open(disk, FOLDER, LogConfig(), clean=False, keeps_cuts=keeps_cuts)
    (kept,) = log.quarantined
    assert (log.end_offset, read_all(log)) == (number, written[:number])
    assert disk.read(LOG) + disk.read(f"{FOLDER}/quarantine/{kept.name}") == before


def test_a_scan_whose_first_batch_is_damaged_keeps_what_comes_before(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(index_interval_bytes=1)
    written = fill(log, 10)
    log.flush_indexes()
    disk.kill()
    change(disk, written, 9, 70, 0)
    log = open_log(point=10, index_interval_bytes=1)
    assert (log.end_offset, read_all(log)) == (9, written[:9])
    written[9:] = fill(log, 1)
    assert read_all(log) == written


def batch_of_batches(base: int, first: int, count: int) -> bytearray:
    """A batch of one record, whose value is a piece of another log."""
    builder = BatchBuilder(base, generation=3)
    inside = b"".join(bytes(make_batch(offset)[0]) for offset in range(first, first + count))
    builder.add(b"k", inside, timestamp_ms=NOW_MS)
    return builder.build()


@pytest.mark.parametrize("shares_syncs", [False, True])
@pytest.mark.parametrize("first", [0, 10, 20, 21, 5000])
@pytest.mark.parametrize("synced", [None, 10, 20])
def test_batches_within_a_record_that_was_cut_short_are_not_taken_for_batches_of_the_log(
    disk: FakeDisk, synced: int | None, first: int, shares_syncs: bool
) -> None:
    log = Log.open(disk, FOLDER, LogConfig(), clean=False)
    written = fill(log, 20)
    log.append([(batch_of_batches(20, first, 50), Offset(20), Offset(20), NOW_MS)], NOW_MS)
    disk.kill()
    disk.open(LOG).truncate(disk.size(LOG) - 5)
    point = RecoveryPoint(Offset(20), Offset(synced)) if synced is not None else None
    again = Log.open(
        disk, FOLDER, LogConfig(), clean=False, recovery_point=point, precious=True, shares_syncs=shares_syncs
    )
    assert (read_all(again), again.end_offset) == (written, 20)
    assert (again.damaged, again.quarantined) == ([], [])


def test_batches_within_a_record_that_was_cut_short_do_not_count_behind_rot(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log()
    written = fill(log, 20)
    log.append([(batch_of_batches(20, 2, 50), Offset(20), Offset(20), NOW_MS)], NOW_MS)
    disk.kill()
    disk.open(LOG).truncate(disk.size(LOG) - 5)
    disk.flip_bit(
        LOG, sum(map(len, written[:3])) + 11
    )  # A length, so that the next batch has to be searched for.
    again = open_log(point=RecoveryPoint(Offset(20), Offset(20)))
    assert again.end_offset == 20
    assert offsets_of(read_all(again, 4)) == list(range(4, 20))
    assert again.damaged


def test_bytes_behind_the_last_record_of_a_sealed_segment_that_was_safe_are_no_loss(disk: FakeDisk) -> None:
    log = Log.open(disk, FOLDER, LogConfig(), clean=False)
    written = fill(log, 20)
    log.roll()
    written += fill(log, 20)
    disk.kill()
    disk.write(LOG, bytes(make_batch(20)[0])[:50], disk.size(LOG))  # A write that had failed came back.
    point = RecoveryPoint(Offset(40), Offset(40))
    again = Log.open(disk, FOLDER, LogConfig(), clean=False, recovery_point=point, precious=True)
    assert (read_all(again), again.damaged) == (written, [])
