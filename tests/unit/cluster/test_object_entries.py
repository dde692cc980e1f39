"""Entries about objects say after their way through JSON what they said before."""

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cluster.objects.entries import (
    Commit,
    Entry,
    Item,
    Replacement,
    commit_entry,
    commits_of,
    forget_entry,
    forgotten_of,
    objects_of,
    replace_entry,
    replacements_of,
    start_entry,
    starts_of,
    tombstone_entry,
)
from anabranch.objects.layout.names import ObjectId, ObjectKind, Row
from anabranch.values import BrokerId, Offset

ME = BrokerId(1)
keys = st.tuples(st.integers(1, 3).map(lambda number: uuid.UUID(int=number)), st.integers(0, 3))
small = st.integers(0, 2**31 - 1)
items = st.builds(
    Item,
    keys,
    st.integers(0, 2**63 - 1),
    small,
    small,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
)
commits = st.builds(Commit, small, st.lists(items, max_size=6), st.just({}))
ROW = Row(Offset(0), Offset(5), ObjectId(1, 2, 3, ObjectKind.MERGED), 4, 5, 6, 7, True)
KEY = uuid.UUID(int=9), 4


def told(entry: Entry) -> Any:
    return json.loads(json.dumps(entry))


@given(st.lists(commits, max_size=3))
def test_commits_are_told(some: list[Commit]) -> None:
    assert list(commits_of(told(commit_entry(ME, 5, 6, some)))) == some


def test_everything_else_is_told() -> None:
    replacement = Replacement(KEY, [ROW, ROW], [])
    assert list(replacements_of(told(replace_entry(ME, 5, [replacement])))) == [replacement]
    assert list(starts_of(told(start_entry({KEY: Offset(7)})))) == [(KEY, 7)]
    assert list(objects_of(told(tombstone_entry([ROW.object_id], 5)))) == [ROW.object_id]
    assert list(forgotten_of(told(forget_entry({KEY: [1, 2]})))) == [(KEY, [1, 2])]


def test_what_no_broker_says_is_refused() -> None:
    item = Item(KEY, 0, 1, 1, -1, -1, -1, 0, 0, 0)
    entry = told(commit_entry(ME, 5, 6, [Commit(0, [item])]))
    with pytest.raises(ValueError, match="whole number"):
        list(commits_of({**entry, "commits": [{**entry["commits"][0], "items": "AAAA"}]}))
    with pytest.raises(ValueError, match="not named"):
        list(commits_of({**entry, "commits": [{**entry["commits"][0], "keys": []}]}))
    with pytest.raises(ValueError, match="no object's name"):
        list(objects_of({"type": "objects-removed", "objects": ["metadata/1"]}))


@pytest.mark.parametrize(("base", "count", "last"), [(0, 1, 0), (5, 3, 7), (2**31 - 1, 2, 0), (-1, 3, -1)])
def test_sequences_begin_anew_behind_the_last(base: int, count: int, last: int) -> None:
    assert Item(KEY, 0, 1, count, 7, 0, base, 0, 0, 0).last_sequence == last
