"""What the sender of a malformed head is told is what is wrong with it."""

import httptools
import pytest

from anabranch.gateway.http.heads import LENGTH_DIGITS_MAX, ambiguity, malformation


class Parsed:
    """Reads the target as the server does: while the parser tells of the head."""

    def __init__(self) -> None:
        self._target = b""

    def on_url(self, target: bytes) -> None:
        self._target = target

    def on_headers_complete(self) -> None:
        httptools.parse_url(self._target)


def found_in(head: bytes) -> str:
    try:
        httptools.HttpRequestParser(Parsed()).feed_data(head)
    except httptools.HttpParserCallbackError as error:
        return str(error.__context__)
    except httptools.HttpParserError as error:
        return str(error)
    raise AssertionError("this is a request")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GET http:// HTTP/1.1\r\n\r\n", "target is invalid"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5, 5\r\n\r\n", "not one whole number"),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n", "too large"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n", "there twice"),
    ],
)
def test_each_fault_is_said_by_its_name(head: bytes, said: str) -> None:
    assert said in malformation(found_in(head), is_in_body=False)[1]


def test_a_head_that_cannot_be_read_is_not_called_a_wrong_target() -> None:
    assert "target" not in malformation("User callback error", is_in_body=False)[1]


def test_a_length_has_as_many_digits_as_64_bits_need() -> None:
    length = (b"content-length", b"13".zfill(LENGTH_DIGITS_MAX))
    assert ambiguity([length], "1.1", b"/") is None
    said = ambiguity([(length[0], b"0" * 5000 + b"13")], "1.1", b"/")
    assert said is not None
    assert "5002 digits" in said
