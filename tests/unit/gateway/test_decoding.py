"""Where batches are decoded: at once, or by a worker within the memory for unpacking."""

import asyncio

import pytest

from anabranch.gateway.calls import Calls
from anabranch.gateway.read.reading import AT_ONCE_BYTES_MAX
from anabranch.record.builder import BatchBuilder
from anabranch.record.compression import Codec
from support.broker_bench import Bench, in_loop, turn
from support.workers import HeldWorkers

MIB = 2**20


def batch(value: bytes, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(codec=codec)
    builder.add(None, value, timestamp_ms=1)
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("data", "is_left_to_a_worker"),
    [
        (batch(b"x"), False),
        (batch(b"x" * AT_ONCE_BYTES_MAX), True),
        (batch(b"x" * 1000, Codec.LZ4), False),
        (batch(b"x" * 1000, Codec.ZSTD), True),
        (batch(b"x" * 1000, Codec.GZIP), True),
    ],
    ids=["little", "much", "little lz4", "little zstd", "little gzip"],
)
@in_loop
async def test_what_may_unpack_to_very_much_is_left_to_a_worker(
    data: bytes, is_left_to_a_worker: bool
) -> None:
    workers = HeldWorkers()
    calls = Calls(Bench(workers=workers).broker)
    decoding = asyncio.ensure_future(calls.decoded(data, lambda: "decoded"))
    await turn()
    assert decoding.done() != is_left_to_a_worker
    while workers.heavies:
        workers.run_heavy()
    assert await decoding == "decoded"


@in_loop
async def test_readers_of_compressed_batches_share_the_memory_for_unpacking() -> None:
    workers = HeldWorkers()
    bench = Bench(workers=workers, unpack_memory_bytes_max=128 * MIB, batch_decompressed_bytes_max=64 * MIB)
    calls = Calls(bench.broker)
    data = batch(b"x" * 1000, Codec.ZSTD)
    decodings = [asyncio.ensure_future(calls.decoded(data, lambda: "decoded")) for _ in range(5)]
    await turn()
    assert (len(workers.heavies), bench.broker.unpack_memory.bytes_taken) == (2, 128 * MIB)
    decodings.pop().cancel()
    while workers.heavies:
        workers.run_heavy()
        await turn()
    assert [await each for each in decodings] == ["decoded"] * 4
    assert bench.broker.unpack_memory.bytes_taken == 0
