"""Filters of a query that let a batch read less: topic, partition, offset, and the first moment.

They only narrow what is read; Spark applies every one of them again to the rows, so that what we understand too
loosely costs time and never a wrong answer. Times of records need not grow with their offsets: a first moment has an
offset before which nothing can be wanted, a last moment has none after which nothing can.
"""

from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from anabranch.pipeline.plan import Narrowing
from anabranch.pipeline.planner import Planner
from anabranch.pipeline.source import BatchReader, RangePartition

EVERYTHING = Narrowing()


class FilteringReader(BatchReader):
    """A batch reader for the worker in which Spark plans with filters."""

    narrowing = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.narrowing = narrowing_of(filters)
        return filters

    def partitions(self) -> list[RangePartition]:
        with closing(Planner(self.options)) as planner:
            return [RangePartition(wanted) for wanted in planner.batch_ranges(self.narrowing)]


def narrowing_of(filters: Iterable[Filter]) -> Narrowing:
    narrowed = EVERYTHING
    for each in filters:
        narrowed = _narrower(narrowed, each)
    return narrowed


def _narrower(known: Narrowing, condition: Filter) -> Narrowing:
    if not isinstance(
        condition, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return known
    column, value = condition.attribute, condition.value
    if column in (("topic",), ("partition",)):
        return _one_of(known, column[0], condition, value)
    if column == ("offset",):
        return _offsets(known, condition, value)
    if column == ("timestamp",) and isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
        return _from_moment(known, value)
    return known


def _one_of(known: Narrowing, column: str, condition: Filter, value: Any) -> Narrowing:
    if not isinstance(condition, EqualTo | In):
        return known
    wanted = frozenset([value] if isinstance(condition, EqualTo) else value)
    if column == "topic":
        return known._replace(topics=wanted if known.topics is None else known.topics & wanted)
    return known._replace(numbers=wanted if known.numbers is None else known.numbers & wanted)


def _offsets(known: Narrowing, condition: Filter, value: Any) -> Narrowing:
    if isinstance(condition, In):
        offsets = [each for each in value if each is not None]
        first, end = (min(offsets), max(offsets) + 1) if offsets else (0, 0)
    elif isinstance(condition, EqualTo):
        first, end = value, value + 1
    elif isinstance(condition, GreaterThan | GreaterThanOrEqual):
        first, end = value, known.end
    else:
        first, end = known.first, value + 1
    return known._replace(first=max(known.first, first), end=min(known.end, end))


def _from_moment(known: Narrowing, value: Any) -> Narrowing:
    if not isinstance(value, datetime):
        return known
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    first_ms = int(moment.timestamp() * 1000)
    return known._replace(first_ms=max(known.first_ms or first_ms, first_ms))
