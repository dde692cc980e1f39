"""BlockCache: bytes of stored objects in memory, in blocks, those used last.

A block is one GET. What a broker has gathered is one block, all of it, whoever asks for a part: those who read other
partitions find theirs in it. Larger objects are cut. `get` answers from memory at once; who finds nothing there says
`want` and is woken when the block has come (`block_loads.py`), from the disk cache or from the store. What this broker
has stored itself it `keep`s.

All memory that reading takes counts against `object.cache.bytes`: blocks, what is known of their batches, blocks on
their way in, and answers on their way out, for which blocks give way. Blocks never change: who stamps, copies. A batch
may lie in several blocks, which all have to be there at once: who waits for the rest of them `borrow`s those that came.

For the loop's thread.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from anabranch.broker.object.cache.block_loads import BlockLoads
from anabranch.broker.object.cache.blocks import BLOCK_BYTES_GATHERED, Block, BlockKey, Origin, block_bytes
from anabranch.clock import Clock
from anabranch.errors import ObjectGoneError
from anabranch.objects.layout.batch_walk import Walk, Walked
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.objects.store import Buffer, ObjectStore

if TYPE_CHECKING:
    from anabranch.broker.object.cache.disk_cache import DiskCache

GETS_MAX = 16
ANSWER_BYTES_ALWAYS = 64 * 2**10
"""What an answer may carry however short memory is, so that everybody gets on."""
BAD_MS = 10_000
"""How long bytes that were wrong twice are not asked for again."""
GONE_MS = 5_000


class Answer(bytearray):
    """Records on their way to a reader: they count as memory of the cache until the socket has them."""

    __slots__ = ("_cache", "_count")

    def __init__(self, count: int, cache: "BlockCache") -> None:
        """Empty yet, but counted: whoever made it adds so many bytes."""
        super().__init__()
        self._count = count
        self._cache = cache
        cache.answer_bytes += count
        cache.make_room()

    def __del__(self) -> None:
        self._cache.answer_bytes -= self._count


class Loan:
    """Blocks that stay at hand for somebody who waits for more of them, and what is known of their batches."""

    def __init__(self, cache: "BlockCache") -> None:
        self._cache = cache
        self._blocks: dict[BlockKey, Block] = {}
        self._before: dict[BlockKey, Block] = {}
        self._walks: dict[Row, Walk] = {}
        self._is_refused = False

    def begin(self) -> None:
        """Look again at what is needed."""
        self._before, self._blocks = self._blocks, {}
        self._walks.clear()
        self._is_refused = False

    def borrow(self, walk: Walk, blocks: Sequence[Block]) -> bool:
        """Those too, if there is memory, or nobody else has waited longer. False: come again when somebody has given
        some back (`call_when_returned`); what is missing besides would only push out what others wait with."""
        self._walks[walk.row] = walk
        for block in blocks:
            if self._before.get(block.key) is block:
                del self._before[block.key]
            elif block.key in self._blocks:
                continue
            elif not self._cache.lend(block, self):
                self._is_refused = True
                return False
            self._blocks[block.key] = block
        return True

    def settle(self) -> None:
        """What was not borrowed again is given back. Who needs nothing any more leaves the line of those who wait."""
        before, self._before = self._before, {}
        is_over = not self._blocks and not self._is_refused
        self._cache.take_back(self, list(before.values()), is_over=is_over)

    def end(self) -> None:
        self.begin()
        self.settle()


class BlockCache:
    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        bytes_max: int,
        *,
        disk: "DiskCache | None" = None,
        caught_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`caught_up` applies what the cluster has agreed on: an object that is gone may be named no more."""
        self.bytes_max = bytes_max
        self.answer_bytes = 0
        self.block_bytes_held = 0
        self._walk_bytes = 0
        self._ahead_bytes = 0
        self._clock = clock
        self._disk = disk
        self._blocks: OrderedDict[BlockKey, Block] = OrderedDict()
        self._walks: OrderedDict[tuple[ObjectId, int], Walk] = OrderedDict()
        self._walks_in_use: WeakValueDictionary[tuple[ObjectId, int], Walk] = WeakValueDictionary()
        self._lent: dict[BlockKey, tuple[Block, int]] = {}
        """Blocks that somebody has borrowed, and how often."""
        self._lent_bytes = 0
        self._loans: dict[Loan, None] = {}
        self._to_call: dict[Callable[[], None], None] = {}
        self._gone_ms: OrderedDict[ObjectId, int] = OrderedDict()
        gets_max = max(1, min(GETS_MAX, bytes_max // (4 * BLOCK_BYTES_GATHERED)))
        self.loads = BlockLoads(store, self, gets_max, disk, caught_up)

    @property
    def bytes_held(self) -> int:
        loading = self.loads.running_count * min(BLOCK_BYTES_GATHERED, self.bytes_max // 4)
        return self.block_bytes_held + self._lent_bytes + self._walk_bytes + self.answer_bytes + loading

    @property
    def answer_bytes_max(self) -> int:
        """What one more answer may carry besides a first batch that is larger."""
        left = self.bytes_max // 2 - self.answer_bytes
        return max(ANSWER_BYTES_ALWAYS, min(left, self.bytes_max // 8))

    @property
    def is_short(self) -> bool:
        """Answers that nobody takes have used up everything: no more of them, but for small ones."""
        return self.answer_bytes >= self.bytes_max

    # --- blocks ----------------------------------------------------------------------------------------------

    def get(self, key: BlockKey) -> Block | None:
        block = self._blocks.get(key)
        if block is None:
            return self._lent[key][0] if key in self._lent else None
        if block.bad_ms is not None and self._clock.monotonic_ms() - block.bad_ms > BAD_MS:
            self._remove(block)
            return None
        self._blocks.move_to_end(key)
        self._used(block)
        return block

    def keep(self, object_id: ObjectId, pieces: Sequence[Buffer]) -> None:
        """An object that this broker has stored, of batches that were checked when they came: who reads them next
        need not ask the store. A single piece of `bytes` is not copied."""
        first = pieces[0] if len(pieces) == 1 else None
        whole = first if isinstance(first, bytes) else b"".join(pieces)
        size = block_bytes(object_id)
        for number in range(-(-len(whole) // size)):
            data = whole if len(whole) <= size else whole[number * size : (number + 1) * size]
            self.put(Block(BlockKey(object_id, number), data, Origin.KEPT))

    def put(self, block: Block) -> None:
        """A block has come; those who wait for it are woken."""
        old = self._blocks.get(block.key)
        if old is not None:
            self._remove(old)
        self._gone_ms.pop(block.key.object_id, None)
        self._blocks[block.key] = block
        self.block_bytes_held += block.cost
        if block.is_ahead:
            self._ahead_bytes += block.cost
        self.make_room()
        self.loads.arrived(block.key)

    def make_room(self) -> None:
        """What was used longest ago goes, until all is within the limit; the block used last stays."""
        while self.bytes_held > self.bytes_max and len(self._blocks) > 1:
            block = next(iter(self._blocks.values()))
            self._remove(block)
            if self._disk is not None and block.origin is Origin.STORE and block.bad_ms is None:
                self._disk.put(block)

    def _remove(self, block: Block) -> None:
        del self._blocks[block.key]
        self.block_bytes_held -= block.cost
        self._used(block)

    def _used(self, block: Block) -> None:
        if block.is_ahead:
            block.is_ahead = False
            self._ahead_bytes -= block.cost

    def lend(self, block: Block, loan: Loan) -> bool:
        """Whoever borrowed first goes on however short memory is, so that one at least gets all it needs."""
        self._loans[loan] = None
        _, count = self._lent.get(block.key, (block, 0))
        if not count:
            is_short = self._lent_bytes + block.cost > self.bytes_max // 4
            if is_short and next(iter(self._loans)) is not loan:
                return False
            self._lent_bytes += block.cost
        self._lent[block.key] = block, count + 1
        return True

    def take_back(self, loan: Loan, blocks: Sequence[Block], *, is_over: bool) -> None:
        is_news = bool(blocks)
        if is_over and loan in self._loans:
            is_news = is_news or next(iter(self._loans)) is loan
            del self._loans[loan]
        for block in blocks:
            lent, count = self._lent.get(block.key, (None, 0))
            if lent is block and count > 1:
                self._lent[block.key] = block, count - 1
            elif lent is block:
                self._forget_lent(block)
        if is_news:
            to_call, self._to_call = self._to_call, {}
            for woken in to_call:
                woken()

    def call_when_returned(self, woken: Callable[[], None]) -> None:
        """Once, when somebody has given blocks back."""
        self._to_call[woken] = None

    def _forget_lent(self, block: Block) -> None:
        if block.key in self._lent:
            self._lent_bytes -= self._lent.pop(block.key)[0].cost

    # --- loading ---------------------------------------------------------------------------------------------

    def want(self, key: BlockKey, woken: Callable[[], None]) -> None:
        """Load a block; `woken` is called once, when it is there or cannot be had."""
        self.loads.want(key, woken)

    def want_ahead(self, key: BlockKey) -> None:
        """Load a block that somebody will likely ask for, if there is nothing better to do."""
        if key not in self._blocks and self._ahead_bytes < self.bytes_max // 4:
            self.loads.want_ahead(key)

    def leave(self, keys: Sequence[BlockKey], woken: Callable[[], None]) -> None:
        """Wait no longer."""
        self._to_call.pop(woken, None)
        self.loads.leave(keys, woken)

    def is_loading(self, key: BlockKey) -> bool:
        return self.loads.is_loading(key)

    @property
    def is_away(self) -> bool:
        """The store has not answered for a while."""
        return self.loads.is_away

    # --- what went wrong -------------------------------------------------------------------------------------

    def note_gone(self, object_id: ObjectId) -> None:
        self._gone_ms[object_id] = self._clock.monotonic_ms()
        self._gone_ms.move_to_end(object_id)
        while len(self._gone_ms) > 1000:
            self._gone_ms.popitem(last=False)

    def check_gone(self, object_id: ObjectId) -> None:
        """Raises ObjectGoneError for an object that the store did not have a moment ago, after this broker had caught
        up with what others have agreed on."""
        gone_ms = self._gone_ms.get(object_id)
        if gone_ms is not None and self._clock.monotonic_ms() - gone_ms < GONE_MS:
            raise ObjectGoneError(f"{object_id.name} is not in the object store any more.")

    def distrust(self, blocks: Sequence[Block]) -> bool:
        """These bytes are not what they should be. True: they are dropped everywhere and come anew from the store;
        False: they did already, so it is the store's own that are wrong."""
        for block in blocks:
            self._forget_walks(block.key.object_id)
        suspects = [block for block in blocks if self.get(block.key) is block]
        if suspects and all(block.is_fresh for block in suspects):
            for block in suspects:
                block.bad_ms = block.bad_ms or self._clock.monotonic_ms()
            return False
        for block in suspects:
            if block.key in self._blocks:
                self._remove(block)
            self._forget_lent(block)
            self.loads.refresh(block.key)
            if self._disk is not None:
                self._disk.drop(block.key)
        return True

    def _forget_walks(self, object_id: ObjectId) -> None:
        for place in [each for each in self._walks if each[0] == object_id]:
            self._walk_bytes -= self._walks.pop(place).size_bytes
        for place in [each for each in self._walks_in_use if each[0] == object_id]:
            del self._walks_in_use[place]

    # --- what is known of batches ------------------------------------------------------------------------------

    def walk_of(self, row: Row) -> Walk:
        place = (row.object_id, row.position)
        walk = self._walks.get(place)
        if walk is None or walk.row != row:
            walk = self._walks_in_use.get(place)
            return walk if walk is not None and walk.row == row else self._new_walk(place, row)
        self._walks.move_to_end(place)
        return walk

    def _new_walk(self, place: tuple[ObjectId, int], row: Row) -> Walk:
        """Found again by others as long as somebody has it, and longer once it has grown."""
        walk = self._walks_in_use[place] = Walk(row)
        return walk

    def grow(self, walk: Walk, found: Walked) -> None:
        """Remember more of a walk."""
        place = (walk.row.object_id, walk.row.position)
        old = self._walks.pop(place, None)
        self._walk_bytes -= old.size_bytes if old is not None else 0
        walk.grow(found)
        self._walks[place] = self._walks_in_use[place] = walk
        self._walk_bytes += walk.size_bytes
        while self._walk_bytes > self.bytes_max // 8 and len(self._walks) > 1:
            self._walk_bytes -= self._walks.popitem(last=False)[1].size_bytes
        self.make_room()

    async def close(self) -> None:
        await self.loads.close()
