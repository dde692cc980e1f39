"""A stretch of whole batches in blocks of stored objects, as a fetch hands it on.

It is `missing` blocks, then it is not, and `count` is a guess until then. Its batches may have to be looked at first
(`verify`, in a worker, then `mark_verified`): nobody knows where they begin, or whether their CRCs hold; `count` is a
guess until then too. A slice that is neither is ready: `read` copies the batches out of their blocks and stamps the
offsets of those that have none of their own yet. Blocks are never written to.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anabranch.broker.object.cache.block_cache import Answer, BlockCache
from anabranch.broker.object.cache.blocks import Block, BlockKey
from anabranch.log.segment.slice import Slice
from anabranch.objects.layout.batch_walk import Walk, Walked, place_batches, walk_on
from anabranch.values import Offset


class Part(NamedTuple):
    """The batches `first` to `last - 1` of a row, and the blocks they lie in."""

    walk: Walk
    first: int
    last: int
    blocks: Sequence[Block]

    @property
    def start(self) -> int:
        return self.walk.positions[self.first]

    @property
    def end(self) -> int:
        return self.walk.positions[self.last]


class Check:
    """Bytes from a batch boundary of a row on, that somebody has to look at before they can be served."""

    __slots__ = ("_has_good_crcs", "blocks", "end", "found", "next_offset", "start", "walk")

    def __init__(self, walk: Walk, start: int, next_offset: Offset, blocks: Sequence[Block]) -> None:
        self.walk = walk
        self.start = start
        self.next_offset = next_offset
        self.blocks = blocks
        self.end = min(blocks[-1].end, walk.row.position + walk.row.length)
        self.found: Walked | None = None
        self._has_good_crcs = all(block.is_good(start, self.end) for block in blocks)

    def run(self) -> None:
        """Any thread. Raises CorruptDataError."""
        data, data_start = self.blocks[0].data, self.blocks[0].start
        if len(self.blocks) > 1:
            data, data_start = b"".join(views_of(self.blocks, self.start, self.end)), self.start
        self.found = walk_on(
            self.walk.row,
            data,
            data_start,
            self.start,
            self.next_offset,
            check_crc=not self._has_good_crcs,
        )

    def note(self, cache: BlockCache) -> None:
        """Remember what was found."""
        assert self.found is not None, "run first"
        end = self.found.positions[-1] if self.found.positions else self.start
        for block in self.blocks:
            block.verified.add(max(self.start, block.start), min(end, block.end))
        cache.grow(self.walk, self.found)


def views_of(blocks: Sequence[Block], start: int, end: int) -> list[memoryview]:
    """The bytes of an object from `start` and before `end`, which all lie in these blocks."""
    if len(blocks) == 1:
        block_start = blocks[0].start
        return [memoryview(blocks[0].data)[start - block_start : end - block_start]]
    views = []
    for block in blocks:
        first, last = max(start, block.start), min(end, block.end)
        if first < last:
            views.append(memoryview(block.data)[first - block.start : last - block.start])
    return views


class ObjectSlice(Slice):
    __slots__ = ("_cache", "_parts", "_served", "check", "is_cut", "missing", "present", "walk")

    def __init__(
        self,
        cache: BlockCache,
        count: int,
        *,
        parts: Sequence[Part] = (),
        missing: Sequence[BlockKey] = (),
        present: Sequence[Block] = (),
        walk: Walk | None = None,
        check: Check | None = None,
        is_cut: bool = False,
        served: Callable[[], None] | None = None,
    ) -> None:
        self.count = count
        self.missing = missing
        self.present = present
        self.walk = walk
        """Blocks that are of use once the missing ones are there or these were looked at, and how far their row was
        walked: whoever waits borrows them."""
        self.check = check
        self.is_cut = is_cut
        self.verified = check is None
        self.is_warm = False
        self.damage = None
        self._parts = parts
        self._cache = cache
        self._served = served

    def verify(self) -> None:
        if self.check is not None:
            self.check.run()

    def mark_verified(self) -> None:
        if self.check is not None:
            self.check.note(self._cache)
        self.verified = True

    def distrust(self) -> bool:
        """`verify` has failed. True: the bytes come anew from the store; False: they did already."""
        return self.check is not None and self._cache.distrust(self.check.blocks)

    def fileno(self) -> None:
        return None

    def checked(self) -> Answer:  # type: ignore[override]  # As good as bytes to whoever sends it.
        return self.read()

    def read(self) -> Answer:  # type: ignore[override]  # As good as bytes to whoever sends it.
        """A copy, with its offsets in it."""
        assert not self.missing, "load it first"
        assert self.verified, "verify it first"
        out = Answer(self.count, self._cache)
        for walk, first, last, blocks in self._parts:
            start, end = walk.positions[first], walk.positions[last]
            shift = len(out) - start
            for view in views_of(blocks, start, end):
                out += view
            if not walk.row.is_stamped:
                place_batches(out, shift, walk, first, last)
        assert len(out) == self.count, "a part was not all in its blocks"
        if self._served is not None:
            self._served()
        return out
