"""Bytes that were changed under an open log are never read, and cost only the batch they are in."""

import os
import socket
from itertools import accumulate, pairwise, product
from pathlib import Path
from random import Random

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch, open_on, read_all

from anabranch.errors import CorruptDataError, FencedLogError
from anabranch.log.cleaner import clean_now, plan
from anabranch.log.disk.checkpoint import RecoveryPoint
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
from anabranch.log.segment.slice import AGAIN_BYTES_MAX
from anabranch.log.segment.timestamps import settled
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.batch_sums import changed_byte, sound_batches, sound_batches_pure
from anabranch.record.builder import BatchBuilder
from anabranch.record.crc32c import crc32c
from anabranch.record.seal_format import unpack_seal
from anabranch.server import send_queue
from anabranch.server.send_queue import SendQueue, held
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

LOG = f"{FOLDER}/00000000000000000000.log"


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def open_log(disk: FakeDisk) -> Open:
    return open_on(disk)


def readable(log: Log) -> dict[int, bytes]:
    """Each batch that can be read when it is asked for by its offset."""
    found = {}
    for offset in range(log.start_offset, log.end_offset):
        try:
            data = log.slice(Offset(offset), 1, log.end_offset).read()
        except CorruptDataError:
            continue
        found[offset] = data
    return found


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_a_changed_byte_anywhere_costs_its_own_batch_alone(
    open_log: Open, disk: FakeDisk, is_sealed: bool
) -> None:
    log = open_log(index_interval_bytes=200)
    written = fill(log, 12)
    if is_sealed:
        log.roll()
    assert readable(log) == dict(enumerate(written))
    ends = [sum(map(len, written[: number + 1])) for number in range(12)]
    for position in range(sum(map(len, written))):
        victim = next(number for number, end in enumerate(ends) if position < end)
        disk.flip_bit(LOG, position, position % 8)
        intact = {offset: batch for offset, batch in enumerate(written) if offset != victim}
        assert readable(log) == intact, position
        if victim:
            assert log.slice(Offset(0), 10_000, log.end_offset).read() == b"".join(written[:victim])
        disk.flip_bit(LOG, position, position % 8)
    assert readable(log) == dict(enumerate(written))


def test_neighbours_that_are_damaged_together_cost_nobody_else(open_log: Open, disk: FakeDisk) -> None:
    """As a bad sector does it; the sum over the heads of the region still tells that all of these are right."""
    log = open_log(index_interval_bytes=200)
    written = fill(log, 12)
    log.roll()
    starts = [sum(map(len, written[:number])) for number in range(12)]
    for victims in ((0, 1), (4, 5, 6), (10, 11)):
        for victim in victims:
            disk.flip_bit(LOG, starts[victim] + 70, 3)
        assert readable(log) == {n: batch for n, batch in enumerate(written) if n not in victims}
        for victim in victims:
            disk.flip_bit(LOG, starts[victim] + 70, 3)


def test_regions_that_are_closed_hold_to_the_byte_as_well(open_log: Open, disk: FakeDisk) -> None:
    """Batches of 9 kB: a region is closed after eight of them, and the active segment has several."""
    log = open_log()
    written = fill(log, 30, value_bytes=9000)
    random = Random(5)
    for victim in range(30):
        start = sum(map(len, written[:victim]))
        position = start + random.randrange(random.choice([17, len(written[victim])]))
        disk.flip_bit(LOG, position, random.randrange(8))
        kept = readable(log)
        assert set(range(30)) - set(kept) == {victim}, (victim, position - start)
        assert all(kept[offset] == written[offset] for offset in kept)
        disk.flip_bit(LOG, position, 0)
        disk.inode(LOG).visible[start : start + len(written[victim])] = written[victim]
        disk.inode(LOG).durable[start : start + len(written[victim])] = written[victim]


