"""Log lines are JSON, one object each."""

import json
import logging
import sys

import pytest

from anabranch.cli.node.logs import JsonFormatter, log_to_stderr
from anabranch.limited_log import LINES_BURST


def line_of(**record):
    return json.loads(JsonFormatter().format(logging.makeLogRecord(record)))


def test_line_is_json_with_time_level_logger_and_message():
    line = line_of(msg="%s is full", args=("disk",), name="anabranch.log", levelname="ERROR", created=1.5)
    assert line == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "error",
        "logger": "anabranch.log",
        "message": "disk is full",
    }


def test_what_the_caller_added_is_kept():
    assert line_of(msg="x", topic="demo")["topic"] == "demo"


def test_value_that_json_does_not_know_becomes_its_text():
    assert line_of(msg="x", error=ValueError("bad"))["error"] == "bad"


def test_traceback_is_part_of_the_line():
    try:
        raise ValueError("broken")
    except ValueError:
        line = line_of(msg="x", exc_info=sys.exc_info())
    assert "ValueError: broken" in line["exception"]


@pytest.fixture
def root():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_of_a_node_are_limited_whichever_logger_they_come_from(capsys, root):
    log_to_stderr("warning")
    for _ in range(16_597):
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
    root.handlers[0].flush()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == LINES_BURST + 2
    assert f"{16_597 - LINES_BURST} more lines like those of" in lines[-1]["message"]
