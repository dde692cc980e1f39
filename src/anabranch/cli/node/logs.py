"""Logs of a running node: one JSON object per line on stderr.

`time` is UTC, `level` and `logger` are logging's, `message` is for people; whatever else the caller passed as
`extra` follows as it is. A value that JSON does not know becomes its text rather than an error. Lines that repeat are
limited and counted (`limited_log.py`).
"""

import json
import logging
import sys
from datetime import UTC, datetime

from anabranch.clock import RealClock
from anabranch.limited_log import LimitedHandler

LEVELS = ("debug", "info", "warning", "error")

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _ORDINARY)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def log_to_stderr(level: str) -> None:
    """Send everything of `level` and above to stderr; called once, by the command that runs a node."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [LimitedHandler(handler, RealClock())]
    root.setLevel(level.upper())
