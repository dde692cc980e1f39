"""Rot in sealed segments is found, at a bounded rate."""

import pytest
from log_helpers import FOLDER, Open, fill

from anabranch.log.scrubber import PASS_MS_MIN, Damage, Scrubber, ScrubPace
from anabranch.log.segment import seal
from anabranch.log.segment.seal import Region
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset


def scrub_once(scrubber: Scrubber, log: object, bytes_max: int, now_ms: int) -> tuple[list[Damage], int]:
    """One whole round over the segments; answers the damage and how much was read."""
    damage, read = [], 0
    while (step := scrubber.next_step(log, bytes_max, now_ms)) is not None:
        damage += step.accept(step.run())
        read += step.size_bytes
    return damage, read


def test_a_round_reads_every_byte_once_and_names_the_damage(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=100_000)
    fill(log, 400, value_bytes=1000)
    assert len(log.segments) > 3
    scrubber = Scrubber()
    assert scrub_once(scrubber, log, 1, 0) == ([], log.size_bytes)
    assert scrub_once(scrubber, log, 1, 1) == ([], 0), "it was read a moment ago"
    bad = log.segments[1]
    disk.flip_bit(bad.file.path, bad.published_bytes - 10)
    damage, read = scrub_once(scrubber, log, 70_000, PASS_MS_MIN)
    assert read == log.size_bytes
    (found,) = damage
    assert (found.path, found.base_offset) == (bad.file.path, bad.base_offset)
    assert 0 < found.position < bad.published_bytes


def test_a_step_looks_at_no_more_regions_than_it_reads(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    fill(log, 2000, value_bytes=1000)
    made = []
    monkeypatch.setattr(seal, "Region", lambda *fields: made.append(Region(*fields)) or made[-1])
    step = Scrubber().next_step(log, 200_000, 0)
    assert step is not None
    assert 2 <= len(step.regions) <= len(made) <= len(step.regions) + 1


def test_the_active_segment_is_read_to_its_end(open_log: Open, disk: FakeDisk) -> None:
    log = open_log()
    assert Scrubber().next_step(log, 1000, 0) is None
    fill(log, 3)
    scrubber = Scrubber()
    assert scrub_once(scrubber, log, 1000, 0) == ([], log.size_bytes)
    written = fill(log, 2)
    disk.flip_bit(log.segments[0].file.path, log.size_bytes - 5)
    (found,), read = scrub_once(scrubber, log, 1000, 1)
    assert read == sum(map(len, written)), "only what is new"
    assert found.base_offset == 0


def test_what_is_cut_off_meanwhile_is_no_damage(open_log: Open) -> None:
    log = open_log()
    fill(log, 5)
    step = Scrubber().next_step(log, 10_000, 0)
    assert step is not None
    log.truncate_to(Offset(3))
    fill(log, 4, value_bytes=31)
    assert step.run() != []
    assert step.accept(step.run()) == []


def test_it_begins_anew_in_what_was_cut_and_written_again(open_log: Open) -> None:
    """Where the last step ended is the middle of a batch by now."""
    log = open_log()
    fill(log, 5)
    scrubber = Scrubber()
    assert scrub_once(scrubber, log, 10_000, 0) == ([], log.size_bytes)
    log.truncate_to(Offset(3))
    fill(log, 8, value_bytes=31)
    assert scrub_once(scrubber, log, 10_000, 1) == ([], log.size_bytes)


def test_a_segment_that_is_gone_is_no_damage(open_log: Open, disk: FakeDisk) -> None:
    log = open_log(segment_bytes=300)
    fill(log, 10)
    step = Scrubber().next_step(log, 1000, 0)
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
