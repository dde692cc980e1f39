"""Readers, merges and a store that fails, all at once, in little memory: every reader gets every record, in order."""

import asyncio
from random import Random

import pytest

from anabranch.broker.object.cache import blocks
from anabranch.broker.object.cache.disk_cache import DiskCache
from anabranch.errors import StoreUnavailableError
from anabranch.objects.layout.names import Row
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.records import records_of
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.loop import SimWorkers
from anabranch.values import Offset
from support.object_world import ObjectWorld, batch, on_virtual_loop

END = Offset(2**62)
PARTITIONS = 3
RECORDS = 60
BYTES_MAX = 60_000


class RandomWorld(ObjectWorld):
    def __init__(self, rng: Random, clock: FakeClock) -> None:
        workers = SimWorkers(asyncio.get_running_loop(), rng)
        self.rng = rng
        self.files = FakeDisk()
        disk = DiskCache(self.files, "cache", clock, workers, 30_000)
        disk.open()
        super().__init__(bytes_max=BYTES_MAX, clock=clock, workers=workers, disk=disk)
        self.store.damage = self._damage
        self.store.get_seconds = 0.01

    def _damage(self, data: bytes) -> bytes:
        """Now and then a bit is wrong on the way; never twice in a row for the same object."""
        name, start = self.store.gets[-1]
        if self.rng.random() > 0.1 or self.store.gets.count((name, start)) > 1:
            return data
        changed = bytearray(data)
        changed[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(changed)

    # --- what happens ------------------------------------------------------------------------------------------

    async def append_all(self) -> None:
        while any(self.log(number).end_offset < RECORDS for number in range(PARTITIONS)):
            written = {}
            for number in self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS)):
                at, batches = self.log(number).end_offset, []
                for _ in range(self.rng.randint(1, 3)):
                    count = self.rng.randint(1, 4)
                    size = self.rng.choice((10, 100, 3000))
                    batches.append(
                        batch(*[b"%d-%d-" % (number, at + each) + bytes(size) for each in range(count)])
                    )
                    at = Offset(at + count)
                written[number] = batches
            self.write(written, keep=self.rng.random() < 0.5)
            await asyncio.sleep(self.rng.random())

    async def merge_on(self) -> None:
        """Put rows that follow each other elsewhere, and delete what nobody names any more."""
        while True:
            await asyncio.sleep(self.rng.random())
            number = self.rng.randrange(PARTITIONS)
            rows = self.rows.by_key.get(self.key(number), [])
            if len(rows) < 3:
                continue
            first = self.rng.randrange(len(rows) - 1)
            old = rows[first : first + self.rng.randint(2, 5)]
            later = rows[first + len(old) :]
            del rows[first:]
            self.write_merged(self._batches(old), old[-1].next_offset, number)
            rows += later
            named = {row.object_id.name for each in self.rows.by_key.values() for row in each}
            for name in set(self.store.objects) - named:
                del self.store.objects[name]

    def _batches(self, rows: list[Row]) -> list[tuple[int, bytes]]:
        found = []
        for row in rows:
            data = self.store.objects[row.object_id.name][row.position : row.position + row.length]
            at = int(row.base_offset)
            for start, end in batch_spans(data):
                header = read_header(data, start)
                found.append((header.base_offset if row.is_stamped else at, data[start:end]))
                at = found[-1][0] + header.last_offset_delta + 1
        return found

    async def fail_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(10 * self.rng.random())
            self.store.is_away = StoreUnavailableError("no answer")
            await asyncio.sleep(5 * self.rng.random())
            self.store.is_away = None

    async def read(self, number: int, start: int) -> None:
        at = start
        while at < RECORDS:
            log = self.log(number)
            if at >= log.end_offset:
                await asyncio.sleep(0.1)
                continue
            part = await log.loaded(Offset(at), self.rng.choice((1, 500, 20_000)), END)
            data = part.read()
            for first, last in batch_spans(data):
                header = read_header(data, first)
                assert header.base_offset <= at < header.next_offset, "a gap, or records twice"
                for record in records_of(memoryview(data)[first:last]):
                    assert (record.value or b"").startswith(b"%d-%d-" % (number, record.offset))
                at = header.next_offset
            await asyncio.sleep(self.rng.random() / 10)


@pytest.mark.parametrize("seed", range(10))
@on_virtual_loop
async def test_every_reader_gets_every_record_once_in_order(seed: int, clock: FakeClock) -> None:
    rng = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", rng.choice((1000, 5000, 2**22)))
        patch.setattr(blocks, "BLOCK_BYTES_GATHERED", rng.choice((8000, 2**23)))
        world = RandomWorld(rng, clock)
        background = [asyncio.create_task(work) for work in (world.merge_on(), world.fail_now_and_then())]
        readers = [
            world.read(number, rng.choice((0, 0, rng.randrange(RECORDS))))
            for number in range(PARTITIONS)
            for _ in range(4)
        ]
        async with asyncio.timeout(3600):
            await asyncio.gather(world.append_all(), *readers)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        assert world.cache._loans == {}
        assert world.disk is not None
        assert world.disk.bytes_held <= 30_000
        await world.cache.close()
