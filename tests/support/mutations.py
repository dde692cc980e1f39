"""Ways to spoil a good frame. Everything comes from the `Random` handed in: one seed, one sequence."""

import struct
from collections.abc import Callable, Sequence
from random import Random

from anabranch.record.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from anabranch.record.batch import seal

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]

HEADER_BYTES = 8
LENGTHS = [-1, -2, 0, 1, 2, 127, 128, 255, 256, 32767, -32768, 65536, 2**24, 2**31 - 1, -(2**31)]


def flip_bits(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    spoiled = bytearray(frame)
    for _turn in range(rng.choice((1, 1, 2, 8))):
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def truncate(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    return frame[: rng.randrange(1, len(frame) + 1)]


def prolong(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    return frame + rng.randbytes(rng.choice((1, 2, 40, 3000)))


def lie_about_a_length(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    layout = rng.choice((">b", ">h", ">i"))
    width = struct.calcsize(layout)
    if len(frame) < HEADER_BYTES + width:
        return frame
    number = rng.choice(LENGTHS) & ((1 << 8 * width) - 1)
    position = rng.randrange(HEADER_BYTES, len(frame) - width + 1)
    return frame[:position] + number.to_bytes(width, "big") + frame[position + width :]


def splice(rng: Random, frame: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return frame[: rng.randrange(1, len(frame) + 1)] + other[rng.randrange(len(other)) :]


def repeat_a_part(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(frame))
    end = rng.randrange(start, len(frame)) + 1
    return frame[:end] + frame[start:end] * rng.choice((1, 2, 50)) + frame[end:]


def other_version(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    return frame[:2] + rng.randrange(-1, 20).to_bytes(2, "big", signed=True) + frame[4:]


def noise_behind_the_header(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    return frame[: rng.randrange(HEADER_BYTES, 24)] + rng.randbytes(rng.randrange(60))


def noise(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    return rng.randbytes(rng.randrange(1, 200))


def spoil_a_batch(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    """Change a record batch behind its checksum and make the checksum right, to get past the first gate."""
    start = (
        frame.find(b"\xff\xff\xff\xff\x02") - 12
    )  # Generation -1, then the magic of a batch as clients send it.
    if start < 0:
        return frame
    end = start + 12 + int.from_bytes(frame[start + 8 : start + 12], "big")
    batch = bytearray(frame[start:end])
    if len(batch) < BATCH_HEADER_BYTES:
        return frame
    for _turn in range(rng.choice((1, 2, 6))):
        first = rng.choice((21, BATCH_HEADER_BYTES))
        if first < len(batch):
            batch[rng.randrange(first, len(batch))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    seal(batch)
    return frame[:start] + bytes(batch) + frame[end:]


def nothing(rng: Random, frame: bytes, _: Sequence[bytes]) -> bytes:
    return frame


MUTATIONS: list[Mutation] = [
    flip_bits,
    flip_bits,
    truncate,
    prolong,
    lie_about_a_length,
    lie_about_a_length,
    splice,
    repeat_a_part,
    other_version,
    noise_behind_the_header,
    noise,
    spoil_a_batch,
    spoil_a_batch,
    nothing,
]


def mutated(rng: Random, frames: Sequence[bytes]) -> bytes:
    """A frame of the corpus, spoiled once or a few times."""
    frame = rng.choice(frames)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        frame = rng.choice(MUTATIONS)(rng, frame, frames) or b"\0"
    return frame


def sized(rng: Random, frame: bytes) -> bytes:
    """The frame with its size in front, which now and then is a lie too."""
    size = len(frame)
    if rng.random() < 0.03:
        size = rng.choice((size - 1, size + 1, size + 1000, rng.choice(LENGTHS)))
    return struct.pack(">i", max(-(2**31), min(size, 2**31 - 1))) + frame
