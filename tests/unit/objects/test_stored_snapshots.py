"""Snapshots in the object store: names and bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import CorruptDataError
from anabranch.objects.layout.snapshots import (
    FenceId,
    GroupsId,
    MetadataId,
    fence_id_of,
    groups_id_of,
    metadata_id_of,
    metadata_value,
    pack_snapshot,
    unpack_snapshot,
)

LIFE = 0x0123456789ABCDEF


def test_names_say_what_they_are() -> None:
    assert MetadataId(LIFE, 12).name == "metadata/0123456789abcdef-12"
    assert GroupsId(LIFE, 3, 12).name == "groups/0123456789abcdef-3-12"
    assert FenceId(LIFE, 1).name == "fences/0123456789abcdef-0000000000000001"


def test_names_are_read_back_and_others_passed_over() -> None:
    assert metadata_id_of(MetadataId(LIFE, 12).name) == (LIFE, 12)
    assert groups_id_of(GroupsId(LIFE, 3, 12).name) == (LIFE, 3, 12)
    assert fence_id_of(FenceId(LIFE, 1).name) == (LIFE, 1)
    for name in ("metadata/0123456789abcdef-", "metadata/x-1", "groups/0123456789abcdef-1", "fences/1-2"):
        assert metadata_id_of(name) is groups_id_of(name) is fence_id_of(name) is None


VALUE = metadata_value(MetadataId(LIFE, 7), {"topics": ["orders"] * 50}, time_ms=1, producer_silence_ms=2)


def test_a_snapshot_comes_back_as_it_was() -> None:
    assert unpack_snapshot(pack_snapshot(VALUE)) == VALUE


@given(st.data())
def test_one_that_is_cut_or_changed_is_refused_or_the_same(data: st.DataObject) -> None:
    packed = bytearray(pack_snapshot(VALUE))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    else:
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptDataError):
        assert unpack_snapshot(bytes(packed)) == VALUE  # A bit of the frame's header may mean nothing.


def test_one_of_a_later_form_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="newer version"):
        unpack_snapshot(pack_snapshot({**VALUE, "format": 2}))
