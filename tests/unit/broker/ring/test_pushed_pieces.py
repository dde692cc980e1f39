"""What a leader has just written goes to its followers without being read back; what they missed is read."""

from contextlib import closing

import pytest

from anabranch.broker.ring import replication_chunks as pieces
from support.ring_brokers import RingBrokers


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """From where to where logs were read for somebody."""
    found: list[tuple[int, int]] = []
    read_piece = pieces.read_piece

    def noted(log: object, start: int, end: int) -> list[bytes]:
        found.append((start, end))
        return read_piece(log, start, end)  # type: ignore[arg-type]

    monkeypatch.setattr(pieces, "read_piece", noted)
    return found


@pytest.mark.parametrize("flush", ["os", "always"])
def test_what_was_just_written_is_not_read_back(flush: str, reads: list[tuple[int, int]]) -> None:
    with closing(RingBrokers(flush=flush)) as world:
        world.led_by(1)
        for number in range(5):
            world.produced([b"%d" % number, b"and another"])
        world.run(1000)
        world.check_equal()
        assert reads == []


def test_what_a_follower_missed_is_read_for_it(reads: list[tuple[int, int]]) -> None:
    with closing(RingBrokers(flush="os")) as world:
        world.led_by(1)
        world.produced([b"all have it"])
        world.cut_off(3)
        world.produced([b"one lacks it"])
        world.heal()
        world.produced([b"one lacks it no more"])
        world.run(2000)
        world.check_equal()
        assert (1, 2) in reads or (1, 3) in reads


def test_a_piece_that_would_be_too_long_is_read_in_parts(
    reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES_MAX", 3000)
    with closing(RingBrokers(flush="os")) as world:
        world.led_by(1)
        answers = [world.produce([b"%d" % number * 1000]) for number in range(8)]  # Written in one turn.
        world.run_until(lambda: all(answers), 5000)
        world.run(1000)
        world.check_equal()
        assert len(reads) >= 3
