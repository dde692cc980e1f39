"""Rot in sealed segments is found, at a bounded rate."""

from log_helpers import FOLDER, Open, fill

from anabranch.log.scrubber import Damage, Scrubber, ScrubPace
from anabranch.testing.fake_disk import FakeDisk


def scrub_once(scrubber: Scrubber, log: object, bytes_max: int) -> tuple[list[Damage], int]:
    """One whole round over the sealed segments; answers the damage and how much was read."""
    damage, read = [], 0
    sealed = sum(segment.published_bytes for segment in log.segments[:-1])
    while read < sealed:
        step = scrubber.next_step(log, bytes_max)
        assert step is not None
        damage += step.run()
        read += step.size_bytes
    return damage, read


def test_a_round_reads_every_sealed_byte_once_and_names_the_damage(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=100_000)
    fill(log, 400, value_bytes=1000)
    assert len(log.segments) > 3
    scrubber = Scrubber()
    sealed = sum(segment.published_bytes for segment in log.segments[:-1])
    assert scrub_once(scrubber, log, 1) == ([], sealed)
    bad = log.segments[1]
    disk.flip_bit(bad.file.path, bad.published_bytes - 10)
    damage, read = scrub_once(scrubber, log, 70_000)
    assert read == sealed
    (found,) = damage
    assert (found.path, found.base_offset) == (bad.file.path, bad.base_offset)
    assert 0 < found.position < bad.published_bytes


def test_a_log_without_sealed_segments_has_nothing_to_scrub(open_log: Open) -> None:
    log = open_log()
    fill(log, 3)
    assert Scrubber().next_step(log, 1000) is None


def test_a_segment_that_is_gone_is_no_damage(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=300)
    fill(log, 10)
    step = Scrubber().next_step(log, 1000)
    assert step is not None
    log.delete_files(log.drop([log.segments[0]]))
    assert step.run() == []
    assert FOLDER in log.folder


def test_the_pace_allows_so_much_per_second_and_saves_up_no_more_than_a_burst() -> None:
    pace = ScrubPace(1000, burst_ms=500)
    assert pace.allowed_bytes(0) == 0
    assert pace.allowed_bytes(100) == 100
    pace.spent(300)
    assert pace.allowed_bytes(200) == 0
    assert pace.allowed_bytes(400) == 100
    assert pace.allowed_bytes(9_000) == 500
    assert pace.allowed_bytes(8_000) == 500
