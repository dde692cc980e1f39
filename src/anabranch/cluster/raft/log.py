"""The log as the core sees it: what lies behind the snapshot, in memory, and how much of that is on the disk.

The members in force are those of the last entry of that kind, committed or not: a change counts as soon as it is
written.
"""

from collections.abc import Sequence

from anabranch.cluster.raft.messages import Entry, EntryKind, Members, Snapshot


class QuorumLog:
    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry] = ()) -> None:
        """As read from the disk: all of it is stable."""
        self.snapshot = snapshot
        self._entries = list(entries)
        self.stable_end = self.end
        self.unwritten_start: int | None = None
        """Entries from here on have not been handed out to be written."""
        self._find_members()

    @property
    def start(self) -> int:
        return self.snapshot.end

    @property
    def end(self) -> int:
        return self.snapshot.end + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot.term

    def term_before(self, end: int) -> int | None:
        """Of the entry at `end` - 1; None if it is not known here."""
        if end == self.start:
            return self.snapshot.term
        place = end - self.start - 1
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def holds(self, end: int, term_before: int) -> bool:
        """Whether everything below `end` equals a log in which the entry before it is of that term."""
        return self.term_before(end) == term_before

    def slice(self, start: int, count_max: int) -> list[Entry]:
        assert start >= self.start
        return self._entries[start - self.start : start - self.start + count_max]

    def portion(self, start: int, count_max: int, bytes_max: int) -> list[Entry]:
        """As many as fit into one message, and at least one if there is any."""
        entries = self.slice(start, count_max)
        size = 0
        for number, entry in enumerate(entries):
            size += entry.size
            if size > bytes_max and number:
                return entries[:number]
        return entries

    def append(self, entries: Sequence[Entry]) -> None:
        self._mark(self.end)
        self._entries.extend(entries)
        if any(entry.kind is EntryKind.MEMBERS for entry in entries):
            self._find_members()

    def take(self, start: int, entries: Sequence[Entry]) -> None:
        """Entries of the leader, which follow what is equal. What disagrees is cut off; what agrees stays, for a late
        message must not cut what a later one brought."""
        for number, entry in enumerate(entries):
            if self.term_before(start + number + 1) != entry.term:
                self._cut(start + number)
                self.append(entries[number:])
                return

    def _cut(self, end: int) -> None:
        if end < self.end:
            del self._entries[end - self.start :]
            self.stable_end = min(self.stable_end, end)
            self._mark(end)
            self._find_members()

    def last_equal(self, end: int, floor: int) -> int:
        """Where a leader should try next whose entry before `end` is not ours: before the whole run of our term."""
        here = min(end - 1, self.end)
        term = self.term_before(end)
        while term is not None and here > floor and self.term_before(here) == term:
            here -= 1
        return here

    def drop(self, snapshot: Snapshot) -> None:
        """Forget the entries that the snapshot stands for."""
        assert self.start <= snapshot.end <= self.end
        del self._entries[: snapshot.end - self.start]
        self.snapshot = snapshot
        self._find_members()

    def replace(self, snapshot: Snapshot) -> None:
        """The leader's snapshot instead of everything that was here."""
        self.snapshot = snapshot
        self._entries = []
        self.stable_end = snapshot.end
        self.unwritten_start = None
        self._find_members()

    def unwritten(self) -> tuple[int, list[Entry]] | None:
        """What is to be written, and from where; once. It replaces what the disk has there."""
        start, self.unwritten_start = self.unwritten_start, None
        return None if start is None else (start, self._entries[start - self.start :])

    def written(self, end: int, last_term: int) -> bool:
        """The disk has everything up to there, unless it was cut meanwhile. Whether that is news."""
        if end <= self.stable_end or not self.holds(end, last_term):
            return False
        self.stable_end = end
        return True

    def take_back(self, start: int) -> None:
        """Entries that the disk has refused, and that nobody else has been told of."""
        assert start >= self.stable_end
        self._cut(start)
        self.unwritten_start = None

    def _mark(self, start: int) -> None:
        self.unwritten_start = start if self.unwritten_start is None else min(self.unwritten_start, start)

    def _find_members(self) -> None:
        self.members, self.members_end = self.snapshot.members, self.start
        """`members_end`: the entry that says so lies before it."""
        for place in range(len(self._entries) - 1, -1, -1):
            members = self._entries[place].members
            if members is not None:
                self.members, self.members_end = members, self.start + place + 1
                return

    def members_at(self, end: int) -> Members:
        """Those in force below `end`: what a snapshot of that end has to say."""
        found = self.snapshot.members
        for entry in self._entries[: end - self.start]:
            found = entry.members or found
        return found
