"""Whole frames out of bytes that arrive in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import FrameTooLargeError, ProtocolError
from anabranch.wire.foreign import foreign_answer, foreign_protocol
from anabranch.wire.frame import SIZE_BYTES, Frames, split_frames


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=5), st.data())
def test_frames_are_the_same_however_they_arrive(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    found, position = [], 0
    for filled in [*cuts, len(stream)]:
        frames = split_frames(stream, position, filled, 100, 10)
        found += [stream[start:end] for start, end in frames.spans]
        position = frames.position
        assert position + frames.bytes_wanted > filled
    assert (found, position) == (bodies, len(stream))


def test_incomplete_frame_says_how_many_bytes_it_needs() -> None:
    assert split_frames(b"\x00\x00\x00\x09abc", 0, 7, 100, 10) == Frames([], 0, 13)
    assert split_frames(b"\x00\x00\x00", 0, 3, 100, 10) == Frames([], 0, SIZE_BYTES)


@pytest.mark.parametrize("size", [0, -1, -(2**31)])
def test_size_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"A frame of {size} bytes is not a Kafka request"):
        split_frames(size.to_bytes(4, "big", signed=True), 0, 4, 100, 10)


@pytest.mark.parametrize("size", [101, 2**31 - 1])
def test_size_above_the_limit_is_refused_before_its_bytes_arrive(size: int) -> None:
    with pytest.raises(FrameTooLargeError, match=f"A frame of {size} bytes is above the limit of 100"):
        split_frames(size.to_bytes(4, "big"), 0, 4, 100, 10)


def test_size_at_the_limit_is_accepted() -> None:
    assert split_frames(framed(b"x" * 100), 0, 104, 100, 10).spans == [(4, 104)]


def test_good_frames_before_a_bad_size_are_handed_out_first() -> None:
    stream = framed(b"good") + b"\xff\xff\xff\xff"
    frames = split_frames(stream, 0, len(stream), 100, 10)
    assert frames.spans == [(4, 8)]
    with pytest.raises(ProtocolError):
        split_frames(stream, frames.position, len(stream), 100, 10)


@pytest.mark.parametrize(
    ("first_bytes", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"SSH-2.0-OpenSSH", "SSH"),
        (b"\x00\x00\x00\x20", None),
        (b"GE", None),
        (b"", None),
    ],
)
def test_strangers_are_known_by_their_first_bytes(first_bytes: bytes, protocol: str | None) -> None:
    assert foreign_protocol(memoryview(first_bytes)) == protocol


def test_http_gets_a_400_whose_length_is_right() -> None:
    head, _, body = foreign_answer("HTTP").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Kafka" in body


def test_others_get_one_plain_sentence() -> None:
    assert (
        foreign_answer("TLS") == b"This port speaks Kafka's protocol, not TLS. Point a Kafka client at it.\n"
    )
