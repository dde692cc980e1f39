"""Where a reader begins, ends and stands, as values and as JSON; pure.

The JSON is Spark's, `{"orders": {"0": 5, "1": 7}}`, so that what a checkpoint shows can be given as a start. A
checkpoint of ours also says which topic it was, `{"orders": {"0": 5, "id": "<uuid>"}}`: a topic that was deleted and
made again under its old name is another topic. In a start or an end -2 is the earliest offset and -1 the latest.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from anabranch.errors import OptionError
from anabranch.values import TopicPartition

LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
NUMBER_MAX = 2**63 - 1
"""Of offsets and times: the protocol has eight bytes for them."""
PARTITION_MAX = 2**31 - 1
ID = "id"

Offsets = dict[TopicPartition, int]


class Bounds(NamedTuple):
    """What a partition has now: the first offset, and the one after the last."""

    first: int
    end: int


# --- where a query stands ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """The next offset to read of each partition, and the identity of each topic."""

    offsets: Offsets = field(default_factory=dict)
    topic_ids: dict[str, UUID] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Always in the same order: Spark compares two of these as texts."""
        rows: dict[str, dict[str, Any]] = {}
        for place in sorted(self.offsets):
            rows.setdefault(place.topic, {})[str(place.partition)] = self.offsets[place]
        for name, row in rows.items():
            if name in self.topic_ids:
                row[ID] = str(self.topic_ids[name])
        return rows

    @classmethod
    def from_json(cls, rows: Mapping[str, Mapping[str, Any]]) -> "Progress":
        offsets = {
            TopicPartition(name, int(key)): int(value)
            for name, row in rows.items()
            for key, value in row.items()
            if key != ID
        }
        ids = {name: UUID(row[ID]) for name, row in rows.items() if ID in row}
        return cls(offsets, ids)


# --- where a reader was told to begin and end ---------------------------------------------------------------------


class Point(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMES = "times"


@dataclass(frozen=True)
class Bound:
    """A start or an end: one point for all partitions, or a number for each.

    `numbers` are offsets or times in ms; `time_ms` is one time for all. `option` is where it came from, for messages.
    """

    point: Point
    numbers: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int | None = None
    option: str = ""

    @property
    def is_exact(self) -> bool:
        return self.point is Point.OFFSETS


FROM_EARLIEST = Bound(Point.EARLIEST)
FROM_LATEST = Bound(Point.LATEST)

AskTimes = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
"""The first offset at or after each time; -1 where there is none."""


def parse_bound(option: str, text: str) -> Bound:
    """`earliest`, `latest`, JSON with an offset for each partition, or a moment such as 2026-11-15T10:00:00Z."""
    stripped = text.strip()
    if stripped.lower() in (Point.EARLIEST.value, Point.LATEST.value):
        return Bound(Point(stripped.lower()), option=option)
    if stripped.startswith("{"):
        numbers = parse_numbers(option, stripped)
        for place, number in numbers.items():
            if number < EARLIEST_OFFSET:
                raise OptionError(
                    f"{option}: {number} for {place} is no offset; -2 is the earliest, -1 the latest."
                )
        return Bound(Point.OFFSETS, numbers, option=option)
    moment = _moment_ms(stripped)
    if moment is None:
        raise OptionError(
            f'{option}: {text!r} is none of earliest, latest, JSON such as {{"orders": {{"0": 5}}}}, and a moment such '
            "as 2026-11-15T10:00:00Z."
        )
    return Bound(Point.TIMES, time_ms=_checked_time(option, text, moment), option=option)


def parse_time(option: str, text: str) -> Bound:
    """One time for all partitions: ms since 1970, or a moment such as 2026-11-15T10:00:00Z."""
    stripped = text.strip()
    moment = int(stripped) if stripped.removeprefix("-").isdecimal() else _moment_ms(stripped)
    if moment is None:
        raise OptionError(
            f"{option}: {text!r} is neither ms since 1970 nor a moment as 2026-11-15T10:00:00Z."
        )
    return Bound(Point.TIMES, time_ms=_checked_time(option, text, moment), option=option)


def parse_times(option: str, text: str) -> Bound:
    """JSON with a time in ms for each partition."""
    numbers = parse_numbers(option, text)
    for number in numbers.values():
        _checked_time(option, text, number)
    return Bound(Point.TIMES, numbers, option=option)


def _checked_time(option: str, text: str, time_ms: int) -> int:
    """The protocol takes some times before 1970 for the two ends of a log."""
    if time_ms < 0:
        raise OptionError(f"{option}: {text!r} has a time before 1970, and no record is that old.")
    if time_ms > NUMBER_MAX:
        raise OptionError(f"{option}: {text!r} has a time that no clock will show.")
    return time_ms


def _moment_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_numbers(option: str, text: str) -> Offsets:
    """`{"orders": {"0": 5}}`; the identity in a checkpoint's offsets is passed over."""
    rows = parse_json(option, text)
    numbers: Offsets = {}
    for topic, row in rows.items():
        if not isinstance(row, dict):
            raise _not_numbers(option, text)
        for key, value in row.items():
            if key == ID:
                continue
            if not _is_partition(key) or type(value) is not int or value > NUMBER_MAX:
                raise _not_numbers(option, text)
            numbers[TopicPartition(topic, int(key))] = value
    return numbers


def _is_partition(text: str) -> bool:
    return text.isdecimal() and int(text) <= PARTITION_MAX


def parse_json(option: str, text: str) -> dict[str, Any]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option}: {text!r} is not JSON: {error}.") from error
    if not isinstance(rows, dict):
        raise OptionError(f"{option}: {text!r} is not a JSON object with topics as names.")
    return rows


