"""Batches unpacked by workers, within the memory that all connections share for that (`unpack.memory.bytes.max`)."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from anabranch.broker.workers import Done, settle
from anabranch.record.batch import BatchHeader
from anabranch.record.compression import Codec

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

Result = TypeVar("Result")

RATIO_MAX: dict[int, int] = {Codec.NONE: 0, Codec.GZIP: 1032, Codec.SNAPPY: 64, Codec.LZ4: 255}
"""By how much each format can shrink bytes at most. zstd has no bound that helps: 2 kB may become 64 MB."""


def unpack(
    broker: "Broker", headers: Iterable[BatchHeader], task: Callable[[], Result], done: Done[Result]
) -> Callable[[], bool]:
    """Have a worker carry out a task that unpacks these batches, one after the other, as soon as there is memory for
    the largest. Returns how to forget a task that has not begun, which says whether it was so."""
    bytes_max = broker.settings.batch_decompressed_bytes_max
    largest = 0
    for header in headers:
        ratio = RATIO_MAX.get(header.codec)
        largest = max(largest, bytes_max if ratio is None else min(bytes_max, header.size_bytes * ratio))
        if largest == bytes_max:
            break
    return broker.unpack_memory.run(broker.workers, largest, task, done)


async def unpacked(broker: "Broker", headers: Iterable[BatchHeader], task: Callable[[], Result]) -> Result:
    """The same for coroutines. A task that has not begun is forgotten if whoever waits is cancelled."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    leave = unpack(broker, headers, task, settle(future))
    try:
        return await future
    except asyncio.CancelledError:
        leave()
        raise
