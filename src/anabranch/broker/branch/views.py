"""BranchViews: each branch of a topic as a topic of its own, `orders@5`, which any Kafka client can read.

It has the line of that branch, from its beginning, whatever became of it: what a side of a split wrote stays readable
beside the line that was made of both. A view is in no list of topics and is found by its name, or by an id that follows
from the topic's and the branch's. Nothing is written to it. Each partition has branches of its own: where one has no
branch of that number, the view is empty.

Views are made when somebody asks, and a few are remembered. All methods are for the loop's thread.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast
from uuid import UUID, uuid5

from anabranch.broker.branch.line_view import NO_GENERATION, BranchLog
from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.served_records import records_behind
from anabranch.broker.read.fetch_wait import WaitingFetch
from anabranch.broker.topics.archived_prefix import NOTHING_ARCHIVED, ArchivedPrefix
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.topics import TopicState
from anabranch.broker.write.append_queue import AppendJob
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.errors import AnabranchError, ReadOnlyBranchError
from anabranch.modes.branch.history import lane_ends
from anabranch.modes.branch.lines import Line, UnknownBranchError
from anabranch.modes.branch.rows import FIRST_LANE, NO_LANE, BranchRow, Lane, slot_of
from anabranch.values import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.read.reading import Reading
    from anabranch.broker.topics.topics import TopicKey
    from anabranch.log.log import Log

SIGN = "@"
VIEWS_MAX = 256
LANE_DIGITS_MAX = 10


class ViewLog(BranchLog):
    """The line of a branch, which other brokers may hold more of."""

    ends_at = Offset(0)
    """How far it reaches by the rows; beyond what is here, readers get what others hold."""

    @property
    def end_offset(self) -> Offset:
        return max(super().end_offset, self.ends_at)


class BranchView(Partition):
    """One partition of a view. Its log reads the lanes of the partition it is a branch of."""

    __slots__ = ("base", "lane")

    residence = BRANCHED

    def __init__(
        self,
        base: BranchPartition,
        name: str,
        topic_id: UUID,
        lane: Lane,
        on_publish: Callable[[Partition], None],
    ) -> None:
        self.base = base
        self.lane = lane if base.branches.has(lane) else NO_LANE
        place = TopicPartition(name, base.id.partition)
        log = ViewLog(str(place), base.lanes, base.branches, skips_lost=base.is_alone)
        log.elsewhere = base.view.elsewhere
        try:
            log.show(self.lane)
        except UnknownBranchError:
            self.lane = NO_LANE  # A row before it has not come yet.
        super().__init__(
            place,
            topic_id,
            cast("Log", log),
            base.mode,
            base.settings,
            request_sync=_never,
            on_publish=on_publish,
            finish=_never,
            finished=_never,
        )
        self.generation = NO_GENERATION
        self.has_gaps = True
        self.plain_limits = None
        self.refresh()

    @property
    def view(self) -> ViewLog:
        return cast(ViewLog, self.log)

    def refresh(self) -> None:
        """Rows have come: the branch may be sealed, and some of it removed."""
        if self.lane == NO_LANE:
            return
        if not self.base.is_alone:
            self.view.ends_at = lane_ends(self.base.branches, {})[self.lane]
        self.view.refresh()

    @property
    def line(self) -> Line:
        return self.view.line

    @property
    def high_watermark(self) -> Offset:
        """Of a branch that nobody here writes or follows, all that is held: a lane is never cut back."""
        if self.lane == self.base.view.lane:
            return self.base.high_watermark
        return self.log.end_offset

    @high_watermark.setter
    def high_watermark(self, end: Offset) -> None:
        """It follows from others."""

    @property
    def archived(self) -> ArchivedPrefix:
        """What lies in the object store is below every branch."""
        return self.base.archived if self.lane != NO_LANE else NOTHING_ARCHIVED

    @archived.setter
    def archived(self, archived: ArchivedPrefix) -> None:
        """It follows from others."""

    @property
    def readable_end(self) -> Offset:
        return self._below_floor(self.view.readable_end(self.high_watermark))

    def records_from(self, offset: int) -> int:
        return records_behind(self.base.gaps, self, offset)

    def may_come(self, offset: Offset, reading: "Reading") -> bool:
        return self.base.may_come(offset, reading)

    def check_generation(self, generation: int) -> None:
        """As of the partition it is a branch of."""

    @property
    def is_gone(self) -> bool:
        return self._gone_because is not None or self.base.is_gone

    @property
    def is_held(self) -> bool:
        return self.lane == NO_LANE or self.lane in self.base.lanes

    def _renew_limits(self) -> None:
        """Nothing is written here."""

    def _refusal(self) -> AnabranchError | None:
        return read_only(self.id.topic)

    def write(self, jobs: list[AppendJob], now_ms: int) -> None:
        raise AssertionError(f"{self.id} is only for reading")

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def is_settled(self) -> bool:
        return True

    def check_leader(self) -> None:
        """Every broker serves it, with what others hold if need be."""


class _Relay(WaitingFetch):
    """Stands among those who wait at a partition, for all who wait at a view of it."""

    __slots__ = ("_view", "_wake")

    def __init__(self, wake: Callable[[Iterable[Partition]], None], view: BranchView) -> None:
        self._wake = wake
        self._view = view

    def woken(self, partitions: Sequence[Partition]) -> None:
        self._wake([self._view])


class BranchViews:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._states: OrderedDict[tuple[UUID, Lane], tuple[TopicState, list[_Relay]]] = OrderedDict()
        self._ids: dict[UUID, tuple[UUID, Lane]] = {}
        self._ids_at = (-1, -1)

    def find(self, key: "TopicKey") -> TopicState | None:
        """A branch of a topic that is there, known to some partition of it; None: there is no such view."""
        meant = self._named(key) if isinstance(key, str) else self._numbered(key)
        if meant is None:
            return None
        base, lane = meant
        if not any(each.branches.has(lane) for each in _bases(base)):
            return None
        return self._remembered(base, lane) or self._made(base, lane)

    def _named(self, name: str) -> tuple[TopicState, Lane] | None:
        topic, _, number = name.rpartition(SIGN)
        if not (number.isascii() and number.isdecimal() and len(number) <= LANE_DIGITS_MAX):
            return None
        base = self._broker.topics.find(topic)
        is_plain = number == str(int(number))
        return (base, Lane(int(number))) if base is not None and base.topic.is_branch and is_plain else None

    def _numbered(self, topic_id: UUID) -> tuple[TopicState, Lane] | None:
        """The ids of all views there could be are known: one may be asked here that another broker has told."""
        topics, branches = self._broker.topics, self._broker.branches
        at = (len(branches.tube) if branches is not None else 0, len(topics))
        if at != self._ids_at:
            self._ids_at = at
            self._ids = {
                view_id(base.topic.topic_id, lane): (base.topic.topic_id, lane)
                for base in topics
                if base.topic.is_branch
                for each in _bases(base)
                for lane in each.branches.opened
                if each.branches.has(lane)
            }
        found = self._ids.get(topic_id)
        base = topics.find(found[0]) if found is not None else None
        return (base, found[1]) if base is not None and found is not None else None

    def _remembered(self, base: TopicState, lane: Lane) -> TopicState | None:
        known = self._states.get((base.topic.topic_id, lane))
        if known is None:
            return None
        bases = [cast(BranchView, each).base if each is not None else None for each in known[0].partitions]
        lanes = [cast(BranchView, each).lane for each in known[0].partitions if each is not None]
        now = [lane if each.branches.has(lane) else NO_LANE for each in _bases(base)]
        if bases != base.partitions or lanes != now:
            self._forget((base.topic.topic_id, lane))
            return None
        self._states.move_to_end((base.topic.topic_id, lane))
        return known[0]

    def _made(self, base: TopicState, lane: Lane) -> TopicState:
        name, topic_id = f"{base.topic.name}{SIGN}{lane}", view_id(base.topic.topic_id, lane)
        views = [
            BranchView(each, name, topic_id, lane, self._broker.core.wake_readers)
            if isinstance(each, BranchPartition)
            else None
            for each in base.partitions
        ]
        relays = []
        for view in views:
            if view is not None:
                relays.append(_Relay(self._broker.core.fetch_waits.wake, view))
                view.base.waiting_fetches[relays[-1]] = 0
        state = TopicState(replace(base.topic, name=name, topic_id=topic_id), base.settings, list(views))
        self._make_room()
        self._states[base.topic.topic_id, lane] = state, relays
        return state

    def _make_room(self) -> None:
        """What is gone or has not been asked for lately goes, unless somebody waits for it."""
        unused = [
            key
            for key, (state, _) in self._states.items()
            if not any(each is not None and each.waiting_fetches for each in state.partitions)
        ]
        gone = [key for key in unused if self._broker.topics.find(key[0]) is None]
        for key in gone or unused[: max(0, len(self._states) + 1 - VIEWS_MAX)]:
            self._forget(key)

    def _forget(self, key: tuple[UUID, Lane]) -> None:
        """Whoever reads it now looks it up again."""
        state, relays = self._states.pop(key)
        for view in state.partitions:
            if isinstance(view, BranchView):
                for relay in relays:
                    view.base.waiting_fetches.pop(relay, None)
                view.abandon(read_only(state.topic.name))

    def heard(self, rows: Iterable[BranchRow]) -> None:
        """What was removed may be removed of a view too."""
        keys = {row.key for row in rows}
        for state, _ in self._states.values():
            for view in state.partitions:
                if isinstance(view, BranchView) and view.base.key in keys:
                    view.refresh()

    # --- whom clients are sent to --------------------------------------------------------------------------------

    def server_of(self, view: BranchView) -> BrokerId:
        """This broker, if it holds the branch; else who wrote it, or who keeps the line that was made of it."""
        broker = self._broker
        me = BrokerId(broker.id)
        if view.is_held or broker.is_alone:
            return me
        for candidate in (self._writer_of(view.lane), broker.leaders.of(*view.base.key).broker_id):
            if candidate is not None and candidate != me and broker.orchestrator.is_available(candidate):
                return candidate
        return me

    def _writer_of(self, lane: Lane) -> BrokerId | None:
        if lane == FIRST_LANE:
            return None
        table, slot = self._broker.metadata.table, slot_of(lane)
        found = (
            each.broker_id for each in table.brokers.values() if table.slots.get(each.directory_id) == slot
        )
        return next(found, None)


def _bases(state: TopicState) -> list[BranchPartition]:
    return [each for each in state.partitions if isinstance(each, BranchPartition)]


def view_id(topic_id: UUID, lane: Lane) -> UUID:
    return uuid5(topic_id, str(lane))


def read_only(name: str) -> ReadOnlyBranchError:
    topic, _, lane = name.rpartition(SIGN)
    return ReadOnlyBranchError(
        f"{name} is branch {lane} of topic {topic}, and only for reading: for anything else name {topic}."
    )


def _never(_: object) -> None:
    raise AssertionError("nothing is written to a view")
