"""Five codecs: round trips, foreign frames, bombs under a memory watch, and damage of every kind."""

import gzip
import subprocess
import sys
import zlib
from struct import pack

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import (
    AnabranchError,
    BatchTooLargeError,
    CorruptDataError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from anabranch.record.compression import FRAMES_MAX, Codec, compress, decompress

CODECS = list(Codec)
PACKED = [codec for codec in Codec if codec is not Codec.NONE]
STREAMED = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
XERIAL = b"\x82SNAPPY\x00" + pack(">ii", 1, 1)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=5_000), kind=st.sampled_from([bytes, bytearray, memoryview]))
def test_what_is_packed_comes_back(codec: Codec, data: bytes, kind: type) -> None:
    packed = compress(codec, kind(data))
    assert decompress(codec, kind(packed), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_one_block_or_step_comes_back(codec: Codec) -> None:
    data = b"".join(b"%d," % i for i in range(500_000))
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, bytes(100_000))
    assert len(decompress(codec, packed, 100_000)) == 100_000
    with pytest.raises(BatchTooLargeError, match="99999"):
        decompress(codec, packed, 99_999)


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 0, 12), (Codec.ZSTD, 1, 19)]
)
def test_a_higher_level_packs_tighter(codec: Codec, low: int, high: int) -> None:
    data = b"".join(b'{"id": %d, "name": "user-%d"}' % (i, i * 7919 % 1000) for i in range(3_000))
    quick, tight = compress(codec, data, low), compress(codec, data, high)
    assert len(tight) < len(quick)
    assert decompress(codec, tight, len(data)) == data


@pytest.mark.parametrize("level", range(-1, 10))
def test_every_level_of_gzip_is_taken(level: int) -> None:
    assert gzip.decompress(compress(Codec.GZIP, b"abc", level)) == b"abc"


@pytest.mark.parametrize("codec", STREAMED)
def test_frames_that_follow_one_another_are_one_text(codec: Codec) -> None:
    packed = compress(codec, b"one,") + compress(codec, b"") + compress(codec, b"two")
    assert decompress(codec, packed, 7) == b"one,two"


SKIPPABLE = b"\x50\x2a\x4d\x18" + pack("<I", 5) + b"hello"
"""A frame without text, which LZ4 and zstd know."""


@pytest.mark.parametrize("codec", CODECS)
def test_one_frame_of_a_producer_is_taken(codec: Codec) -> None:
    packed = compress(codec, bytes(100_000))
    assert decompress(codec, packed, 100_000, fresh=True) == bytes(100_000)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize(
    "texts", [(b"one,", b"two"), (b"one", b""), (b"", b"one")], ids=["two", "empty last", "empty first"]
)
def test_a_second_frame_of_a_producer_is_refused_because_clients_read_one(
    codec: Codec, texts: tuple[bytes, ...]
) -> None:
    packed = b"".join(compress(codec, text) for text in texts)
    assert decompress(codec, packed, 7) == b"".join(texts)
    with pytest.raises(InvalidRecordError, match="one frame"):
        decompress(codec, packed, 7, fresh=True)


def test_bytes_behind_the_frame_of_a_producer_are_refused() -> None:
    for codec in PACKED:
        for tail in (b"\0", bytes(4), bytes(8), b"garbage"):
            with pytest.raises((CorruptDataError, InvalidRecordError)):
                decompress(codec, compress(codec, b"text") + tail, 100, fresh=True)


@pytest.mark.parametrize(
    "packed",
    [
        compress(Codec.ZSTD, b"one,") + compress(Codec.ZSTD, b"two"),
        compress(Codec.ZSTD, b"") + compress(Codec.ZSTD, b"one,two"),
        SKIPPABLE + compress(Codec.ZSTD, b"one,two") + SKIPPABLE,
    ],
    ids=["two", "empty first", "skippable"],
)
def test_frames_of_zstd_may_follow_one_another_because_clients_read_them_all(packed: bytes) -> None:
    assert decompress(Codec.ZSTD, packed, 7, fresh=True) == b"one,two"


def test_a_skippable_frame_of_lz4_is_refused_from_a_producer() -> None:
    packed = compress(Codec.LZ4, b"text")
    with pytest.raises(CorruptDataError):
        decompress(Codec.LZ4, SKIPPABLE + packed, 100, fresh=True)
    with pytest.raises(InvalidRecordError):
        decompress(Codec.LZ4, packed + SKIPPABLE, 100, fresh=True)


def test_linked_blocks_of_lz4_are_refused_from_a_producer_because_java_reads_none() -> None:
    packed = lz4.frame.compress(b"linked" * 50_000, block_linked=True)
    with pytest.raises(InvalidRecordError, match="independent"):
        decompress(Codec.LZ4, packed, 400_000, fresh=True)


@pytest.mark.parametrize("codec", STREAMED)
def test_frames_are_limited_together(codec: Codec) -> None:
    packed = compress(codec, bytes(60)) * 2
    with pytest.raises(BatchTooLargeError):
        decompress(codec, packed, 119)


@pytest.mark.parametrize("codec", STREAMED)
def test_frames_are_limited_in_number(codec: Codec) -> None:
    assert decompress(codec, compress(codec, b"x") * FRAMES_MAX, 10_000) == b"x" * FRAMES_MAX
    with pytest.raises(CorruptDataError, match="frames"):
        decompress(codec, compress(codec, b"x") * (FRAMES_MAX + 1), 10_000)


