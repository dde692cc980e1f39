"""The record inside a control batch: how a transaction ended.

    key    version i16 | type i16 (0 abort, 1 commit)
    value  version i16 | coordinator epoch i32

Clients never see these records; they tell a read-committed consumer what to do with those before them. Newer
versions may add fields behind, and other types are Kafka's own affairs: both are read over.
"""

from struct import Struct
from typing import NamedTuple

from anabranch.errors import InvalidRecordError
from anabranch.record.records import Record

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_ABORT = 0
_COMMIT = 1


class EndMarker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def marker_key(committed: bool) -> bytes:
    return _KEY.pack(_VERSION, _COMMIT if committed else _ABORT)


def marker_value(coordinator_epoch: int) -> bytes:
    return _VALUE.pack(_VERSION, coordinator_epoch)


def read_marker(record: Record) -> EndMarker | None:
    """What a record of a control batch says about its transaction; None if it is of another type."""
    if record.key is None or len(record.key) < _KEY.size:
        raise InvalidRecordError("A control record has no type.")
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise InvalidRecordError("The end marker of a transaction has no coordinator epoch.")
    _, coordinator_epoch = _VALUE.unpack_from(record.value)
    return EndMarker(kind == _COMMIT, coordinator_epoch)