def test_without_sums_of_heads_the_neighbours_are_read_by_their_own_checksums(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log(segment_bytes=1500)
    written = fill(log, 30)
    log.close()
    for name in disk.list(FOLDER):
        if name.endswith(".seal"):
            disk.unlink(f"{FOLDER}/{name}")
    log = open_log(clean=True, segment_bytes=1500)
    disk.flip_bit(LOG, len(written[0]) + len(written[1]) + 70)
    assert readable(log) == {offset: batch for offset, batch in enumerate(written) if offset != 2}


@pytest.mark.parametrize("interval", [200, 4096])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_without_sums_of_heads_the_order_of_offsets_tells_which_base_offset_was_changed(
    open_log: Open, disk: FakeDisk, is_sealed: bool, interval: int
) -> None:
    """As after a kill: what lies below the recovery point has no sums. A batch that seems to lie ahead must neither be
    read there nor hide those that it passes over."""
    log = open_log(index_interval_bytes=interval)
    written = fill(log, 40)
    if is_sealed:
        log.roll()
        log.close()
        disk.unlink(LOG.replace(".log", ".seal"))
    else:
        log.flush_indexes()
    log = open_log(clean=is_sealed, point=40, index_interval_bytes=interval)
    for victim, bit in product((0, 9, 38), range(64)):
        position = sum(map(len, written[:victim])) + 7 - bit // 8
        disk.flip_bit(LOG, position, bit % 8)
        kept, claimed = readable(log), victim ^ 1 << bit
        assert kept.items() <= dict(enumerate(written)).items(), (victim, bit)
        # Of two batches that say they have one offset, neither is believed.
        assert {victim} <= set(range(40)) - set(kept) <= {victim, claimed}, (victim, bit)
        if victim and claimed:
            whole = log.slice(Offset(0), 10_000, Offset(40)).read()
            assert whole in (b"".join(written[:victim]), b"".join(written[: victim - 1]))
        found = log.slice(Offset(victim), 10_000, Offset(40))
        with pytest.raises(CorruptDataError):
            found.verify()
        disk.flip_bit(LOG, position, bit % 8)


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_heads_are_known_after_a_clean_stop_as_well(open_log: Open, disk: FakeDisk, is_running: bool) -> None:
    """The last index entry lies within the only region there is."""
    log = open_log(index_interval_bytes=200)
    written = fill(log, 12)
    log.close()
    positions = (5, 14) if is_running else (14,)  # A base offset, a generation.
    for victim, position in product(range(10), positions):
        start = sum(map(len, written[:victim]))
        log = open_log(clean=True, index_interval_bytes=200) if is_running else log
        disk.flip_bit(LOG, start + position)
        log = log if is_running else open_log(clean=True, index_interval_bytes=200)
        added = fill(log, 1)
        expected = {offset: batch for offset, batch in enumerate(written + added) if offset != victim}
        assert readable(log) == expected, (victim, position)
        disk.flip_bit(LOG, start + position)
        log.truncate_to(Offset(12))
        log.close()


def test_heads_are_known_after_a_clean_stop_of_a_log_without_indexes(open_log: Open, disk: FakeDisk) -> None:
    """All of it is walked over again, a chunk at a time."""
    log = open_log()
    written = fill(log, 40, value_bytes=90_000)
    log.close()
    disk.unlink(LOG.replace(".log", ".index"))
    log = open_log(clean=True)
    for victim in (0, 20, 39):
        disk.flip_bit(LOG, sum(map(len, written[:victim])) + 14)
        assert readable(log) == {at: batch for at, batch in enumerate(written) if at != victim}
        disk.flip_bit(LOG, sum(map(len, written[:victim])) + 14)
    fill(log, 1)
    log.close()
    regions = unpack_seal(disk.read(LOG.replace(".log", ".seal"))).regions()
    assert all(one.end == other.start for one, other in pairwise(regions)), "each has one sum"


Places = list[tuple[int, int]]


def spoil(disk: FakeDisk, start: int, data: bytes) -> None:
    inode = disk.inode(LOG)
    inode.visible[start : start + len(data)] = data
    inode.durable[start : start + len(data)] = data


def touched(written: list[bytes], start: int, size: int) -> set[int]:
    """The batches that these bytes belong to."""
    ends = list(accumulate(map(len, written)))
    return {
        number for number, end in enumerate(ends) if start < end and end - len(written[number]) < start + size
    }


@pytest.mark.parametrize("kind", ["running", "stopped", "sealed"])
@pytest.mark.parametrize(("count", "value_bytes"), [(400, 500), (40, 9000), (12, 30_000), (5, 90_000)])
def test_several_bytes_that_are_changed_in_one_place_cost_the_batches_they_touch(
    open_log: Open, disk: FakeDisk, kind: str, count: int, value_bytes: int
) -> None:
    """Segments of several regions; regions of a hundred batches, of seven, of two or three, and of one."""
    log = open_log(index_interval_bytes=4096)
    written = fill(log, count, value_bytes=value_bytes)
    if kind == "sealed":
        log.roll()
    if kind != "running":
        log.close()
        log = open_log(clean=True, index_interval_bytes=4096)
    starts = [0, *accumulate(map(len, written))]
    whole, random = b"".join(written), Random(count)
    places: Places = []
    for number in (0, 1, 2, count // 2, count - 2, count - 1):
        head = starts[number]
        places += [
            (head, 8),
            (head, 17),
            (head, 61),
            (head + 2, 3),
            (head + 6, 2),
            (head + 12, 4),
            (head + 7, 10),
        ]
        places += [(max(0, head - 10), 20), (head - head % 512, 512), (head - head % 4096, 4096)]
    places += [(random.randrange(len(whole)), random.choice([2, 30, 512])) for _ in range(20)]
    for start, size in places:
        size = min(size, len(whole) - start)
        for garbled in (bytes(size), random.randbytes(size)):
            if whole[start : start + size] == garbled:
                continue
            spoil(disk, start, garbled)
            log.segments[0].forget_verified()
            kept = {}
            victims = touched(written, start, size)
            near = range(max(0, min(victims) - 3), min(count, max(victims) + 4))
            for offset in near if count > 20 else range(count):
                try:
                    kept[offset] = log.slice(Offset(offset), 1, log.end_offset).read()
                except CorruptDataError:
                    continue
            assert all(batch == written[offset] for offset, batch in kept.items()), (start, size)
            changed = {
                n for n in victims if written[n] != bytes(disk.inode(LOG).visible[starts[n] : starts[n + 1]])
            }
            assert set(near if count > 20 else range(count)) - set(kept) == changed, (
                start,
                size,
                garbled[:20],
            )
            spoil(disk, start, whole[start : start + size])


@pytest.mark.parametrize("clean", [True, False])
def test_damage_of_a_sector_is_no_more_after_a_restart(open_log: Open, disk: FakeDisk, clean: bool) -> None:
    log = open_log()
    written = fill(log, 300, value_bytes=500)
    log.close()
    for start, size in ((30_000, 512), (61_440, 4096), (0, 17), (sum(map(len, written)) - 500, 500)):
        whole = disk.read(LOG)
        spoil(disk, start, bytes(size))
        log = open_log(clean=clean, point=RecoveryPoint(Offset(300), Offset(300)))
        assert (log.end_offset, log.quarantined) == (300, [])
        intact = set(range(300)) - touched(written, start, size)
        assert readable(log) == {offset: written[offset] for offset in intact}
        disk.kill()
        disk.write(LOG, whole, sync=True)


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_batches_within_a_record_whose_batch_is_damaged_are_not_read(
    open_log: Open, disk: FakeDisk, is_sealed: bool
) -> None:
    """They have good checksums, and offsets that go on behind those in front of the damage."""
    log = open_log()
    written = fill(log, 10)
    inner = b"".join(bytes(make_batch(offset, value_bytes=5)[0]) for offset in range(11, 17))
    builder = BatchBuilder(10, generation=3)
    builder.add(None, inner, timestamp_ms=NOW_MS)
    log.append([(builder.build(), Offset(10), Offset(10), NOW_MS)], NOW_MS)
    written.append(b"")
    written += fill(log, 10)
    if is_sealed:
        log.roll()
        fill(log, 1)
    log.close()
    log = open_log(clean=True)
    expected = readable(log)
    start = sum(map(len, written[:10]))
    for size in (8, 12, 17, 61, 80):
        spoil(disk, start, bytes(size))
        kept = readable(log)
        assert kept == {offset: batch for offset, batch in expected.items() if offset != 10}, size


def test_generations_that_contradict_each_other_are_not_believed(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 12)
    log.roll()
    log.close()
    log = open_log(clean=True)
    starts = [0, *accumulate(map(len, written))]
    for generation in (0, 2, 4, 2**20):
        for victim in (0, 5, 11):
            spoil(disk, starts[victim] + 12, generation.to_bytes(4))
            spoil(disk, starts[victim] + 13, b"\1")  # Two bytes in all: no single one explains the sum.
            assert readable(log) == {n: batch for n, batch in enumerate(written) if n != victim}
            spoil(disk, starts[victim], written[victim])


def test_two_changed_heads_leave_nobody_to_vouch_for_the_region(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 4)
    log.roll()
    disk.flip_bit(LOG, 14)  # A generation, which nothing but the sum of the heads protects.
    disk.flip_bit(LOG, len(written[0]) + 14)
    assert readable(log) == {}


def test_the_cleaner_does_not_seal_a_changed_head_anew(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(compacted=True)
    fill(log, 4)
    log.roll()
    disk.flip_bit(LOG, 14)  # A generation.
    planned = plan(log, Offset(0), NOW_MS)
    assert planned is not None
    with pytest.raises(CorruptDataError, match="header was changed"):
        clean_now(disk, log, planned)


class TestRealFiles:
    """sendfile takes only what was checked since the file was last changed."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "t-0"

    @pytest.fixture
    def log(self, path: Path) -> Log:
        log = open_on(RealFiles(), str(path))()
        for number in range(20):
            log.append([make_batch(number, value_bytes=4000)], NOW_MS)
        return log

    def settle(self, path: Path) -> Path:
        """As if the last change of the file was long ago: its stamp counts then."""
        file = path / "00000000000000000000.log"
        past = file.stat().st_ctime_ns
        opened = RealFiles().open(str(file))
        while opened.stamp() is None:
            assert file.stat().st_ctime_ns == past
        opened.close()
        return file

    def test_what_this_process_wrote_is_checked_before_it_counts_as_verified(
        self, log: Log, path: Path
    ) -> None:
        self.settle(path)
        found = log.slice(Offset(0), 50_000, log.end_offset)
        assert not found.verified
        assert found.is_warm
        found.checked()
        found.mark_verified()
        assert log.slice(Offset(0), 50_000, log.end_offset).verified

    def test_a_change_from_outside_ends_that(self, log: Log, path: Path) -> None:
        file = self.settle(path)
        found = log.slice(Offset(0), 50_000, log.end_offset)
        found.checked()
        found.mark_verified()
        times = file.stat()
        with file.open("r+b") as other:
            other.seek(5000)
            other.write(b"?")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        found = log.slice(Offset(0), 50_000, log.end_offset)
        assert not found.verified
        first = read_header(found.checked())
        assert found.count == first.size_bytes
        with pytest.raises(CorruptDataError):
            log.slice(Offset(1), 50_000, log.end_offset).checked()
        assert len(read_all(log, 2)) == 18

    def test_what_a_recovery_has_read_is_checked_again(self, log: Log, path: Path) -> None:
        log.sync()
        log = open_on(RealFiles(), str(path))()
        file = path / "00000000000000000000.log"
        with file.open("r+b") as other:
            other.seek(5000)
            other.write(b"?")
        assert log.slice(Offset(0), 50_000, log.end_offset).verified is False
        with pytest.raises(CorruptDataError):
            log.slice(Offset(1), 50_000, log.end_offset).checked()

    @pytest.mark.parametrize("has_sums", [True, False])
    @pytest.mark.parametrize("change", ["none", "append", "flip"])
    def test_a_reader_that_takes_its_time_gets_nothing_that_was_changed_meanwhile(
        self, log: Log, path: Path, change: str, has_sums: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(send_queue, "CHECKED_SECONDS", 0)
        for number in range(20, 500):
            log.append([make_batch(number, value_bytes=4000)], NOW_MS)
        if not has_sums:
            log.flush_indexes()
            log = open_on(RealFiles(), str(path))(point=500)
        file = self.settle(path)
        whole = file.read_bytes()
        found = log.slice(Offset(0), 2**21, log.end_offset)
        found.checked()
        found.mark_verified()
        part = log.slice(Offset(0), 2**21, log.end_offset)
        assert part.verified
        ours, theirs = socket.socketpair()
        queue = SendQueue()
        with ours, theirs:
            ours.setblocking(False)
            theirs.settimeout(5)
            queue.put([held(part)])
            assert not queue.send(ours)
            got = theirs.recv(1000)
            if change == "append":
                log.append([make_batch(500)], NOW_MS)
            elif change == "flip":
                with file.open("r+b") as other:
                    other.seek(len(whole) - 50)
                    other.write(b"?")
                with pytest.raises(OSError, match="damaged while it was sent"):
                    got += self.take(queue, ours, theirs, len(whole) - len(got))
                queue.clear()
                return
            got += self.take(queue, ours, theirs, len(whole) - len(got))
        assert got == whole
        assert not queue

    def take(self, queue: SendQueue, ours: socket.socket, theirs: socket.socket, count: int) -> bytes:
        got = b""
        while len(got) < count:
            queue.send(ours)
            assert queue.bytes_held <= AGAIN_BYTES_MAX, "however much is left"
            got += theirs.recv(2**20)
        return got

    def test_an_append_ends_that(self, log: Log, path: Path) -> None:
        self.settle(path)
        found = log.slice(Offset(0), 50_000, log.end_offset)
        found.checked()
        found.mark_verified()
        log.append([make_batch(20)], NOW_MS)
        assert not log.slice(Offset(0), 50_000, log.end_offset).verified


def test_the_changed_byte_is_found() -> None:
    random = Random(3)
    for size in (17, 340, 5000):
        data = bytearray(random.randbytes(size))
        crc = crc32c(data)
        assert changed_byte(data, crc) is None
        for _ in range(50):
            position, change = random.randrange(size), random.randrange(1, 256)
            data[position] ^= change
            assert changed_byte(data, crc) == position
            data[position] ^= change
        data[1] ^= 4
        data[12] ^= 4
        assert changed_byte(data, crc) is None


def test_both_forms_walk_alike() -> None:
    random = Random(4)
    whole = b"".join(
        bytes(make_batch(number * 2, 2, value_bytes=random.randrange(90))[0]) for number in range(9)
    )
    assert sound_batches(whole, 0, len(whole), 0)[:2] == (len(whole), 18)
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(random.randrange(3)):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        start = random.choice([0, read_header(whole).size_bytes])
        end = random.randrange(start, len(data) + 1)
        next_offset = random.randrange(4)
        assert sound_batches(data, start, end, next_offset) == sound_batches_pure(
            data, start, end, next_offset
        )


# --- truncation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_a_changed_head_neither_ends_a_log_that_is_cut_behind_it_nor_gets_a_sum_of_its_own(
    open_log: Open, disk: FakeDisk, is_sealed: bool
) -> None:
    # A base offset, a length, the magic; a generation too, unless the cut is within a region whose heads are not known.
    for position in (5, 10, 16) if is_sealed else (5, 10, 16, 14):
        log = open_log(index_interval_bytes=200)
        written = fill(log, 20)
        if is_sealed:
            log.roll()
            fill(log, 3)
        disk.flip_bit(LOG, sum(map(len, written[:5])) + position)
        log.truncate_to(Offset(18))
        assert log.end_offset == 18
        written = written[:18] + fill(log, 2, value_bytes=7)
        assert readable(log) == {at: batch for at, batch in enumerate(written) if at != 5}, position
        log.restart_at(Offset(0))
        log.close()


def test_heads_are_known_where_a_region_was_cut(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(index_interval_bytes=200)
    written = fill(log, 20)
    log.roll()
    log.truncate_to(Offset(18))
    for victim in range(18):
        disk.flip_bit(LOG, sum(map(len, written[:victim])) + 14)
        assert readable(log) == {at: batch for at, batch in enumerate(written[:18]) if at != victim}
        disk.flip_bit(LOG, sum(map(len, written[:victim])) + 14)


@pytest.mark.parametrize("position", [5, 10, 16])
def test_a_cut_right_behind_a_changed_head_is_refused(open_log: Open, disk: FakeDisk, position: int) -> None:
    """Where the log would end cannot be told: nothing is cut, and nothing may be written."""
    log = open_log()
    written = fill(log, 20)
    disk.flip_bit(LOG, sum(map(len, written[:17])) + position)
    before = disk.read(LOG)
    with pytest.raises(FencedLogError):
        log.truncate_to(Offset(18))
    assert disk.read(LOG) == before


# --- nothing to read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [200, 4096])
@pytest.mark.parametrize("has_sums", [True, False])
def test_a_changed_head_never_reads_as_nothing_there(
    open_log: Open, disk: FakeDisk, interval: int, has_sums: bool
) -> None:
    log = open_log(index_interval_bytes=interval)
    written = fill(log, 20, 5)
    log.roll()
    if not has_sums:
        log.close()
        disk.unlink(LOG.replace(".log", ".seal"))
        log = open_log(clean=True, index_interval_bytes=interval)
    start = sum(map(len, written[:10]))
    for bit in range(16 * 8):
        position = start + [*range(12), *range(23, 27)][bit // 8]  # Base offset, length, last offset delta.
        disk.flip_bit(LOG, position, bit % 8)
        for upto in (80, 100):
            for offset in (50, 52, 54, 55):
                try:
                    found = log.slice(Offset(offset), 10_000, Offset(upto))
                    assert found.count, (offset, upto, bit)
                    data = found.read()
                except CorruptDataError:
                    assert offset < 55 or not has_sums
                else:
                    # Without sums nobody can tell that a batch was moved within a gap.
                    assert not has_sums or (offset, read_header(data).base_offset) == (55, 55)
        disk.flip_bit(LOG, position, bit % 8)
    assert log.slice(Offset(52), 10_000, Offset(53)).count == 0
    assert log.slice(Offset(52), 10_000, Offset(53)).damage is None


def test_a_changed_head_at_the_end_of_a_segment_does_not_lead_to_the_next(
    open_log: Open, disk: FakeDisk
) -> None:
    log = open_log()
    written = fill(log, 4, 5)
    log.roll()
    fill(log, 1, 5)
    last = sum(map(len, written[:3]))
    disk.flip_bit(LOG, last + 26, 2)  # The last offset delta is 0 instead of 4.
    assert log.slice(Offset(10), 1, Offset(25)).read() == written[2]
    with pytest.raises(CorruptDataError):
        log.slice(Offset(17), 10_000, Offset(25)).read()


def with_gap(open_log: Open) -> Log:
    """Batches at 0, 1, 2, 3 and at 20, and one of a second segment at 40."""
    log = open_log()
    fill(log, 4)
    log.append([make_batch(20)], NOW_MS)
    log.advance_end(Offset(40))
    fill(log, 1)
    return log


def test_damage_elsewhere_does_not_hide_that_a_segment_ends_early(open_log: Open, disk: FakeDisk) -> None:
    log = with_gap(open_log)
    assert read_header(log.slice(Offset(30), 1, log.end_offset).read()).base_offset == 40
    disk.flip_bit(LOG, 80)
    assert read_header(log.slice(Offset(30), 1, log.end_offset).read()).base_offset == 40
    disk.flip_bit(LOG, log.segments[0].published_bytes - 1)
    with pytest.raises(CorruptDataError):
        log.slice(Offset(30), 1, log.end_offset).read()


def test_a_slice_that_promised_bytes_never_answers_none(open_log: Open, disk: FakeDisk) -> None:
    """Offsets 4 to 19 are gone, so there is nothing below 15 behind the batches that are damaged."""
    log = with_gap(open_log)
    disk.flip_bit(LOG, 14)
    found = log.slice(Offset(5), 10_000, Offset(15))
    assert found.count
    with pytest.raises(CorruptDataError):
        found.read()


# --- large batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_a_batch_behind_a_large_one_that_is_damaged_is_read(
    open_log: Open, disk: FakeDisk, is_sealed: bool, has_sums: bool
) -> None:
    log = open_log()
    written = fill(log, 6, 3, value_bytes=70_000)
    if is_sealed:
        log.roll()
    log.close()
    if not has_sums:
        disk.unlink(LOG.replace(".log", ".seal"))
    log = open_log(clean=True)
    batches = {
        base: batch for number, batch in enumerate(written) for base in range(number * 3, number * 3 + 3)
    }
    assert readable(log) == batches
    positions = (
        [6, 7, 9, 10, 11, 16, 24, 26, 40, 100_000] if has_sums else [9, 10, 11, 16, 24, 26, 40, 100_000]
    )
    for victim, position, bit in product((0, 2), positions, (0, 3, 7)):
        start = sum(map(len, written[:victim]))
        disk.flip_bit(LOG, start + position, bit)
        intact = {base: batch for base, batch in batches.items() if batch is not written[victim]}
        assert readable(log) == intact, (victim, position, bit)
        disk.flip_bit(LOG, start + position, bit)


# --- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_no_changed_byte_moves_what_a_lookup_by_time_finds(
    open_log: Open, disk: FakeDisk, is_sealed: bool
) -> None:
    log = open_log(index_interval_bytes=200)
    written = fill(log, 12, 3)
    if is_sealed:
        log.roll()
        fill(log, 1, 3)
    size = sum(map(len, written[:5]))
    for position in range(size, size + 61):
        disk.flip_bit(LOG, position, position % 8)
        for offset in (14, 15, 17, 18, 30):
            try:
                assert settled(log.offset_for_time(NOW_MS + offset)) == (offset, NOW_MS + offset, 3), position
            except CorruptDataError:
                assert offset < 30, position
        disk.flip_bit(LOG, position, position % 8)
    assert settled(log.offset_for_time(NOW_MS + 16)) == (16, NOW_MS + 16, 3)


def followed(log: Log, bytes_max: int) -> tuple[list[bytes], list[Offset]]:
    """Every batch, as one fetch after the other gets them, and where each of these began."""
    batches: list[bytes] = []
    begun: list[Offset] = []
    offset = log.start_offset
    while (found := log.slice(offset, bytes_max, log.end_offset)).count:
        data = bytes(found.checked())
        found.mark_verified()
        batches += [data[start:end] for start, end in batch_spans(data)]
        begun.append(offset)
        offset = Offset(read_header(batches[-1]).next_offset)
    return batches, begun


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("bytes_max", [5_000, 70_000, 300_000, 10_000_000])
def test_readers_that_go_on_where_they_stopped_read_every_batch_once(
    open_log: Open, bytes_max: int, is_sealed: bool
) -> None:
    log = open_log()
    written = fill(log, 600, count=2, value_bytes=700)
    if is_sealed:
        log.roll()
    for _ in range(2):
        assert followed(log, bytes_max)[0] == written
    written += fill(log, 50, value_bytes=900)
    assert followed(log, bytes_max)[0] == written


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_a_reader_that_goes_on_reads_nothing_but_what_it_sends(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    log = open_log()
    fill(log, 3000, value_bytes=1000)
    if is_sealed:
        log.roll()
    file, read = log.segments[0].file, list[tuple[int, int]]()
    pread = file.pread
    monkeypatch.setattr(
        type(file), "pread", lambda _, count, at: (read.append((at, count)), pread(count, at))[1]
    )
    offset, sent = Offset(0), list[tuple[int, int]]()
    while (found := log.slice(offset, 2**20, Offset(3000))).count:
        offset = Offset(offset + sum(1 for _ in batch_spans(bytes(found.checked()))))
        found.mark_verified()
        sent.append((found.position, found.count))
    assert len(sent) == 4
    assert read[-3:] == sent[1:]


def test_who_goes_on_behind_a_cut_reads_what_is_there_now(open_log: Open) -> None:
    log = open_log()
    written = fill(log, 5000, value_bytes=1000)
    _, begun = followed(log, 600_000)
    assert begun[2] in log.segments[0]._stops
    log.truncate_to(Offset(begun[1] + 1))
    written = written[: begun[1] + 1] + fill(log, 9000, value_bytes=711)
    for offset in begun[1:]:
        assert log.slice(offset, 600_000, log.end_offset).read().startswith(written[offset])
    assert followed(log, 600_000)[0] == written


def test_a_check_that_ends_after_a_cut_notes_no_place_in_what_was_cut(open_log: Open) -> None:
    log = open_log()
    written = fill(log, 5000, value_bytes=1000)
    begun = followed(log, 600_000)[1]
    log.segments[0]._stops.clear()
    checked = log.slice(begun[1], 600_000, log.end_offset)
    checked.verify()  # In a worker, while the log is cut.
    log.truncate_to(Offset(begun[1] + 1))
    written = written[: begun[1] + 1] + fill(log, 9000, value_bytes=711)
    checked.mark_verified()
    assert log.slice(begun[2], 600_000, log.end_offset).read().startswith(written[begun[2]])


def test_damage_behind_the_place_where_a_reader_stopped_is_found(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 5000, value_bytes=1000)
    starts = [0, *accumulate(map(len, written))]
    begun = followed(log, 600_000)[1]
    stops = [offset for offset in begun if offset in log.segments[0]._stops]
    assert len(stops) > 3
    for stop in stops[:2]:
        for position in range(starts[stop], starts[stop] + 61):
            disk.flip_bit(LOG, position, position % 8)
            with pytest.raises(CorruptDataError):
                log.slice(stop, 600_000, log.end_offset).read()
            behind = log.slice(Offset(stop + 1), 600_000, log.end_offset).read()
            assert behind.startswith(written[stop + 1]), position
            disk.flip_bit(LOG, position, position % 8)


# --- damaged segments and their indexes ------------------------------------------------------------------------------


@pytest.mark.parametrize("has_index", [True, False])
def test_what_is_left_of_a_sealed_segment_that_was_cut_short_is_read(
    open_log: Open, disk: FakeDisk, has_index: bool
) -> None:
    log = open_log()
    written = fill(log, 400, value_bytes=500)
    log.roll()
    written += fill(log, 3)
    log.close()
    disk.kill()
    whole = disk.read(LOG)
    disk.write(LOG, whole[: len(whole) // 2], sync=True)
    if not has_index:
        disk.unlink(LOG.replace(".log", ".index"))
    log = open_log(clean=True, point=RecoveryPoint(Offset(403), Offset(403)))
    intact = {
        n: batch
        for n, batch in enumerate(written)
        if n >= 400 or sum(map(len, written[: n + 1])) <= len(whole) // 2
    }
    assert len(intact) > 190
    assert readable(log) == intact


def test_without_an_index_damage_costs_its_region_at_most(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    written = fill(log, 400, value_bytes=500)
    log.roll()
    log.close()
    disk.unlink(LOG.replace(".log", ".index"))
    log = open_log(clean=True)
    spoil(disk, 100_000, bytes(4096))
    intact = set(range(400)) - touched(written, 100_000, 4096)
    assert readable(log) == {offset: written[offset] for offset in intact}
