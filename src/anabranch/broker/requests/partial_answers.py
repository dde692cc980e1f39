"""Requests of several rows that were carried out in part: which rows are left, and one answer out of several.

When the leader of the metadata quorum changes in the middle of a request, the rows before that moment are done, the
one at that moment may be, and those behind it are not (NOT_CONTROLLER). `left` gives a request of the rows that are to
be carried out again, `merged` puts their answers in the places of the earlier ones.

Pure: decoded requests and answers in and out.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from anabranch.wire.error_codes import ErrorCode

Body = dict[str, Any]


class RowFields(NamedTuple):
    """Where the rows of an API are, and by which fields the answer to a row is found."""

    asked: str
    answered: str
    names: tuple[str, ...]
    inner: "RowFields | None" = None
    """RowFields within each row: then only those have an error code."""


CREATED_TOPICS = (RowFields("topics", "topics", ("name",)),)
DELETED_TOPICS = (
    RowFields("topic_names", "responses", ("name",)),
    RowFields("topics", "responses", ("name", "topic_id")),
)
"""Which of the two depends on the version."""
ADDED_PARTITIONS = (RowFields("topics", "results", ("name",)),)
CONFIGS = (RowFields("resources", "responses", ("resource_type", "resource_name")),)
REASSIGNMENTS = (
    RowFields("topics", "responses", ("name",), RowFields("partitions", "partitions", ("partition_index",))),
)


def rows_in(kinds: Sequence[RowFields], request: Body) -> RowFields | None:
    """Those that this request has."""
    return next((rows for rows in kinds if request.get(rows.asked)), None)


def left(rows: RowFields, request: Body, answer: Body, codes: Collection[int]) -> Body | None:
    """The same request for those rows alone that were answered with one of these codes; None: there are none."""
    found = {_key(rows, row): row for row in answer[rows.answered]}
    asked = []
    for row in request[rows.asked]:
        answered = found.get(_key(rows, row))
        if answered is None:
            continue
        if rows.inner is None:
            if answered["error_code"] in codes:
                asked.append(row)
        elif (part := left(rows.inner, row, answered, codes)) is not None:
            asked.append(part)
    return {**request, rows.asked: asked} if asked else None


def merged(rows: RowFields, first: Body, later: Body, codes: Collection[int]) -> Body:
    """The first answer, in which the later one replaces the rows that had these codes. Answers keep the order of the
    rows they answer; a topic that was asked for by its id may be answered with its name."""
    newer = iter(later[rows.answered])
    answers = []
    for row in first[rows.answered]:
        if not any(code in codes for code in _codes(rows, row)):
            answers.append(row)
        elif rows.inner is None:
            answers.append(next(newer, row))
        else:
            answers.append(merged(rows.inner, row, next(newer, row), codes))
    return {**first, rows.answered: answers}


def taken_for_done(rows: RowFields, answer: Body, code: int) -> Body:
    """The answer to a repeated request, in which this code says that the first one was carried out."""
    answers = []
    for row in answer[rows.answered]:
        if rows.inner is not None:
            answers.append(taken_for_done(rows.inner, row, code))
        elif row["error_code"] == code:
            answers.append({**row, "error_code": ErrorCode.NONE, "error_message": None})
        else:
            answers.append(row)
    return {**answer, rows.answered: answers}


def _codes(rows: RowFields, row: Body) -> Iterator[int]:
    if rows.inner is None:
        yield row["error_code"]
    else:
        for each in row[rows.inner.answered]:
            yield from _codes(rows.inner, each)


def _key(rows: RowFields, row: Body | str) -> Hashable:
    return (row,) if isinstance(row, str) else tuple(row[name] for name in rows.names)
