"""Keys of a batch's records: the same from both forms, and the same batches are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import AnabranchError
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder, emptied_batch
from anabranch.record.compaction.keys import keyed_records
from anabranch.record.compaction.keys_pure import keyed_records_pure
from anabranch.record.compression import Codec
from anabranch.record.records import records_of

FORMS = [keyed_records_pure]
try:
    from anabranch.record.compaction.keys_compiled import keyed_records_compiled
except ImportError:
    pass  # Not built here; `anabranch version` says so.
else:
    FORMS.append(keyed_records_compiled)
TEXTS = st.one_of(st.none(), st.binary(max_size=12))


def a_batch(pairs: list[tuple[bytes | None, bytes | None]], codec: int = 0) -> bytes:
    builder = BatchBuilder(2**40, codec)
    for number, (key, value) in enumerate(pairs):
        builder.add(key, value, [("h", b"x")] * (number % 2), timestamp_ms=number, offset=2**40 + 3 * number)
    return bytes(builder.build())


@pytest.mark.parametrize("form", FORMS)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20), codec=st.sampled_from(list(Codec)))
def test_offsets_keys_and_tombstones_are_those_of_the_records(form, pairs, codec) -> None:  # type: ignore[no-untyped-def]
    batch = a_batch(pairs, codec)
    expected = [(record.offset, record.key, record.value is None) for record in records_of(batch)]
    assert form(batch) == expected == keyed_records(memoryview(batch))


@pytest.mark.parametrize("form", FORMS)
def test_an_emptied_batch_has_none(form) -> None:  # type: ignore[no-untyped-def]
    assert form(bytes(emptied_batch(read_header(a_batch([(b"a", b"b")]))))) == []


@pytest.mark.parametrize("form", FORMS)
@given(place=st.integers(61, 80), flipped=st.integers(1, 255))
def test_spoiled_records_are_refused_by_both_or_by_none(form, place, flipped) -> None:  # type: ignore[no-untyped-def]
    spoiled = bytearray(a_batch([(b"key", b"value"), (None, None), (b"k", b"")]))
    spoiled[place] ^= flipped
    try:
        expected = keyed_records_pure(spoiled)
    except AnabranchError:
        with pytest.raises(AnabranchError):
            form(spoiled)
    else:
        assert form(spoiled) == expected
