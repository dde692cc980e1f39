"""Records as lines: NDJSON gives every byte back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.records.consume_output import fields_of
from anabranch.cli.records.lines import BadLineError, LineRecord, decode, encode, from_text, to_text

some_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode())
names = st.text(max_size=10)


@given(some_bytes, some_bytes, st.lists(st.tuples(names, some_bytes), max_size=4), st.integers(0, 2**63 - 1))
def test_every_byte_of_a_record_comes_back(key, value, headers, timestamp_ms):
    fields = {"partition": 3, "timestamp": timestamp_ms, "key": key, "value": value, "headers": headers}
    line = encode({"topic": "t", "offset": 9, **fields})
    assert "\n" not in line
    assert decode(line.encode()) == LineRecord(key, value, tuple(headers), 3, timestamp_ms)


def test_null_and_empty_stay_apart():
    assert decode(b'{"key": null, "value": ""}') == LineRecord(None, b"")


def test_headers_may_be_written_as_an_object():
    assert decode(b'{"headers": {"a": "1"}}').headers == (("a", b"1"),)


def test_object_that_only_resembles_base64_is_refused():
    with pytest.raises(BadLineError, match="value is neither"):
        decode(b'{"value": {"base64": "AA==", "more": 1}}')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"key": 1}', "key is neither"),
        (b'{"value": {"base64": "*"}}', "value is not base64"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b'{"headers": "x"}', "headers are not"),
        (b'{"headers": [["a"]]}', "headers are not"),
        (b'{"headers": [1]}', "headers are not"),
        (b'{"headers": [["a", 1]]}', "header a is neither"),
        (b'{"partition": -1}', "partition is not"),
        (b'{"partition": true}', "partition is not"),
        (b'{"timestamp": 1.5}', "timestamp is not"),
        (b'{"timestamp": 9223372036854775808}', "timestamp is not"),
    ],
)
def test_line_that_is_no_record_is_refused_with_the_reason(line, said):
    with pytest.raises(BadLineError, match=said):
        decode(line)


def test_text_is_the_value_as_it_is():
    assert from_text(b"a:b \r", None) == LineRecord(None, b"a:b \r")


def test_text_is_split_at_the_first_separator():
    assert from_text(b"k:v:w", b":") == LineRecord(b"k", b"v:w")


def test_text_without_its_separator_is_refused():
    with pytest.raises(BadLineError, match="has no separator"):
        from_text(b"kv", b":")


def test_record_cannot_drive_the_terminal():
    shown = to_text(b"k", b"\x1b[2J\x07\xff\nline")
    assert shown == "k\t\\x1b[2J\\x07\\xff\\nline"


def test_null_value_is_called_null():
    assert to_text(None, None) == "null"


def test_utf_8_stays_readable_in_ndjson():
    line = encode({"key": None, "value": "déjà".encode(), "headers": []})
    assert json.loads(line)["value"] == "déjà"
    assert "déjà" in line


def test_name_of_a_header_that_is_not_utf8_is_in_base64_and_cannot_be_sent():
    line = encode({"value": b"v", "key": None, "headers": [("\udcff\udcfe", b"held"), ("é", None)]})
    assert json.loads(line)["headers"] == [[{"base64": "//4="}, "held"], ["é", None]]
    with pytest.raises(BadLineError, match="not UTF-8"):
        decode(line.encode())
    assert decode(b'{"headers": [[{"base64": "w6k="}, "held"]]}').headers == (("é", b"held"),)
    for name in (b"null", b"{}", b"1", b'"\\ud800"'):
        with pytest.raises(BadLineError):
            decode(b'{"headers": [[%s, "held"]]}' % name)


class Message:
    """A record whose headers confluent-kafka stumbles over."""

    def timestamp(self):
        return 1, 5

    def topic(self):
        return "t"

    def partition(self):
        return 3

    def offset(self):
        return 9

    def key(self):
        return None

    value = key

    def headers(self):
        raise SystemError("returned a result with an exception set")


def test_record_whose_headers_cannot_be_told_is_printed_without(capsys):
    line = encode(fields_of(Message()))
    assert json.loads(line)["headers"] is None
    assert decode(line.encode()).headers == ()
    assert "t-3 at offset 9" in capsys.readouterr().err
