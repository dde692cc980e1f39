"""Bytes between recv and the end of their frame."""

import pytest

from anabranch.server.receive_buffer import (
    GROWTH,
    GROWTH_OF_LARGE,
    SEVERAL_BYTES_MAX,
    SMALL_BYTES,
    ReceiveBuffer,
)

MIB = 2**20


def filled(data: bytes, capacity: int = 16) -> ReceiveBuffer:
    buffer = ReceiveBuffer()
    buffer.resize(capacity)
    buffer.room()[: len(data)] = data
    buffer.end += len(data)
    return buffer


def test_new_buffer_has_no_room_and_costs_nothing() -> None:
    buffer = ReceiveBuffer()
    assert (len(buffer.room()), buffer.capacity, len(buffer)) == (0, 0, 0)


def test_room_moves_what_is_left_to_the_front() -> None:
    buffer = filled(b"abcdef")
    buffer.start = 4
    assert len(buffer.room()) == 14
    assert bytes(buffer.view[buffer.start : buffer.end]) == b"ef"
    assert buffer.start == 0


def test_room_of_a_buffer_that_is_used_up_is_all_of_it() -> None:
    buffer = filled(b"abcdef")
    buffer.start = buffer.end
    assert (len(buffer.room()), len(buffer)) == (16, 0)


def test_resizing_keeps_what_is_here_and_leaves_the_old_bytes_to_who_looks_at_them() -> None:
    buffer = filled(b"abcdef")
    seen = buffer.view[:6]
    buffer.start = 2
    buffer.resize(32)
    buffer.room()[:2] = b"xx"
    assert bytes(seen) == b"abcdef"
    assert bytes(buffer.view[buffer.start : buffer.end]) == b"cdef"
    assert buffer.capacity == 32


def test_buffer_full_to_the_last_byte_says_so() -> None:
    buffer = filled(b"x" * 16)
    assert buffer.is_full
    buffer.start = 1
    assert not buffer.is_full


@pytest.mark.parametrize(
    ("frame_bytes", "held", "capacity"),
    [
        (10, 0, SMALL_BYTES),
        (SMALL_BYTES + 1, SMALL_BYTES, GROWTH * SMALL_BYTES),
        (SEVERAL_BYTES_MAX // 2, SEVERAL_BYTES_MAX // 4, SEVERAL_BYTES_MAX),
        (SEVERAL_BYTES_MAX + 1, SEVERAL_BYTES_MAX, SEVERAL_BYTES_MAX + 1),
        (SEVERAL_BYTES_MAX, 14, SMALL_BYTES),
        (MIB, 14, SMALL_BYTES),
        (100 * MIB, 4, SMALL_BYTES),
        (100 * MIB, MIB, GROWTH_OF_LARGE * MIB),
        (MIB + 1, MIB, MIB + 1),
    ],
)
def test_frame_gets_room_as_its_bytes_come_in(frame_bytes: int, held: int, capacity: int) -> None:
    buffer = ReceiveBuffer()
    buffer.end = held
    assert buffer.capacity_for(frame_bytes) == capacity


def test_buffer_is_never_smaller_than_what_is_in_it() -> None:
    buffer = filled(b"ab")
    buffer.start = 1
    buffer.resize(1)
    assert (bytes(buffer.view), buffer.capacity, buffer.is_full) == (b"b", 1, True)
    with pytest.raises(AssertionError):
        buffer.resize(0)
    buffer.start = buffer.end
    buffer.resize(0)
    assert buffer.capacity == 0
