"""Which rows are merged next.

Two steps, so that every record is copied about twice, whatever the number of partitions. What brokers have gathered is
merged first, once it adds up to `object.merge.bytes` or one partition has more than `SMALL_ROWS_MAX` rows of it: the
objects are read whole, and a partition's part becomes one row, in an object of its own if it is large, else in one that
partitions share. Where such rows are small still, those of one partition are merged again once they add up.

Rows are not merged across a gap between lanes, which a topic that was in mode branch has: they tell where it is.

A partition's tail is `[merged, but small ...] [as gathered ...]`; what lies before is left alone. Compacted rows are
always before it: compaction itself makes them large (`object_compacting.grouped_rows`).
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import NamedTuple

from anabranch.objects.layout.names import Key, ObjectId, ObjectKind, Row
from anabranch.objects.layout.plans import ROWS_PER_LOOK, ROWS_PER_REPLACEMENT, Rows, rows_from
from anabranch.values import Offset, is_lane_gap

SMALL_ROWS_MAX = 512
ROWS_PER_MERGE = 16_384
START = Offset(0)


class Merge(NamedTuple):
    """Rows to be replaced: of each partition some that follow each other."""

    rows: Mapping[Key, Sequence[Row]]


@dataclass(slots=True)
class _Tail:
    """What is known of the end of one partition."""

    start: Offset = START
    """Everything before it is large, or compacted."""
    gathered: Offset = START
    """Where the rows begin that are as they were gathered."""
    seen: Offset = START
    merged_bytes: int = 0
    merged_count: int = 0
    gathered_bytes: int = 0
    gathered_count: int = 0


class MergeWatch:
    """Remembers where partitions need merging, so that a look costs what has come since the last one. It may be thrown
    away at any time: a new one finds out the same."""

    def __init__(self, objects: Rows, merge_bytes: int) -> None:
        self._objects = objects
        self._merge_bytes = merge_bytes
        self._large_bytes = merge_bytes // 2
        self._tails: dict[Key, _Tail] = {}

    def look(self, key: Key) -> None:
        """Take note of a partition's new rows."""
        head = self._objects.head(key)
        tail = self._tails.get(key)
        if tail is None or head.end < tail.seen:
            tail = self._tails[key] = _begun_at(head.start)
        if head.end == tail.seen:
            return
        for row in rows_from(self._objects, key, tail.seen, ROWS_PER_LOOK):
            if row.base_offset < tail.seen and tail.seen > head.start:
                del self._tails[key]  # Somebody has merged across what was seen: begin anew at the next look.
                return
            self._note(tail, row)

    def look_again(self, key: Key) -> None:
        """The same after its rows were changed behind what was large already."""
        tail = self._tails.get(key)
        if tail is not None:
            self._tails[key] = _begun_at(max(tail.start, self._objects.head(key).start))
        self.look(key)

    def _are_gathered_still(self, key: Key, tail: _Tail) -> bool:
        """Whether nobody has merged or dropped what was seen: that begins with the oldest."""
        rows = self._objects.rows(key, tail.gathered, 1)
        return bool(rows) and rows[0].base_offset == tail.gathered and _is_gathered(rows[0])

    def _note(self, tail: _Tail, row: Row) -> None:
        if not tail.gathered_count and is_lane_gap(tail.seen, row.base_offset):
            tail.start = row.base_offset
            tail.merged_bytes = tail.merged_count = 0
        tail.seen = row.next_offset
        if _is_gathered(row):
            if not tail.gathered_count:
                tail.gathered = row.base_offset
            tail.gathered_bytes += row.length
            tail.gathered_count += 1
        elif row.is_compacted or row.length >= self._large_bytes or tail.gathered_count:
            # Merged behind what was not: somebody else's work is half done, and what lies before it stays small.
            tail.start = tail.gathered = row.next_offset
            tail.merged_bytes = tail.merged_count = tail.gathered_bytes = tail.gathered_count = 0
        else:
            tail.merged_bytes += row.length
            tail.merged_count += 1

    def keep_only(self, keys: Iterable[Key]) -> None:
        kept = set(keys)
        self._tails = {key: tail for key, tail in self._tails.items() if key in kept}

    @property
    def gathered_bytes(self) -> int:
        """What was not merged at all, as far as it was seen."""
        return sum(tail.gathered_bytes for tail in self._tails.values())

    def next_merge(self, left_alone: frozenset[Key] = frozenset()) -> Merge | None:
        """What to merge now. `left_alone`: partitions that cannot be merged."""
        tails = {key: self._tails[key] for key in sorted(self._tails) if key not in left_alone}
        return self._again(tails) or self._first(tails)

    def _again(self, tails: Mapping[Key, _Tail]) -> Merge | None:
        """One partition whose rows were merged and are small still."""
        for key, tail in tails.items():
            if tail.merged_count < 2:
                continue
            if tail.merged_bytes >= self._merge_bytes or tail.merged_count > SMALL_ROWS_MAX:
                rows = self._merged_rows(key, tail)
                if len(rows) > 1:
                    return Merge({key: rows})
                self.look_again(key)
        return None

    def _merged_rows(self, key: Key, tail: _Tail) -> list[Row]:
        found: list[Row] = []
        size = 0
        for row in rows_from(self._objects, key, tail.start, ROWS_PER_REPLACEMENT):
            if _is_gathered(row) or row.is_compacted or size >= self._merge_bytes:
                break
            if found and is_lane_gap(found[-1].next_offset, row.base_offset):
                break
            found.append(row)
            size += row.length
        return found

    def _first(self, tails: Mapping[Key, _Tail]) -> Merge | None:
        """What was gathered, of all partitions together."""
        waiting = {key: tail for key, tail in tails.items() if tail.gathered_count}
        if not self._is_due(waiting):
            return None
        changed = [key for key, tail in waiting.items() if not self._are_gathered_still(key, tail)]
        if changed:
            for key in changed:
                self.look_again(key)
            again = {
                key: self._tails.get(key) for key in waiting
            }  # Some may have to be looked at from the start.
            waiting = {key: tail for key, tail in again.items() if tail is not None and tail.gathered_count}
            if not self._is_due(waiting):
                return None
        count_max = min(ROWS_PER_REPLACEMENT, max(1, ROWS_PER_MERGE // len(waiting)))
        rows = {key: self._gathered_rows(key, tail, count_max) for key, tail in waiting.items()}
        chosen = whole_objects({key: found for key, found in rows.items() if found}, self._merge_bytes)
        return Merge(chosen) if chosen else None

    def _is_due(self, waiting: Mapping[Key, _Tail]) -> bool:
        tails = waiting.values()
        return sum(tail.gathered_bytes for tail in tails) >= self._merge_bytes or any(
            tail.gathered_count > SMALL_ROWS_MAX for tail in tails
        )

    def _gathered_rows(self, key: Key, tail: _Tail, count_max: int) -> list[Row]:
        found = []
        for row in rows_from(self._objects, key, tail.gathered, count_max):
            if not _is_gathered(row):
                break
            found.append(row)
        return found


def _is_gathered(row: Row) -> bool:
    return row.object_id.kind is ObjectKind.WRITTEN


def _begun_at(start: Offset) -> _Tail:
    return _Tail(start, start, start)


def whole_objects(rows: Mapping[Key, Sequence[Row]], bytes_max: int) -> dict[Key, Sequence[Row]]:
    """The first rows of each partition, such that they use up few objects instead of nibbling at many: at least
    `bytes_max` of them, if there are as many, and at most one object more."""
    sizes = Counter[ObjectId]()
    for each in rows.values():
        for row in each:
            sizes[row.object_id] += row.length
    taken: set[ObjectId] = set()
    size = 0
    reached = dict.fromkeys(rows, 0)
    turns = deque(rows)
    while turns and size < bytes_max:
        key = turns.popleft()
        reached[key] = _beyond(rows[key], reached[key], taken)
        if reached[key] < len(rows[key]):
            object_id = rows[key][reached[key]].object_id
            taken.add(object_id)
            size += sizes[object_id]
            turns.append(key)
    chosen = {key: each[: _beyond(each, reached[key], taken)] for key, each in rows.items()}
    return {key: each for key, each in chosen.items() if each}


def _beyond(rows: Sequence[Row], place: int, taken: set[ObjectId]) -> int:
    while place < len(rows) and rows[place].object_id in taken:
        place += 1
    return place


def all_merges(rows: Mapping[Key, Sequence[Row]], merge_bytes: int) -> list[Merge]:
    """Everything that can be merged at once, for a job that does it side by side: no row is in two of them. `rows`: all
    that each partition has."""
    merges = []
    gathered: dict[Key, Sequence[Row]] = {}
    for key, every in sorted(rows.items()):
        merges += [Merge({key: group}) for group in _small_groups(every, merge_bytes)]
        if run := _first_run(every, _is_gathered):
            gathered[key] = run
    while gathered:
        some = {key: run[:ROWS_PER_REPLACEMENT] for key, run in gathered.items()}
        chosen = whole_objects(some, merge_bytes)
        merges.append(Merge(chosen))
        left = {key: run[len(chosen.get(key, ())) :] for key, run in gathered.items()}
        gathered = {key: run for key, run in left.items() if run}
    return merges


def _small_groups(rows: Sequence[Row], merge_bytes: int) -> Iterator[Sequence[Row]]:
    """Rows that were merged, are small still, and make a large one together."""
    group: list[Row] = []
    size = 0
    for row in rows:
        if _is_gathered(row) or row.is_compacted or row.length >= merge_bytes // 2:
            group, size = [], 0
            continue
        if group and is_lane_gap(group[-1].next_offset, row.base_offset):
            group, size = [], 0
        group.append(row)
        size += row.length
        if size >= merge_bytes or len(group) == ROWS_PER_REPLACEMENT:
            yield group
            group, size = [], 0


def _first_run(rows: Sequence[Row], is_wanted: Callable[[Row], bool]) -> Sequence[Row]:
    return list(takewhile(is_wanted, dropwhile(lambda row: not is_wanted(row), rows)))


def packed(
    sizes: Mapping[Key, int], large_bytes: int, kinds: Mapping[Key, Hashable] | None = None
) -> list[list[Key]]:
    """Which partitions share an object: large ones have their own; of the others, those of one kind are together, which
    keep their records for the same time: an object stays as long as any part of it does."""
    large = [[key] for key, size in sizes.items() if size >= large_bytes]
    shared: dict[Hashable, list[Key]] = {}
    for key, size in sizes.items():
        if size < large_bytes:
            shared.setdefault(kinds.get(key) if kinds is not None else None, []).append(key)
    return [*large, *shared.values()]