def _not_numbers(option: str, text: str) -> OptionError:
    return OptionError(
        f'{option}: {text!r} must name topics, and in each a number for a partition: {{"orders": {{"0": 5, "1": 7}}}}.'
    )


def resolve(
    bound: Bound,
    bounds: Mapping[TopicPartition, Bounds],
    ask_times: AskTimes,
    *,
    late: Point | None = Point.LATEST,
) -> Offsets:
    """The offset of each partition in `bounds`. `late`: what a time after the last record means; None: an error."""
    match bound.point:
        case Point.EARLIEST:
            return {place: ends.first for place, ends in bounds.items()}
        case Point.LATEST:
            return {place: ends.end for place, ends in bounds.items()}
        case Point.OFFSETS:
            _check_complete(bound, bounds)
            return {place: _offset(bound.numbers[place], ends) for place, ends in bounds.items()}
        case Point.TIMES:
            return _at_times(bound, bounds, ask_times, late)


def _offset(number: int, ends: Bounds) -> int:
    return {EARLIEST_OFFSET: ends.first, LATEST_OFFSET: ends.end}.get(number, number)


def _check_complete(bound: Bound, bounds: Collection[TopicPartition]) -> None:
    missing = sorted(set(bounds) - set(bound.numbers))
    if missing:
        raise OptionError(
            f"{bound.option}: {_list(missing)} has no number; name every partition (-2 is the earliest offset, -1 the "
            "latest)."
        )
    unknown = sorted(set(bound.numbers) - set(bounds))
    if unknown:
        raise OptionError(f"{bound.option}: {_list(unknown)} is not among the partitions that are read.")


def _at_times(
    bound: Bound, bounds: Mapping[TopicPartition, Bounds], ask_times: AskTimes, late: Point | None
) -> Offsets:
    if bound.time_ms is None:
        _check_complete(bound, bounds)
    times = {place: bound.numbers[place] if bound.time_ms is None else bound.time_ms for place in bounds}
    found = ask_times(times)
    offsets = {}
    for place, ends in bounds.items():
        if found[place] < 0 and late is None:
            raise OptionError(
                f"{bound.option}: {place} has no record at or after {times[place]} ms; "
                "startingOffsetsByTimestampStrategy=latest begins at its end instead."
            )
        offsets[place] = found[place] if found[place] >= 0 else ends.end
    return offsets


def _list(places: Collection[TopicPartition]) -> str:
    return ", ".join(str(place) for place in places)
