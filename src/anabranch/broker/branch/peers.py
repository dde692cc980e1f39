"""BranchPeers: topics in mode branch on a broker that has peers. Who reigns over which partition, who follows whom, and
what others ask about it. Loaded with the first topic of that mode.

A few times a second, and whenever something is heard, every partition is looked at (`_step`): what `branch_roles`
decides is then carried out, by one task for each partition. Whatever fails is tried again by a later look.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.branch.closing import Closing
from anabranch.broker.branch.following import Following
from anabranch.broker.branch.heads import Key, encode_told
from anabranch.broker.branch.lanes.borrowing import Borrowing
from anabranch.broker.branch.lanes.copying import Copying
from anabranch.broker.branch.lanes.log_to_lanes import first_tip
from anabranch.broker.branch.lanes.reads import PIECE_BYTES_MAX, LaneReading
from anabranch.broker.branch.merging import MissingRecordsError
from anabranch.broker.branch.own_producer_ids import OwnProducerIds
from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.partition_role import BranchSeat
from anabranch.broker.branch.polling import BranchPolling
from anabranch.broker.branch.room import BranchRoom
from anabranch.broker.branch.takeover import NotNowError, Reigning
from anabranch.broker.peers.messages import (
    BranchRows,
    BranchSealed,
    CloseBranch,
    HoldLine,
    LaneRecords,
    LineHeld,
    PollBranches,
    ReadLane,
    SealBranch,
)
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.topics import OFFSETS_TOPIC
from anabranch.broker.workers import in_heavy_worker
from anabranch.errors import (
    AnabranchError,
    InvalidRequestError,
    NotOwnerError,
    PeerError,
    UnknownTopicIdError,
)
from anabranch.modes.branch.leaving import LeaveStep
from anabranch.modes.branch.lines import UnknownBranchError
from anabranch.modes.branch.roles import (
    Head,
    Rank,
    Step,
    copies_of,
    in_order,
    is_behind_or_unknown,
    lane_of_reign,
    next_step,
)
from anabranch.modes.branch.rows import NO_LANE, NOWHERE, BranchRow, Lane, Tip
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.broker.branch.branches import BranchTopics
    from anabranch.broker.broker import Broker
    from anabranch.broker.peers.peers import Peers
    from anabranch.cluster.metadata.rows import Placement, Topic

STABLE_MS = 300
QUIET_MS = 1000
LOOK_MS = 1000
"""So long a partition at rest, of which nothing is heard, is not looked at."""
BECOMING_MAX = 16
"""Partitions of which a broker becomes primary at the same time: each costs the disk several syncs."""
CATCH_UP_MS_MAX = 10_000
NOTHING_HELD = (Offset(0), Offset(0))

Question = PollBranches | SealBranch | CloseBranch | HoldLine | ReadLane
Answer = BranchRows | BranchSealed | LineHeld | LaneRecords
Work = Callable[[], Coroutine[None, None, None]]

logger = logging.getLogger(__name__)


class BranchPeers:
    def __init__(self, broker: "Broker", peers: "Peers", topics: "BranchTopics") -> None:
        self._broker = broker
        self._topics = topics
        self._me = BrokerId(broker.id)
        self._seats: dict[Key, BranchSeat] = {}
        settings, clock = broker.settings, broker.clock
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()
        self._silence_ms = settings.branch_silence_ms
        self.is_leaving = False
        self.room = BranchRoom(broker, self._seats.values)
        self.polling = BranchPolling(
            peers,
            topics.tube,
            clock,
            settings.branch_silence_ms,
            own_heads=lambda: {key: seat.head for key, seat in self._seats.items()},
            own_state=lambda: (self.is_short, self.is_leaving),
            changed=self._look_soon,
            stirred=self._stir,
        )
        self.reading = LaneReading(peers, broker.workers, lambda: self.polling.view)
        if broker.peering is not None:
            broker.peering.repairs.lane_holders = lambda: sorted(self.polling.view)
            broker.peering.repairs.read_lane = self.reading.ask
        self.borrowing = Borrowing(self.reading)
        self.reigning = Reigning(
            peers, self.reading, broker.workers, clock, lane_for=self._lane_for, copies_for=self._copies_for
        )
        self.following = Following(self.reading, broker.workers, clock)
        self.closing = Closing(
            broker,
            peers,
            self.reigning,
            Copying(self.reading, broker.workers, clock),
            lane_for=self._lane_for,
            copies_for=self._copies_for,
            sealed_of=self._sealed,
        )
        self._becoming = asyncio.Semaphore(BECOMING_MAX)
        self._stirred: set[Key] = set()
        """Partitions of which something was heard, or to which something has happened, since the last look."""
        self._rows: dict[Key, list[BranchRow]] = {}
        self._keep_rows(topics.tube.rows)
        topics.tube.subscribe(self._keep_rows)
        self._is_over = False
        self._is_look_due = False
        self._scene: object = None
        self._looked_ms = clock.monotonic_ms()
        broker.leaders.of_branch = self.leader_of
        own_ids = OwnProducerIds(broker.files, broker.data_dir, broker.workers, lambda: self.slot)
        broker.producer_ids.own_block = own_ids.block

    # --- life ----------------------------------------------------------------------------------------------------

    def placed(self, partition: Partition, placement: "Placement") -> None:
        """A partition is open."""
        assert isinstance(partition, BranchPartition)
        if partition.key not in self._seats:
            seat = self._seats[partition.key] = BranchSeat(partition)
            if placement.has_joined_branches and partition.tip == NOWHERE:
                seat.heard = first_tip(
                    placement
                )  # Others have it: even if none is in view, we go on behind it.
            partition.on_written = seat.growth.wake
            partition.on_ended = lambda: self._reign_ended(seat)
            partition.view.elsewhere = lambda span, bytes_max, whole_first: self.borrowing.slice(
                partition, span, bytes_max, whole_first=whole_first
            )
            self._look_soon()

    def closed(self, partition: Partition) -> None:
        """Its topic is gone."""
        seat = self._seats.pop((partition.topic_id, partition.id.partition), None)
        for task in (seat.task, seat.backfill) if seat is not None else ():
            if task is not None:
                task.cancel()

    def leave(self) -> None:
        """Before this broker stops: let another reign where there is one."""
        self.is_leaving = True
        self.polling.tell_news()

    @property
    def is_missed(self) -> bool:
        """It still reigns where another could."""
        return bool(self.polling.view) and any(
            seat.partition.reign is not None for seat in self._seats.values()
        )

    async def stop(self) -> None:
        self._is_over = True
        tasks = [
            task for seat in self._seats.values() for task in (seat.task, seat.backfill) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.room.stop()
        await self.borrowing.stop()
        await self.polling.stop()

    def pulse(self, now_ms: int) -> None:
        """A few times a second."""
        if self._is_over:
            return
        rows = self._broker.metadata.table.brokers.values()
        self.polling.pulse(
            [row.broker_id for row in rows if row.broker_id != self._me and row.peer_port], now_ms
        )
        self.room.pulse(self.polling.view, now_ms)
        self._look(now_ms)

    def _stir(self, keys: Iterable[Key]) -> None:
        self._stirred.update(keys)

    def _look_soon(self) -> None:
        if not self._is_look_due and not self._is_over:
            self._is_look_due = True
            asyncio.get_running_loop().call_soon(self._look_now)

    def _look_now(self) -> None:
        self._is_look_due = False
        if not self._is_over:
            self._look(self._clock.monotonic_ms())

    def _look(self, now_ms: int) -> None:
        stirred, self._stirred = self._stirred, set()
        is_all_due = self._has_changed() or now_ms - self._looked_ms >= LOOK_MS
        if is_all_due:
            self._looked_ms = now_ms
        for seat in list(self._seats.values()):
            if not is_all_due and seat.looked_at is not None and seat.key not in stirred:
                continue  # Of thousands most are at rest most of the time.
            try:
                self._step(seat, now_ms)
            except UnknownBranchError as error:
                logger.debug("%s: %s", seat.partition.id, error)

    def _has_changed(self) -> bool:
        """Whether anything is different that concerns all partitions."""
        polling = self.polling
        applied_end = self._broker.metadata.applied_end
        before = self._scene
        self._scene = (polling.view, polling.news_at, applied_end, self.is_short, self.is_leaving)
        return before != self._scene

    # --- who is who ----------------------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Its disk is nearly full, or has failed: others had better reign."""
        return self.room.is_short or self._topics.has_failed or self._topics.tube.is_fenced

    @property
    def slot(self) -> int | None:
        metadata = self._broker.metadata
        return metadata.table.slots.get(metadata.me.directory_id)

    def _topic(self, seat: BranchSeat) -> "Topic | None":
        return self._broker.metadata.table.topics_by_id.get(seat.key[0])

    def _rank(self, seat: BranchSeat, broker: BrokerId) -> Rank:
        row = self._broker.metadata.table.brokers.get(broker)
        if broker == self._me:
            is_short, is_leaving = self.is_short, self.is_leaving
        else:
            seen = self.polling.seen(broker)
            is_short, is_leaving = seen.is_short, seen.is_leaving
        stays = not (is_short or is_leaving or (row is not None and row.is_draining))
        return Rank(stays, broker == self._chosen(seat), seat.drawn(broker), broker)

    def _chosen(self, seat: BranchSeat) -> BrokerId | None:
        """Who was named to be primary: in a row, or when the topic was made."""
        table = self._broker.metadata.table
        slot = seat.partition.branches.placed_slot
        if slot is not None:
            directory = next((each for each, its in table.slots.items() if its == slot), None)
            return next(
                (row.broker_id for row in table.brokers.values() if row.directory_id == directory), None
            )
        topic = self._topic(seat)
        index = seat.key[1]
        return topic.first[index] if topic is not None and index < len(topic.first) else None

    def order(self, seat: BranchSeat) -> list[BrokerId]:
        """Those in view and this broker, who is to be primary first."""
        return in_order(self._rank(seat, broker) for broker in (self._me, *self.polling.view))

    def leader_of(self, key: Key) -> tuple[BrokerId | None, tuple[BrokerId, ...]]:
        """Who reigns, as far as is seen from here, and who keeps copies."""
        seat = self._seats.get(key)
        if seat is None:
            return None, ()
        if seat.partition.reign is not None:
            return self._me, (self._me, *sorted(seat.partition.mode.copies))
        order = self.order(seat)
        leader = self._reigning_of(order, self._heads(seat))
        if leader is None and seat.partition.branches.opened:
            leader = order[0]  # Between two reigns: it is about to begin.
        if leader is None:
            return None, ()
        return leader, tuple(copies_of(order, leader, self._copies_wanted(seat)))

    def _heads(self, seat: BranchSeat) -> dict[BrokerId, Head]:
        """Of those in view, and of the same time in branches: others have not heard yet that there is another, or have
        not said anything since."""
        view = seat.partition.branched_view
        return {broker: head for broker, head in self.polling.heads(seat.key).items() if head.view == view}

    @staticmethod
    def _reigning_of(order: Iterable[BrokerId], heads: dict[BrokerId, Head]) -> BrokerId | None:
        return next((each for each in order if each in heads and heads[each].reign != NO_LANE), None)

    def _copies_wanted(self, seat: BranchSeat) -> int:
        topic = self._topic(seat)
        return topic.copies if topic is not None else 1

    def _copies_for(self, seat: BranchSeat) -> list[BrokerId]:
        """Who is to keep copies of what this broker writes."""
        order = self.order(seat)
        return [each for each in copies_of(order, self._me, self._copies_wanted(seat)) if each != self._me]

    def _lane_for(self, seat: BranchSeat, above: Iterable[Lane]) -> Lane:
        partition, slot = seat.partition, self.slot
        if slot is None:
            raise NotOwnerError("This broker has no slot, of which there are 1024: it cannot be primary.")
        known = (partition.branches.highest, partition.lanes.highest, partition.tip.lane, *above)
        return lane_of_reign(slot, known, is_first=self._is_first(seat))

    def _is_first(self, seat: BranchSeat) -> bool:
        """With the disk that it had when the topic was made: on another one it would not know what it has written."""
        topic, index = self._topic(seat), seat.key[1]
        me = self._broker.metadata.me.directory_id
        return topic is not None and index < len(topic.first_disks) and topic.first_disks[index] == me

    # --- what is to be done ----------------------------------------------------------------------------------------

    def _step(self, seat: BranchSeat, now_ms: int) -> None:
        partition, heads = seat.partition, self._heads(seat)
        if partition.is_gone:
            return
        sight = self._sight(seat, heads)
        if seat.looked_at == sight:
            if partition.reign is not None:
                seat.count_copies(now_ms)
            return
        seat.looked_at = None
        order = self.order(seat)
        leader = self._reigning_of(order, heads)
        self._hear(seat, heads.get(leader) if leader is not None else None, now_ms)
        self._begin_backfill(seat, order)
        if seat.is_becoming or self._brings_out(seat, leader, order, now_ms):
            return
        seat.sees(heads.values())
        others = [head for head in heads.values() if not seat.is_put_off(head.tip, now_ms)]
        step = next_step(
            self._me, order[0], seat.head, others, partition.branches, is_stable=self._is_stable(now_ms)
        )
        if (
            step is Step.REIGN
            and self._may_reign(seat, now_ms)
            and not self._lets_go_on(seat, leader, heads, now_ms)
        ):
            self._begin(seat, None, lambda: self._become(seat))
        elif leader is not None and self._is_to_follow(seat, leader, order):
            self._begin(seat, leader, lambda: self._follow(seat, leader))
        elif step is not Step.REIGN and self._is_at_rest(seat, leader, now_ms):
            seat.looked_at = sight

    def _brings_out(
        self, seat: BranchSeat, leader: BrokerId | None, order: list[BrokerId], now_ms: int
    ) -> bool:
        """It shall come out of branches, and this broker does something about it now."""
        decision = self.closing.decision(seat)
        if decision is None or not self._is_stable(now_ms):
            return False
        would_reign = leader is None and order[0] == self._me and self.closing.is_bound(seat)
        step = self.closing.next_step(
            seat,
            decision,
            now_ms,
            is_primary=seat.partition.reign is not None or would_reign,
            sees_all=self._sees_everybody,
        )
        if step is LeaveStep.WAIT:
            return False
        self._begin(seat, None, lambda: self.closing.carry_out(step, seat, decision))
        return True

    def _sight(self, seat: BranchSeat, heads: dict[BrokerId, Head]) -> object:
        """All that a decision depends on, but for the time."""
        branches, polling = seat.partition.branches, self.polling
        known = (len(branches.opened), branches.placed_slot, self._broker.metadata.applied_end)
        return (
            polling.view,
            polling.news_at,
            heads,
            seat.head,
            seat.is_busy,
            known,
            self.is_short,
            self.is_leaving,
        )

    def _is_at_rest(self, seat: BranchSeat, leader: BrokerId | None, now_ms: int) -> bool:
        """It reigns, or follows whoever does, and nothing changes by the mere passing of time."""
        if seat.has_put_off(now_ms) or not self._is_stable(now_ms) or not self.following.is_whole(seat):
            return False
        if self.closing.decision(seat) is not None:
            return False
        return (seat.partition.reign is not None and not seat.is_busy) or (
            seat.is_busy and leader is not None and seat.follows == leader
        )

    def _is_to_follow(self, seat: BranchSeat, leader: BrokerId, order: list[BrokerId]) -> bool:
        """Whoever keeps a copy does, and whoever is to reign next; and leaves whom it followed before."""
        if seat.partition.reign is not None or (seat.is_busy and seat.follows == leader):
            return False
        return order[0] == self._me or self._me in copies_of(order, leader, self._copies_wanted(seat))

    def _hear(self, seat: BranchSeat, head: Head | None, now_ms: int) -> None:
        partition = seat.partition
        if partition.reign is not None:
            seat.ask_copies(self._copies_for(seat), now_ms)
            if partition.id.topic == OFFSETS_TOPIC:
                self._coordinate(seat)
        elif head is not None:
            safe = min(head.safe, head.tip.end)
            seat.heard = partition.branches.tip_at(
                safe
            )  # A reign may have begun of which nothing is safe yet.
            if partition.view.lane == head.reign:
                partition.follow(head.safe)

    def _reign_ended(self, seat: BranchSeat) -> None:
        self._stirred.add(seat.key)
        seat.growth.wake()
        if seat.partition.id.topic == OFFSETS_TOPIC:
            self._coordinate(seat)

    def _coordinate(self, seat: BranchSeat) -> None:
        """Groups are coordinated by whoever reigns over their log, once all of it is there."""
        partition = seat.partition
        lane = partition.reign if self.following.is_whole(seat) else None
        if lane != seat.coordinates_in:
            seat.coordinates_in = lane
            generation = Generation(lane if lane is not None else NO_LANE)
            self._broker.offsets_topic.on_leadership(partition, lane is not None, generation)

    def _is_stable(self, now_ms: int) -> bool:
        """At first nobody has had the time to answer."""
        has_waited = now_ms - self._begun_ms >= self._silence_ms
        return now_ms - self.polling.stable_since_ms >= STABLE_MS and (has_waited or self._sees_all)

    @property
    def _sees_all(self) -> bool:
        rows = self._broker.metadata.table.brokers.values()
        return self.polling.view >= {row.broker_id for row in rows if not row.is_fenced} - {self._me}

    @property
    def _sees_everybody(self) -> bool:
        """All who are registered, whether or not anybody counts on them."""
        return self.polling.view >= self._broker.metadata.table.brokers.keys() - {self._me}

    def _may_reign(self, seat: BranchSeat, now_ms: int) -> bool:
        if self.closing.is_bound(seat):
            return False
        return now_ms >= seat.quiet_until_ms and self.slot is not None and not seat.partition.view.fenced

    def _lets_go_on(
        self, seat: BranchSeat, leader: BrokerId | None, heads: dict[BrokerId, Head], now_ms: int
    ) -> bool:
        """While another reigns behind whose line ours is, first catch up with it: nobody could write meanwhile."""
        if leader is None or seat.partition.reign is not None:
            seat.waits_since_ms = None
            return False
        head = heads[leader]
        is_behind = is_behind_or_unknown(seat.partition.branches, head.tip, seat.partition.tip)
        if not is_behind or self.following.is_caught_up(seat, head):
            seat.waits_since_ms = None
            return False
        if seat.waits_since_ms is None:
            seat.waits_since_ms = now_ms
        return now_ms - seat.waits_since_ms < CATCH_UP_MS_MAX

    def _begin(self, seat: BranchSeat, follows: BrokerId | None, work: Work) -> None:
        before, seat.follows = seat.task, follows
        seat.task = asyncio.get_running_loop().create_task(self._after(before, work, seat))

    async def _after(self, before: "asyncio.Task[None] | None", work: Work, seat: BranchSeat) -> None:
        """One at a time; what follows is stopped, at a point where everything is as it should be."""
        if before is not None and not before.done():
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
            async with seat.partition.switching:
                pass  # What it had begun to adopt is adopted now.
        try:
            await work()
        except (NotNowError, PeerError, UnknownBranchError, MissingRecordsError) as error:
            logger.debug("%s: %s", seat.partition.id, error)
        except AnabranchError as error:
            logger.warning("%s: %s", seat.partition.id, error)
        except Exception:
            logger.exception("%s cannot go on: this is a defect", seat.partition.id)
        finally:
            self._stirred.add(seat.key)

    async def _become(self, seat: BranchSeat) -> None:
        seat.is_unwelcome = False
        seat.looked_at = None
        before = seat.partition.reign
        try:
            async with self._becoming:
                if not seat.is_unwelcome:
                    await self.reigning.become(seat, self.polling.view)
        finally:
            seat.growth.wake()
            self.polling.tell_news()
        if seat.partition.reign != before:
            logger.info("%s: this broker reigns in branch %s", seat.partition.id, seat.partition.reign)
        else:
            self._leave_apart(seat)

    def _leave_apart(self, seat: BranchSeat) -> None:
        """Somebody has what is not in this line, and does not say how it ends, as with a disk that has failed: not to
        be asked again and again."""
        partition = seat.partition
        for head in self._heads(seat).values():
            if not is_behind_or_unknown(partition.branches, partition.tip, head.tip):
                seat.put_off(head.tip, self._clock.monotonic_ms())

    async def _follow(self, seat: BranchSeat, leader: BrokerId) -> None:
        await self.following.follow(seat, leader, lambda: self._heads(seat).get(leader))

    def _begin_backfill(self, seat: BranchSeat, order: list[BrokerId]) -> None:
        """Whoever is to keep copies keeps all of the line."""
        if (seat.backfill is not None and not seat.backfill.done()) or not self.polling.view:
            return
        first = self._me if seat.partition.reign is not None else order[0]
        if self._me in copies_of(order, first, self._copies_wanted(seat)) and not self.following.is_whole(
            seat
        ):
            work = self._after(None, lambda: self.following.backfill(seat), seat)
            seat.backfill = asyncio.get_running_loop().create_task(work)

    def _keep_rows(self, rows: list[BranchRow]) -> None:
        for row in rows:
            self._rows.setdefault(row.key, []).append(row)
            self._stirred.add(row.key)

    # --- what others ask -------------------------------------------------------------------------------------------

    def news(self, sender: BrokerId) -> None:
        self.polling.news(sender)

    async def asked(self, sender: BrokerId, question: Question) -> Answer:
        match question:
            case PollBranches():
                return self.polling.answer(question)
            case SealBranch():
                return await self._seal(self._seat_of_time(question), sender)
            case CloseBranch():
                seat = self.seat(question.topic_id, question.partition)
                return await self.closing.asked_to_close(seat, sender, question)
            case HoldLine():
                seat = self.seat(question.topic_id, question.partition)
                return await self.closing.asked_to_hold(seat, sender, question)
            case ReadLane():
                return await self._read(self.seat(question.topic_id, question.partition), sender, question)

    def seat(self, topic_id: UUID, partition: int) -> BranchSeat:
        seat = self._seats.get((topic_id, partition))
        if seat is None:
            raise UnknownTopicIdError(
                f"There is no topic with id {topic_id}, or it is not in mode branch here."
            )
        return seat

    def _seat_of_time(self, question: SealBranch) -> BranchSeat:
        """Where the line of another time ended is of no use: it would be written again."""
        seat = self.seat(question.topic_id, question.partition)
        if seat.partition.branched_view != question.view:
            raise UnknownTopicIdError(f"{seat.partition.id} is not in branches of that time here.")
        return seat

    async def _seal(self, seat: BranchSeat, sender: BrokerId) -> BranchSealed:
        if self._rank(seat, self._me) > self._rank(seat, sender):
            raise NotOwnerError(f"Broker {self._me} goes before broker {sender} here.")
        seat.quiet_until_ms = self._clock.monotonic_ms() + QUIET_MS
        if seat.is_becoming:
            seat.is_unwelcome = True
            raise NotOwnerError(f"Broker {self._me} is in the middle of becoming primary.")
        partition = seat.partition
        if partition.reign is not None:
            tip = await partition.end_reign(NotOwnerError(f"Broker {sender} reigns over {partition.id} now."))
            seat.growth.wake()
        else:
            tip = partition.tip
            log = partition.lanes.get(tip.lane)
            if log is not None:
                await in_heavy_worker(self._broker.workers, log.sync)
        return self._sealed(seat, tip)

    def _sealed(self, seat: BranchSeat, tip: Tip) -> BranchSealed:
        rows = self._rows.get(seat.key, [])
        return BranchSealed(tip.lane, tip.end, encode_told(rows, {}))

    async def _read(self, seat: BranchSeat, sender: BrokerId, question: ReadLane) -> LaneRecords:
        partition, lane = seat.partition, Lane(question.lane)
        if lane not in partition.branches.opened:
            raise InvalidRequestError(f"Nothing is known of a branch {lane} of {partition.id} here.")
        if question.is_copying and partition.reign == lane:
            seat.copied(sender, question.start, self._clock.monotonic_ms())
        log = partition.lanes.get(lane)
        if (
            question.wait_ms
            and partition.reign == lane
            and log is not None
            and question.start >= log.end_offset
        ):
            await seat.growth.wait(question.wait_ms / 1000)
            log = partition.lanes.get(lane)
        is_tip, safe = partition.reign == lane, partition.high_watermark
        if log is None:
            return LaneRecords(*NOTHING_HELD, safe, is_tip, b"")
        held, end = (log.start_offset, log.end_offset), Offset(min(question.end, log.end_offset))
        if not held[0] <= question.start < end:
            return LaneRecords(*held, safe, is_tip, b"")
        piece = log.slice(question.start, min(question.bytes_max, PIECE_BYTES_MAX), end)
        data = (
            bytes(piece.read())
            if question.wait_ms
            else await in_heavy_worker(self._broker.workers, piece.read)
        )
        return LaneRecords(*held, safe, is_tip, data)