@pytest.mark.parametrize("codec", PACKED)
def test_data_cut_at_any_byte_is_corrupt_or_a_shorter_text(codec: Codec) -> None:
    # Xerial's framing has no end mark: cut between two chunks it is whole. The record count finds that out.
    packed = compress(codec, bytes(range(256)) * 200)
    for end in range(0, len(packed), 1 if len(packed) < 2_000 else 37):
        try:
            whole = decompress(codec, packed[:end], 100_000)
        except CorruptDataError:
            continue
        assert codec is Codec.SNAPPY
        assert len(whole) % (32 * 1024) == 0


@pytest.mark.parametrize("codec", PACKED)
def test_bytes_behind_the_data_are_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptDataError):
        decompress(codec, compress(codec, b"text") + b"garbage", 1_000)


@pytest.mark.parametrize("codec", PACKED)
@given(noise=st.binary(max_size=300))
def test_noise_never_raises_anything_but_our_own(codec: Codec, noise: bytes) -> None:
    try:
        assert len(decompress(codec, noise, 1_000)) <= 1_000
    except AnabranchError:
        return


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.data())
def test_damage_never_raises_anything_but_our_own(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"some text, some text, some more text" * 20))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(codec, packed, 1_000)) <= 1_000
    except AnabranchError:
        return


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_an_unknown_codec_is_refused_both_ways(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        compress(codec, b"")
    with pytest.raises(UnsupportedCompressionError):
        decompress(codec, b"", 1)


def test_gzip_needs_its_own_header() -> None:
    with pytest.raises(CorruptDataError):
        decompress(Codec.GZIP, zlib.compress(b"text"), 100)


def test_gzip_finds_a_wrong_checksum() -> None:
    packed = bytearray(compress(Codec.GZIP, b"text"))
    packed[-5] ^= 1
    with pytest.raises(CorruptDataError):
        decompress(Codec.GZIP, packed, 100)


def test_lz4_is_written_with_independent_blocks_for_java() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, bytes(200_000)))
    assert not info["block_linked"]


def test_lz4_with_linked_blocks_is_read() -> None:
    data = b"linked" * 50_000
    assert decompress(Codec.LZ4, lz4.frame.compress(data, block_linked=True), len(data)) == data


def test_snappy_is_written_in_the_framing_java_writes() -> None:
    packed = compress(Codec.SNAPPY, bytes(40_000))
    first = raw_snappy(bytes(32 * 1024))
    second = raw_snappy(bytes(40_000 - 32 * 1024))
    assert packed == XERIAL + pack(">i", len(first)) + first + pack(">i", len(second)) + second


def test_bare_snappy_is_read() -> None:
    assert decompress(Codec.SNAPPY, raw_snappy(b"bare" * 100), 400) == b"bare" * 100


def test_xerial_streams_may_follow_one_another() -> None:
    packed = compress(Codec.SNAPPY, b"one,") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, packed, 7) == b"one,two"


@pytest.mark.parametrize(
    "tail",
    [b"\0", pack(">i", -1), pack(">i", 0), pack(">i", 5) + b"abcd", pack(">i", 2**31 - 1), XERIAL[:12]],
)
def test_a_broken_chunk_of_snappy_is_corrupt(tail: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"text") + tail, 100)


def test_snappy_chunks_are_limited_together() -> None:
    chunk = raw_snappy(bytes(600))
    with pytest.raises(BatchTooLargeError):
        decompress(Codec.SNAPPY, XERIAL + (pack(">i", len(chunk)) + chunk) * 2, 1_000)


# --- bombs -----------------------------------------------------------------------------------------------

WATCHED = """
import resource, sys
from anabranch.errors import BatchTooLargeError
from anabranch.record.compression import compress, decompress
codec, bomb = int(sys.argv[1]), sys.stdin.buffer.read()
decompress(codec, compress(codec, b"import the library first"), 100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, bomb, 2**20)
except BatchTooLargeError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def gzip_bomb() -> bytes:
    return compress(Codec.GZIP, bytes(64 * 2**20), 1)


def zstd_bomb() -> bytes:
    bomb = compress(Codec.ZSTD, bytes(256 * 2**20))
    assert len(bomb) < 10_000  # 256 MiB from 8 kB
    return bomb


def zstd_bomb_of_many_frames() -> bytes:
    return compress(Codec.ZSTD, bytes(2**20 - 1)) + compress(Codec.ZSTD, bytes(64 * 2**20))


def lz4_bomb() -> bytes:
    return lz4.frame.compress(bytes(64 * 2**20), store_size=True)


def snappy_bomb() -> bytes:
    return raw_snappy(bytes(64 * 2**20))


def xerial_bomb() -> bytes:
    return XERIAL + pack(">i", len(snappy_bomb())) + snappy_bomb()


def snappy_that_announces_four_gigabytes() -> bytes:
    return b"\xff\xff\xff\xff\x0f" + b"\x00x"


@pytest.mark.parametrize(
    ("codec", "make_bomb"),
    [
        (Codec.GZIP, gzip_bomb),
        (Codec.ZSTD, zstd_bomb),
        (Codec.ZSTD, zstd_bomb_of_many_frames),
        (Codec.LZ4, lz4_bomb),
        (Codec.SNAPPY, snappy_bomb),
        (Codec.SNAPPY, xerial_bomb),
        (Codec.SNAPPY, snappy_that_announces_four_gigabytes),
    ],
)
def test_a_bomb_is_refused_before_it_takes_memory(codec: Codec, make_bomb: object) -> None:
    assert callable(make_bomb)
    watched = subprocess.run(
        [sys.executable, "-c", WATCHED, str(int(codec))], input=make_bomb(), capture_output=True, check=True
    )
    kilobytes_more = int(watched.stdout)
    assert kilobytes_more < 16 * 1024
