"""What a session keeps in its group and in its client comes back as it was; what others write there harms nobody."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidRequestError
from anabranch.gateway.sessions.state import (
    CURSOR_LENGTH_MAX,
    Share,
    Wish,
    decode_cursor,
    decode_share,
    decode_wish,
    encode_cursor,
    encode_share,
    encode_wish,
    topics_of,
)
from anabranch.values import Offset, TopicPartition
from anabranch.wire.consumer_protocol import encode_assignment, encode_subscription


@given(st.lists(st.text(min_size=1, max_size=20), max_size=5), st.sampled_from(["earliest", "latest"]))
def test_a_wish_comes_back(topics: list[str], start: str) -> None:
    wish = Wish(tuple(topics), start)
    assert decode_wish(encode_wish(wish)) == wish


@pytest.mark.parametrize("note", [None, b"", b"\xff\xfe", b"[1]", b'{"from": 7}', b"[" * 100_000])
def test_a_member_of_another_kind_is_no_session_and_yet_has_topics(note: bytes | None) -> None:
    metadata = encode_subscription(3, {"topics": ["orders"], "user_data": note, "owned_partitions": []})
    assert decode_wish(metadata) is None
    assert topics_of(metadata) == ["orders"]
    assert (decode_wish(b"\x00"), topics_of(b"\x00")) == (None, [])


def test_a_share_comes_back_with_the_counts_it_was_dealt_by() -> None:
    share = decode_share(encode_share({"orders": [0, 2]}, {"orders": 3}))
    assert share == Share(
        frozenset({TopicPartition("orders", 0), TopicPartition("orders", 2)}), {"orders": 3}
    )


@pytest.mark.parametrize("note", [None, b"\xff", b"{}", b'{"partitions": 3}'])
def test_a_share_dealt_by_another_kind_of_leader_has_no_counts(note: bytes | None) -> None:
    body = {"assigned_partitions": [{"topic": "orders", "partitions": [1]}], "user_data": note}
    share = decode_share(encode_assignment(0, body))
    assert share == Share(frozenset({TopicPartition("orders", 1)}), None)
    assert decode_share(b"") == decode_share(b"nonsense") == Share(frozenset(), None)


positions = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1, max_size=20), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1).map(Offset),
    max_size=20,
)


@given(positions)
def test_a_cursor_comes_back_and_fits_into_an_address(found: dict[TopicPartition, Offset]) -> None:
    cursor = encode_cursor(found)
    assert decode_cursor(cursor) == found
    assert all(letter.isalnum() or letter in "-_" for letter in cursor)


def _forged(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "!",
        "a",
        "ü",
        "AAAA",
        _forged([]),
        _forged({"orders": 1}),
        _forged({"\ud800": [[0, 1]]}),
        _forged({"orders": [1]}),
        _forged({"orders": [[0]]}),
        _forged({"orders": [[0, -1]]}),
        _forged({"orders": [[0, 2**63]]}),
        _forged({"orders": [[0, "1"]]}),
        _forged({"orders": [[True, 1]]}),
        _forged({"orders": [[0, 1.5]]}),
        _forged({"orders": [[2**31, 1]]}),
        base64.urlsafe_b64encode(b"[" * 40_000).decode().rstrip("="),
        "A" * (CURSOR_LENGTH_MAX + 1),
    ],
)
def test_a_cursor_that_no_poll_has_answered_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequestError, match="This cursor is not one that a poll has answered"):
        decode_cursor(cursor)


def test_a_cursor_forgets_topics_that_have_been_deleted() -> None:
    old, kept = TopicPartition("old", 0), TopicPartition("kept", 1)
    cursor = encode_cursor({old: Offset(5), kept: Offset(7)}, {"old": "1", "kept": "2"}.get)
    assert decode_cursor(cursor, {"old": "9", "kept": "2"}.get) == {kept: Offset(7)}
    assert decode_cursor(cursor, {"kept": "2"}.get) == {old: Offset(5), kept: Offset(7)}, "not heard of yet"
    assert decode_cursor(encode_cursor({old: Offset(5)}), {"old": "9"}.get) == {old: Offset(5)}
