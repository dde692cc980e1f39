"""Names of objects and rows of coordinates come back from text and bytes as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.names import (
    ROW_BYTES,
    ObjectId,
    ObjectKind,
    Row,
    lengths,
    max_timestamps,
    next_offsets,
    object_counts,
    object_id_of,
    pack_rows,
    unpack_rows,
)
from anabranch.values import Offset

long = st.integers(0, 2**63 - 1)
object_ids = st.builds(
    ObjectId,
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**18 - 1),
    st.integers(0, 10**18 - 1),
    st.sampled_from(ObjectKind),
)
rows = st.builds(
    Row,
    long.map(Offset),
    long.map(Offset),
    object_ids,
    long,
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.booleans(),
)


@given(object_ids)
def test_an_object_is_known_by_its_name(object_id: ObjectId) -> None:
    assert object_id_of(object_id.name) == object_id


@pytest.mark.parametrize(
    "name",
    [
        "",
        "segments/1-2-3",
        "segments/00000000000000ab-1",
        "segments/00000000000000AB-1-2",
        "metadata/00000000000000ab-1-2",
        "segments/00000000000000ab-1-2.tmp",
        "a/segments/00000000000000ab-1-2",
    ],
)
def test_what_is_not_ours_is_no_object(name: str) -> None:
    assert object_id_of(name) is None


@given(st.lists(rows, max_size=5))
def test_rows_come_back_from_their_bytes(some: list[Row]) -> None:
    packed = pack_rows(some)
    assert len(packed) == len(some) * ROW_BYTES
    assert list(unpack_rows(packed)) == some


@given(st.lists(rows, max_size=5))
def test_single_columns_are_those_of_the_rows(some: list[Row]) -> None:
    packed = pack_rows([*some, *some])
    assert next_offsets(packed) == [row.next_offset for row in [*some, *some]]
    assert lengths(packed) == [row.length for row in [*some, *some]]
    assert max_timestamps(packed) == [row.max_timestamp for row in [*some, *some]]
    counts = dict(object_counts(packed))
    assert set(counts) == {row.object_id for row in some}
    assert sum(counts.values()) == 2 * len(some)
    assert all(count % 2 == 0 for count in counts.values())


def test_bytes_that_are_no_rows_are_noticed() -> None:
    packed = bytearray(pack_rows([Row(Offset(0), Offset(1), ObjectId(1, 2, 3), 0, 1, 0, 1)]))
    with pytest.raises(CorruptDataError, match="whole number"):
        list(unpack_rows(bytes(packed[:-1])))
    packed[40] = 7
    with pytest.raises(CorruptDataError, match="unknown kind 7"):
        list(unpack_rows(bytes(packed)))
    with pytest.raises(CorruptDataError, match="unknown kind 7"):
        list(object_counts(bytes(packed)))
