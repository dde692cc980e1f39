"""Records as JSON: what is read can be written back, and nothing is guessed wrong."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import GatewayError
from anabranch.gateway.record_json import FORMS, NewRecord, new_record, parse_json, record_json
from anabranch.record.records import Record
from anabranch.values import Offset

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
BYTES = st.none() | st.binary(max_size=30) | TEXTS.map(str.encode)
DOCUMENTS = JSON.map(lambda found: json.dumps(found, indent=1).encode())
HEADERS = st.lists(st.tuples(TEXTS, BYTES), max_size=3).map(tuple)


@given(BYTES, BYTES | DOCUMENTS, HEADERS, st.sampled_from(FORMS))
def test_what_is_shown_gives_the_same_bytes_when_it_is_text(key, value, headers, form) -> None:
    record = Record(Offset(2**60), 5, key, value, headers)
    line = record_json(record, 3, form)
    assert b"\n" not in line
    shown = json.loads(line)
    assert (shown.pop("offset"), shown["partition"]) == (str(2**60), 3)
    back = new_record(shown, "")
    assert (back.key, back.headers, back.timestamp) == (
        key if not isinstance(shown.get("key"), dict | list) else back.key,
        headers,
        5,
    )
    if isinstance(shown.get("value"), dict | list):
        assert json.loads(value) == shown["value"], "JSON is shown as what it says"
    else:
        assert back.value == value


@given(st.binary(max_size=200))
def test_bytes_are_a_record_or_refused_by_the_gateway(data: bytes) -> None:
    with contextlib.suppress(GatewayError):
        assert isinstance(new_record(parse_json(data, "The body"), ""), NewRecord)


@given(JSON)
def test_json_is_a_record_or_refused_by_the_gateway(found) -> None:
    with contextlib.suppress(GatewayError):
        assert isinstance(new_record(found, ""), NewRecord)
