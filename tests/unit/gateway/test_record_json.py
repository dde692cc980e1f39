"""Records as JSON: what is read can be written back, and nothing is guessed wrong."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import GatewayError
from anabranch.gateway.http.texts import json_text
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


NOT_UTF8 = "\udcff\udcfe"
"""What bytes ff fe are in the name of a header, where records are read."""


def strictly(text: bytes) -> Any:
    """As a reader that takes no halves of characters."""
    found = json.loads(text.decode())
    json.dumps(found, ensure_ascii=False).encode()
    return found


def test_name_of_a_header_that_is_not_utf8_is_shown_in_base64_and_written_back() -> None:
    headers = ((NOT_UTF8, b"held"), ("naïve", b"\xff"), ("", None))
    shown = strictly(record_json(Record(Offset(0), 0, b"k", b"v", headers)))
    assert shown["headers"] == [
        [{"base64": "//4="}, "held"],
        ["naïve", {"base64": "/w=="}],
        ["", None],
    ]
    assert new_record({"value": "v", "headers": shown["headers"]}, "").headers == headers


@pytest.mark.parametrize(
    "name", [{}, {"base64": 1}, {"base64": "?"}, {"base64": "", "x": 1}, None, 7, "\ud800"]
)
def test_name_of_a_header_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(GatewayError):
        new_record({"headers": [[name, "x"]]}, "")


@pytest.mark.parametrize(
    ("value", "is_shown_as_json"),
    [
        (rb'{"a":"\ud800"}', False),
        (rb'{"a":"\uDC00\ud800"}', False),
        (rb'["\ud83d\ude00\ude00"]', False),
        (rb'{"\udfff":1,"\udfff":2}', False),
        (rb'["\ud83d\uDE00"]', True),
        (rb'["\\ud800"]', True),
        (rb'["\\\ud800"]', False),
    ],
)
def test_json_with_half_a_character_is_shown_as_text(value: bytes, is_shown_as_json: bool) -> None:
    shown = strictly(record_json(Record(Offset(0), 0, None, value, ())))["value"]
    assert isinstance(shown, str) is not is_shown_as_json
    assert is_shown_as_json or shown.encode() == value


def test_text_for_clients_holds_no_halves_of_characters() -> None:
    assert strictly(json_text({"said": "not \ud800, é"})) == {"said": r"not \ud800, é"}
