"""State files: what is torn, garbled or of another version holds nothing, and says why."""

import zlib

import pytest

from anabranch.record.state_file import dump_state, load_state


def test_a_value_survives_the_way_there_and_back() -> None:
    assert load_state(dump_state({"a": [1, None, "ü"]})) == ({"a": [1, None, "ü"]}, None)


def summed(body: bytes) -> bytes:
    return b"anabranch 1 %08x\n" % zlib.crc32(body) + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "begin"),
        (b"something else\n{}", "begin"),
        (b"anabranch 2 00000000\n{}", "version 2"),
        (dump_state({"a": 1})[:-1], "checksum"),
        (summed(b"not json"), "JSON"),
        (summed(b"[" * 100_000), "JSON"),
        (summed(b"\xff"), "JSON"),
    ],
)
def test_what_does_not_hold_says_why(data: bytes, reason: str) -> None:
    value, because = load_state(data)
    assert value is None
    assert because is not None
    assert reason in because
