"""Bytes that were changed under an open log are never read, and cost only the batch they are in."""

import os
import socket
from pathlib import Path
from random import Random

import pytest
from log_helpers import FOLDER, NOW_MS, Open, fill, make_batch, open_on, read_all

from anabranch.errors import CorruptDataError
from anabranch.log.cleaner import clean_now, plan
from anabranch.log.log import Log
from anabranch.log.real_files import RealFiles
from anabranch.record.batch import read_header
from anabranch.record.batch_sums import changed_byte, sound_batches, sound_batches_pure
from anabranch.record.crc32c import crc32c
from anabranch.server import send_queue
from anabranch.server.send_queue import SendQueue, held
from anabranch.testing.fake_disk import FakeDisk
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
        while RealFiles().open(str(file)).stamp() is None:
            assert file.stat().st_ctime_ns == past
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

    @pytest.mark.parametrize("change", ["none", "append", "flip"])
    def test_a_reader_that_takes_its_time_gets_nothing_that_was_changed_meanwhile(
        self, log: Log, path: Path, change: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(send_queue, "CHECKED_SECONDS", 0)
        for number in range(20, 500):
            log.append([make_batch(number, value_bytes=4000)], NOW_MS)
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
                    queue.send(ours)
                queue.clear()
                return
            while len(got) < len(whole):
                queue.send(ours)
                got += theirs.recv(2**20)
        assert got == whole
        assert not queue

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
