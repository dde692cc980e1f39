"""Brokers that split, join and wander over lanes, as models/lanes.py has them, but with the rows and the joining of
`anabranch.modes`. Every record is on its own here: what a merge says about spans is done, and compared, offset by
offset. A record is known by the offset that it was first given.

`LaneWorld(seed).run()` raises Broken when a promise is broken. Small methods stand for the rules, so that a test can
break one of them.
"""

from random import Random
from uuid import UUID

from anabranch.modes.branch import lines as branch_lines
from anabranch.modes.branch.lines import Branches, Line, Merge
from anabranch.modes.branch.rows import (
    NO_LANE,
    NOWHERE,
    BranchRow,
    Lane,
    RowKind,
    Source,
    Tip,
    first_offset,
    lane_of,
    next_lane,
    opened,
    sealed,
    started,
)
from anabranch.values import Offset

KEY = (UUID(int=1), 0)
CONSUMERS = 6
READ_MAX = 12
STEPS = 160
CALM_ROUNDS = 4


class Broken(Exception):
    """A promise was not kept."""


class Keeper:
    """One broker: its rows, its line, and whether it writes."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.rows: dict[BranchRow, None] = {}
        self.tip = NOWHERE
        self.is_up = True
        self.reigns = False
        self.must_join = True
        self.view: frozenset[int] | None = None

    @property
    def branches(self) -> Branches:
        return Branches(self.rows)

    def hear(self, rows: dict[BranchRow, None]) -> None:
        self.rows.update(rows)


class Reader:
    """Reads on where it was, at whomever, and never goes back."""

    def __init__(self, place: int, *, is_loyal: bool) -> None:
        self.place = place
        self.is_loyal = is_loyal
        self.position = 0
        self.seen: set[int] = set()


class LaneWorld:
    def __init__(self, seed: int, *, removes: bool = True) -> None:
        self.rng = rng = Random(seed)
        self.keepers = [Keeper(slot) for slot in range(rng.choice((2, 3, 3, 4, 5, 6)))]
        self.sides = dict.fromkeys(range(len(self.keepers)), 0)
        self.records: dict[int, int] = {}
        """By offset, for ever: where each was written first."""
        self.acknowledged: set[int] = set()
        self.removed: set[int] = set()
        """Offsets that somebody removed."""
        self.left_out: set[int] = set()
        """Offsets that a merge gave to what had been removed before."""
        self.readers = [
            Reader(rng.randrange(len(self.keepers)), is_loyal=rng.random() < 0.5) for _ in range(CONSUMERS)
        ]
        self.removes = removes
        self.merges = self.again_total = self.kept_total = 0

    # --- rules, which mutants break -----------------------------------------------------------------------------

    def plan(self, branches: Branches, one: Tip, other: Tip) -> Merge:
        return branch_lines.merge(branches, one, other)

    def may_adopt(self, branches: Branches, tip: Tip, mine: Tip) -> bool:
        return branches.is_behind(tip, mine)

    def lane_for(self, keeper: Keeper, branches: Branches, tips: list[Tip]) -> Lane:
        return next_lane(keeper.slot, Lane(max(branches.highest, *(tip.lane for tip in tips), NO_LANE)))

    def forget(self, keeper: Keeper) -> None:
        """What a crash takes: everything was synced before it was used."""

    # --- a run ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.look_around()
        self.elect()
        for _ in range(STEPS):
            self.step()
        self.calm()
        self.check()

    def step(self) -> None:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.55:
            self.produce()
        elif chance < 0.63:
            self.split()
        elif chance < 0.68:
            self.crash_or_start(rng.choice(self.keepers))
        elif chance < 0.70 and self.removes:
            self.remove(rng.choice(self.keepers))
        elif chance < 0.73:
            self.copy(rng.randrange(len(self.keepers)))
        else:
            self.read(rng.choice(self.readers))
        if rng.random() < 0.5:
            self.look_around()
        if rng.random() < 0.6:
            self.elect()

    def split(self) -> None:
        is_whole = self.rng.random() < 0.35
        self.sides = {slot: 0 if is_whole else self.rng.choice((0, 0, 1, 2)) for slot in self.sides}

    def crash_or_start(self, keeper: Keeper) -> None:
        keeper.is_up = not keeper.is_up
        keeper.reigns, keeper.view, keeper.must_join = False, None, True
        if not keeper.is_up:
            self.forget(keeper)

    def reaches(self, one: int, other: int) -> bool:
        return self.keepers[one].is_up and self.keepers[other].is_up and self.sides[one] == self.sides[other]

    def look_around(self) -> None:
        for slot, keeper in enumerate(self.keepers):
            if not keeper.is_up:
                continue
            view = frozenset(other for other in self.sides if other == slot or self.reaches(slot, other))
            for other in view:
                keeper.hear(self.keepers[other].rows)
            if view != keeper.view:
                keeper.view, keeper.must_join = view, True

    @staticmethod
    def primary_of(view: frozenset[int]) -> int:
        return min(view, key=lambda slot: (slot * 2654435761 + 7) % 1000003)

    def elect(self) -> None:
        for slot, keeper in enumerate(self.keepers):
            is_first = keeper.is_up and keeper.view is not None and self.primary_of(keeper.view) == slot
            if is_first and (keeper.must_join or not keeper.reigns):
                self.become_primary(slot)
                self.copy(slot)

    # --- writing --------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        asked = self.keepers[self.rng.randrange(len(self.keepers))]
        if not asked.is_up or asked.view is None:
            return
        first = self.primary_of(asked.view)
        keeper = self.keepers[first]
        if (first == asked.slot or self.reaches(asked.slot, first)) and keeper.reigns:
            for _ in range(self.rng.randint(1, 3)):
                offset = keeper.tip.end
                self.write(offset, offset)
                self.acknowledged.add(offset)
                keeper.tip = Tip(keeper.tip.lane, Offset(offset + 1))
            if self.rng.random() < 0.7:
                self.copy(first)

    def write(self, offset: int, record: int) -> None:
        if self.records.setdefault(offset, record) != record:
            raise Broken(f"offset {offset} names {self.records[offset]} and {record}")

    def remove(self, keeper: Keeper) -> None:
        """As retention and DeleteRecords do: below some offset of the line of whoever reigns."""
        offsets = offsets_of(keeper.branches.line(keeper.tip))
        if not keeper.reigns or not offsets:
            return
        place = self.rng.randrange(min(len(offsets), 6))
        keeper.hear({started(KEY, keeper.tip.lane, Offset(offsets[place])): None})
        self.removed.update(offsets[:place])

    def become_primary(self, slot: int) -> None:
        keeper = self.keepers[slot]
        assert keeper.view is not None
        others = [
            self.keepers[other]
            for other in sorted(keeper.view)
            if other != slot and self.reaches(slot, other)
        ]
        for other in others:
            self.seal(other)
            keeper.hear(other.rows)
        lanes_before = keeper.tip.lane
        for other in others:
            self.take_in(keeper, other.tip)
        if keeper.tip.lane == lanes_before or keeper.tip.lane % 1024 != slot:
            self.open(keeper, keeper.tip, (), ())
        keeper.reigns, keeper.must_join = True, False

    def seal(self, keeper: Keeper) -> None:
        if keeper.reigns:
            keeper.reigns = False
            keeper.hear({sealed(KEY, keeper.tip): None})

    def take_in(self, keeper: Keeper, tip: Tip) -> None:
        branches = keeper.branches
        if branches.is_behind(keeper.tip, tip):
            self.check_contained(keeper, tip)
            return
        if branches.is_behind(tip, keeper.tip):
            self.adopt(keeper, tip)
            return
        plan = self.plan(branches, keeper.tip, tip)
        self.compare(branches, keeper.tip, tip, plan)
        sources: list[Source] = []
        lane = self.lane_for(keeper, branches, [keeper.tip, tip])
        position = first_offset(lane)
        for span in plan.again:
            sources.append(Source(span.lane, span.start, span.end, position))
            position = sources[-1].new_end
        self.merges += 1
        self.open(keeper, plan.parent, tuple(sources), (keeper.tip, tip))

    def open(self, keeper: Keeper, parent: Tip, sources: tuple[Source, ...], inputs: tuple[Tip, ...]) -> None:
        lane = self.lane_for(keeper, keeper.branches, [keeper.tip, *inputs])
        row = opened(KEY, parent, lane, sources=sources, inputs=inputs)
        removed = removed_offsets(keeper.branches, tuple(as_span(each) for each in sources))
        for source in sources:
            for offset in range(source.start, source.end):
                place = offset - source.start + source.new_start
                if offset in self.records:
                    self.write(place, self.records[offset])
                    self.again_total += 1
                if offset in removed or offset in self.left_out:
                    self.left_out.add(place)
        keeper.hear({row: None})
        keeper.tip = Tip(lane, row.sources_end)

    def copy(self, slot: int) -> None:
        """Those in view take the line of whoever reigns, or a part of it."""
        keeper = self.keepers[slot]
        if not keeper.is_up or not keeper.reigns or keeper.view is None:
            return
        for other in sorted(keeper.view):
            copied = self.keepers[other]
            if other == slot or not self.reaches(slot, other) or copied.reigns or self.rng.random() < 0.3:
                continue
            copied.hear(keeper.rows)
            branches = copied.branches
            if not self.may_adopt(branches, keeper.tip, copied.tip):
                keeper.must_join = True
                continue
            self.adopt(copied, Tip(keeper.tip.lane, self.copied_end(copied, keeper.tip)))

    def copied_end(self, copied: Keeper, tip: Tip) -> Offset:
        """How far a copy has come: what it had is in it."""
        row = copied.branches.opened[tip.lane]
        line = copied.branches.line(copied.tip)
        is_prefix = branch_lines.common_part(line, copied.branches.line(tip)) == line
        least = row.new_start if is_prefix else row.sources_end
        if copied.tip.lane == tip.lane:
            least = max(least, copied.tip.end)
        elif self.rng.random() < 0.7:
            least = max(least, Offset(tip.end - 4))
        return Offset(self.rng.randint(least, tip.end))

    def check_contained(self, keeper: Keeper, tip: Tip) -> None:
        there = {self.records.get(offset) for offset in offsets_of(keeper.branches.line(tip))}
        if missing := there - self.contained(keeper) - {None}:
            raise Broken(f"{tip} is behind {keeper.tip}, which has not {missing}")

    def adopt(self, keeper: Keeper, tip: Tip) -> None:
        before = self.contained(keeper)
        keeper.tip = tip
        if gone := before - self.contained(keeper):
            raise Broken(f"{keeper.slot} had {sorted(gone)} before it took over {tip}")

    def contained(self, keeper: Keeper) -> set[int]:
        """All records of its line, removed or not."""
        line = keeper.branches.line(keeper.tip)
        return {self.records[offset] for offset in offsets_of(line) if offset in self.records}

    # --- reading --------------------------------------------------------------------------------------------------

    def visible(self, keeper: Keeper) -> list[int]:
        branches = keeper.branches
        line = branches.line(keeper.tip)
        hidden = self.left_out | removed_offsets(branches, line)
        return [offset for offset in offsets_of(line) if offset in self.records and offset not in hidden]

    def read(self, reader: Reader, count: int = READ_MAX) -> None:
        if not reader.is_loyal or self.rng.random() < 0.02 or not self.keepers[reader.place].is_up:
            reader.place = self.rng.randrange(len(self.keepers))
        keeper = self.keepers[reader.place]
        if keeper.is_up:
            found = [offset for offset in self.visible(keeper) if offset >= reader.position][:count]
            reader.seen.update(self.records[offset] for offset in found)
            reader.position = found[-1] + 1 if found else reader.position

    # --- a reference, record by record ------------------------------------------------------------------------------

    def compare(self, branches: Branches, one: Tip, other: Tip, plan: Merge) -> None:
        """What the merge of spans should say, from single offsets and what is written at each."""
        winner, loser = max(one, other), min(one, other)
        won, lost = branches.line(winner), branches.line(loser)
        common = sorted(set(offsets_of(won)) & set(offsets_of(lost)))
        won_tail = [offset for offset in offsets_of(won) if offset not in set(common)]
        lost_tail = [offset for offset in offsets_of(lost) if offset not in set(common)]
        keeps = bool(won_tail) and won_tail[0] >= first_offset(Lane(loser.lane + 1))
        again = self.again(common + won_tail, lost_tail)
        if keeps and self.is_out_of_order(won_tail, again):
            keeps = False
        if not keeps:
            again = self.again(common, sorted(won_tail + lost_tail))
        said = [offset for span in plan.again for offset in range(span.start, span.end)]
        # Offsets without a record need not come again, and may.
        if [offset for offset in said if offset in self.records] != again:
            raise Broken(f"{one} and {other}: {said} come again, and should be {again}")
        expected = common + won_tail if keeps else common
        if offsets_of(branches.line(plan.parent)) != expected:
            raise Broken(f"{one} and {other} keep {plan.parent}, and should keep {expected}")
        self.kept_total += keeps

    def again(self, there: list[int], rest: list[int]) -> list[int]:
        known = {self.records[offset] for offset in there if offset in self.records}
        found: list[int] = []
        for offset in rest:
            if offset in self.records and self.records[offset] not in known:
                known.add(self.records[offset])
                found.append(offset)
        return found

    def is_out_of_order(self, kept: list[int], again: list[int]) -> bool:
        least: dict[Lane, int] = {}
        for offset in again:
            record = self.records[offset]
            least[lane_of(record)] = min(least.get(lane_of(record), record), record)
        staying = [self.records[offset] for offset in kept if offset in self.records]
        return any(record > least.get(lane_of(record), record) for record in staying)

    # --- calm -------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        self.sides = dict.fromkeys(self.sides, 0)
        for keeper in self.keepers:
            if not keeper.is_up:
                self.crash_or_start(keeper)
        for _ in range(CALM_ROUNDS):
            self.look_around()
            self.elect()
        first = self.keepers[self.primary_of(frozenset(self.sides))]
        for keeper in self.keepers:
            keeper.hear(first.rows)
            if not self.may_adopt(keeper.branches, first.tip, keeper.tip):
                raise Broken(f"{keeper.tip} may not become {first.tip}")
            self.adopt(keeper, first.tip)

    def check(self) -> None:
        if len({frozenset(keeper.rows) for keeper in self.keepers}) != 1:
            raise Broken("not everybody has the same rows")
        shown = self.visible(self.keepers[0])
        records = [self.records[offset] for offset in shown]
        if len(set(records)) != len(records):
            raise Broken("a record is there twice")
        gone = {self.records[offset] for offset in self.removed | self.left_out}
        if lost := self.acknowledged - set(records) - gone:
            raise Broken(f"acknowledged and lost: {sorted(lost)}")
        last: dict[Lane, int] = {}
        for record in records:
            if record < last.get(lane_of(record), record):
                raise Broken(f"{record} follows {last[lane_of(record)]}")
            last[lane_of(record)] = record
        for reader in self.readers:
            while self.visible(self.keepers[0])[-1:] and self._has_more(reader, shown):
                reader.is_loyal = True
                self.read(reader)
            if missed := self.acknowledged - reader.seen - gone:
                raise Broken(f"a consumer has missed {sorted(missed)}")
        self._check_removed()
        self._check_unmerged()

    @staticmethod
    def _has_more(reader: Reader, shown: list[int]) -> bool:
        return bool(shown) and shown[-1] >= reader.position

    def _check_removed(self) -> None:
        branches = self.keepers[0].branches
        line = branches.line(self.keepers[0].tip)
        if removed_offsets(branches, line) != self.removed & set(offsets_of(line)):
            raise Broken("something else was removed than somebody asked for")

    def _check_unmerged(self) -> None:
        branches = self.keepers[0].branches
        tip = self.keepers[0].tip
        ends = [Tip(row.new, row.old_end) for row in self.keepers[0].rows if row.kind is RowKind.SEALED]
        opened = [Tip(lane, row.sources_end) for lane, row in branches.opened.items()]
        for each in (*ends, *opened):
            if not branches.is_behind(tip, each):
                raise Broken(f"{each} was never taken in")


def as_span(source: Source) -> branch_lines.Span:
    return branch_lines.Span(source.lane, source.start, source.end)


def offsets_of(line: Line) -> list[int]:
    return [offset for span in line for offset in range(span.start, span.end)]


def removed_offsets(branches: Branches, line: Line) -> set[int]:
    below = branches.removed_below(line)
    return {offset for offset in offsets_of(line) if offset < below.get(lane_of(offset), 0)}
