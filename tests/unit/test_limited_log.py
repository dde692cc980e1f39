"""A line that a stranger can cause cannot fill a disk, and nothing that is suppressed goes uncounted."""

import logging

import pytest

from anabranch.limited_log import KINDS_MAX, MINUTE_MS, LimitedHandler, RepeatLimit
from anabranch.testing.fakes.clock import FakeClock


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def logger(kept: Kept, clock: FakeClock):
    handler = LimitedHandler(kept, clock, RepeatLimit(burst=5, per_minute=2))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def complain(logger: logging.Logger, times: int) -> None:
    for number in range(times):
        logger.warning("client %d does not read", number)


def test_flood_of_one_statement_is_cut_to_its_burst_and_says_so(logger, kept: Kept) -> None:
    complain(logger, 16_597)
    assert kept.lines[:5] == [f"client {number} does not read" for number in range(5)]
    assert "counted and not written" in kept.lines[5]
    assert len(kept.lines) == 6


def test_suppressed_lines_are_counted_a_minute_later(logger, kept: Kept, clock: FakeClock) -> None:
    complain(logger, 105)
    clock.advance(MINUTE_MS)
    logger.warning("something else")
    assert "100 more lines like those of test_limited_log.py" in kept.lines[6]
    assert kept.lines[7:] == ["something else"]


def test_every_line_is_written_or_counted_while_a_flood_goes_on(logger, kept: Kept, clock: FakeClock) -> None:
    for _ in range(30):
        complain(logger, 20)
        clock.advance(MINUTE_MS // 4)
    logger.handlers[0].flush()
    written = sum(line.endswith("does not read") for line in kept.lines)
    counted = sum(int(line.split(" ")[0]) for line in kept.lines if "more lines like those of" in line)
    assert written + counted == 600
    assert written <= 5 + 2 * 8


def test_end_of_the_process_tells_what_was_suppressed(logger, kept: Kept) -> None:
    complain(logger, 8)
    logger.handlers[0].flush()
    logger.handlers[0].flush()
    assert [line for line in kept.lines if line.startswith("3 more lines")] == [kept.lines[-1]]


def test_other_statements_and_other_exceptions_are_not_affected(logger, kept: Kept) -> None:
    complain(logger, 100)
    logger.warning("disk is full")
    for error in (ValueError("a"), KeyError("b")):
        for _ in range(6):
            try:
                raise error
            except (ValueError, KeyError):
                logger.exception("a request failed")
    assert "disk is full" in kept.lines
    assert kept.lines.count("a request failed") == 10


def test_text_that_a_client_chose_makes_no_new_kind(logger, kept: Kept) -> None:
    for number in range(1000):
        logger.warning(f"topic {number} is unknown")
    assert len(kept.lines) == 6


def test_debug_lines_are_not_limited(logger, kept: Kept) -> None:
    logger.setLevel(logging.DEBUG)
    for _ in range(100):
        logger.debug("a step")
    assert len(kept.lines) == 100


def test_kinds_are_bounded() -> None:
    limit = RepeatLimit(burst=1)
    for number in range(2 * KINDS_MAX):
        kind = ("name", logging.WARNING, "file.py", number, "")
        limit.take(kind, 0)
        limit.take(kind, 0)
    assert len(limit.summaries(0, at_once=True)) == KINDS_MAX
