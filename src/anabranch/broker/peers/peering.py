"""Peering: the life of a broker among others. Time passes for the quorum, the orchestrator and the ring's replicas;
what peers say is brought to whom it concerns; whom this broker leads is told to everybody.

Everything that only a broker with peers needs is put together here. A node without peers has none of this: no timer,
nobody to listen to, and not even the code.
"""

import asyncio
import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from anabranch.broker.metadata.orchestrator import LEAVE_MS_MAX, Orchestrator
from anabranch.broker.peers.leadership_news import LeadershipNews
from anabranch.broker.peers.messages import (
    Answer,
    AskLeads,
    BeginView,
    BranchNews,
    BranchRows,
    BrokerBeat,
    CloseBranch,
    ForwardRequest,
    FreeSpace,
    HoldLine,
    LeaderRow,
    Leads,
    LookAtReplica,
    NameDisk,
    PeerMessage,
    Ping,
    PollBranches,
    ProducerIdBlock,
    ProposeEntry,
    Question,
    ReadIndex,
    ReadIndexAnswer,
    ReadLane,
    ReadRecords,
    RegisterBroker,
    RingLetter,
    SealBranch,
    Space,
)
from anabranch.broker.peers.peers import Peers
from anabranch.broker.requests import local_dispatch as carrying
from anabranch.broker.requests.forwarding import Forwarding
from anabranch.broker.requests.routing import Routing
from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.ring.moves import Moves
from anabranch.broker.ring.recovery import Recovery
from anabranch.broker.ring.repairs import Repairs, read_records
from anabranch.broker.ring.replicas import Replicas
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.partition_opener import is_ring
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.cluster.metadata.rows import Placement
from anabranch.errors import InvalidRequestError, QuorumBusyError, StorageError, UnknownTopicIdError
from anabranch.modes.ring.messages import ReturnId
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from anabranch.broker.branch.peers import BranchPeers
    from anabranch.broker.branch.peers import Question as BranchQuestion
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.mode_changes import ModeChanges

PULSE_SECONDS = 0.1
PING_MS = 500
LEAVE_PAUSE_SECONDS = 0.02
JOIN_AGAIN_SECONDS = 1.0
APART_MS = 5000
"""So long the metadata quorum has to be out of reach before clients are served without it."""
NAMED_MAX = 10
WAITING_SAY_MS = 3000
WAITING_SAY_AGAIN_MS = 60_000

NO_BRANCHES = BranchRows("", 0, 0, is_short=False, is_leaving=False, data=b'{"rows":[],"heads":[]}')
"""Of a broker that has not heard of any topic in mode branch yet."""

logger = logging.getLogger(__name__)


class Peering:
    def __init__(self, broker: "Broker", peers: Peers) -> None:
        self._broker = broker
        self.peers = peers
        self.replicas = Replicas(BrokerId(broker.id), peers)
        self.orchestrator = Orchestrator(broker)
        self.forwarding = Forwarding(broker)
        self.routing = Routing(broker, peers)
        self.moves = Moves(broker)
        self.recovery = Recovery(broker)
        self.repairs = Repairs(peers, broker.workers, broker.clock)
        self.replicas.on_unreadable = self.repairs.begin
        self.replicas.on_leads = self._leads
        self.replicas.on_settle = self.moves.settle
        self.replicas.is_listening = (
            False  # Before the table is known, nobody knows whether this disk is the right one.
        )
        self._leadership_news = LeadershipNews(peers, self.replicas.led)
        self._news: dict[Partition, LeaderRow] = {}
        self._told: dict[Partition, LeaderRow] = {}
        """What the others know of us: when it is over, they have to hear of it."""
        self._joining: set[Partition] = set()
        """Partitions that the disk did not let join their ring."""
        self._mode_changes: ModeChanges | None = None
        self._up: set[BrokerId] = set()
        self._pulse: asyncio.TimerHandle | None = None
        self._pinged_ms = 0
        self._catching_up: asyncio.Task[None] | None = None
        self._whole: asyncio.Task[None] | None = None
        self.has_joined = False
        """It knows all that was agreed on before its start, and has opened what it is to keep."""

    @property
    def linked(self) -> list[BrokerId]:
        """The brokers that can be spoken to now."""
        return sorted(self._up)

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.orchestrator.connect()
        self._beat()
        self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def stop(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        joining = [task for task in (self._whole, self._catching_up) if task is not None]
        for task in joining:
            task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)
        if self._mode_changes is not None:
            await self._mode_changes.stop()
        if self._branches is not None:
            await self._branches.stop()
        await self.moves.stop()
        await self.repairs.stop()

    def _beat(self) -> None:
        self._pulse = asyncio.get_running_loop().call_later(PULSE_SECONDS, self._beat)
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        try:
            broker.metadata.tick(now_ms)
            self.orchestrator.pulse(now_ms)
            self.replicas.tick(now_ms)
            if self._branches is not None:
                self._branches.pulse(now_ms)
            if now_ms - self._pinged_ms >= PING_MS:
                self._pinged_ms = now_ms
                self._ping()
                self._say_doubted()
        except Exception:
            logger.exception("a pulse of the cluster failed: this is a defect")

    def _ping(self) -> None:
        for broker in self._up:
            self._leadership_news.ping(broker)

    def _say_doubted(self) -> None:
        """In one line for all, as after the loss of a disk there are many."""
        doubted = self._broker.opener.doubted
        if doubted and self._broker.topics.is_settled:
            named = ", ".join(map(str, sorted(doubted)[:NAMED_MAX])) + (
                ", ..." if len(doubted) > NAMED_MAX else ""
            )
            logger.warning(
                "%d partitions may lack records that were safe, and count when others gave them all: %s",
                len(doubted),
                named,
            )
            doubted.clear()

    async def leave(self) -> None:
        """Before this broker stops: let others lead what it leads, and the quorum know that it goes. While there is
        nobody who could take over, there is nothing to wait for."""
        clock = self._broker.clock
        end_ms = clock.monotonic_ms() + LEAVE_MS_MAX
        self.replicas.resign()
        if self._branches is not None:
            self._branches.leave()
        await self.orchestrator.leave()
        while self.replicas.is_missed or (self._branches is not None and self._branches.is_missed):
            if clock.monotonic_ms() >= end_ms:
                logger.warning("this broker stops although nobody has taken over all that it led")
                break
            await asyncio.sleep(LEAVE_PAUSE_SECONDS)

    # --- partitions ----------------------------------------------------------------------------------------------

    @property
    def _branches(self) -> "BranchPeers | None":
        """Of topics in mode branch; None: there are none."""
        return self._broker.branches.peers if self._broker.branches is not None else None

    def placed(self, partition: Partition, placement: Placement) -> None:
        """A partition is there, or is kept with others than before."""
        if partition.residence == BRANCHED:
            assert self._branches is not None
            self._branches.placed(partition, placement)
            return
        if ring_driver(partition) is None and is_ring(placement) and partition.has_files:
            self._join_ring(partition, placement)
        ring = ring_driver(partition)
        if ring is not None:
            strange = self._strange(placement)
            if strange is not None and ring.mode.replica.kept.is_trusted:
                self._broker.opener.doubted.append(partition.id)
            self.replicas.place(partition, placement, strange)
        else:
            self._broker.offsets_topic.on_leadership(partition, True, partition.generation)
        if placement.leaves_for_store:
            self._leave_for_store(partition, placement)

    def _leave_for_store(self, partition: Partition, placement: Placement) -> None:
        if self._broker.objects is None:
            logger.error(
                "%s shall go over to the object store, and this node was started without one: start it with "
                "--object-store and the URL that its cluster uses",
                partition.id,
            )
            return
        if self._mode_changes is None:
            from anabranch.broker.object.mode_changes import ModeChanges  # For those alone who have a store.

            self._mode_changes = ModeChanges(self._broker, self._broker.objects)
        self._mode_changes.placed(partition, placement)

    def _join_ring(self, partition: Partition, placement: Placement) -> None:
        """If the disk allows it; until then this broker keeps it alone, and the others wait."""
        try:
            self._broker.opener.join_ring(partition, placement)
        except StorageError as error:
            logger.error("%s cannot join its ring yet, which is tried again: %s", partition.id, error)
            if partition not in self._joining:
                self._joining.add(partition)
                asyncio.get_running_loop().call_later(JOIN_AGAIN_SECONDS, self._place_again, partition)
        else:
            # It led alone; whether it leads the ring is not said yet, and somebody else may be first.
            self._broker.offsets_topic.on_leadership(partition, False, partition.generation)

    def _place_again(self, partition: Partition) -> None:
        self._joining.discard(partition)
        topic = self._broker.metadata.table.topics_by_id.get(partition.topic_id)
        if topic is not None and not partition.is_gone and ring_driver(partition) is None:
            self.placed(partition, self._broker.metadata.table.placement(topic, partition.id.partition))

    def _strange(self, placement: Placement) -> ReturnId | None:
        """By what name a replica comes back that was given to another disk."""
        me = self._broker.metadata.me
        is_strange = placement.is_strange_to(BrokerId(me.broker_id), me.directory_id)
        return uuid.uuid4().hex if is_strange and self.replicas.is_listening else None

    def _listen(self) -> None:
        """The table is known: what it said before may have been older than what this disk holds."""
        self.replicas.is_listening = True
        table = self._broker.metadata.table
        for partition in self.replicas:
            topic = table.topics_by_id.get(partition.topic_id)
            if topic is not None and partition.id.partition < topic.partition_count:
                self.placed(partition, table.placement(topic, partition.id.partition))

    def closed(self, partition: Partition) -> None:
        if partition.residence == BRANCHED and self._branches is not None:
            self._branches.closed(partition)
        self.replicas.remove(partition)
        if self._mode_changes is not None:
            self._mode_changes.closed(partition)
        self._news.pop(partition, None)
        self._told.pop(partition, None)
        self._broker.offsets_topic.on_leadership(partition, False, partition.generation)

    def _leads(self, partition: Partition, row: LeaderRow | None) -> None:
        self._broker.offsets_topic.on_leadership(partition, row is not None, partition.generation)
        if row is not None:
            self._told[partition] = news = row
        elif partition in self._told:
            news = replace(self._told.pop(partition), in_sync=())
        else:
            return
        if not self._news:
            asyncio.get_running_loop().call_soon(self._tell_news)
        self._news[partition] = news

    def _tell_news(self) -> None:
        rows, self._news = list(self._news.values()), {}
        for broker in self._up:
            self._leadership_news.tell(broker, rows)

    # --- what peers say ------------------------------------------------------------------------------------------

    def peer_up(self, broker: BrokerId) -> None:
        self._up.add(broker)
        self._leadership_news.tell_all(broker)
        self.replicas.peer_up(broker)

    def peer_down(self, broker: BrokerId) -> None:
        self._up.discard(broker)
        self.replicas.peer_down(broker)

    def heard(self, sender: BrokerId, message: PeerMessage) -> None:
        match message:
            case RingLetter():
                self.replicas.heard(sender, message)
            case Ping():
                self._leadership_news.pinged(sender, message)
            case BranchNews():
                if self._branches is not None:
                    self._branches.news(sender)
            case Leads():
                self._leadership_news.heard(sender, message)
                self._broker.leaders.heard(sender, message)
            case AskLeads():
                self._leadership_news.tell_all(sender)
            case _:
                self._broker.metadata.heard(message)

    async def asked(self, sender: BrokerId, question: Question) -> Answer:
        broker = self._broker
        match question:
            case ForwardRequest():
                return await self._carry_out(question)
            case RegisterBroker() | BrokerBeat() | ProducerIdBlock():
                return await self.orchestrator.asked(question)
            case ReadIndex():
                return ReadIndexAnswer(await broker.metadata.read_index())
            case ReadRecords():
                return read_records(self.replicas.find(question.topic_id, question.partition), question)
            case LookAtReplica():
                return self.recovery.seen_here(question.topic_id, question.partition)
            case BeginView() | NameDisk():
                return await self.moves.asked(question)
            case PollBranches() | SealBranch() | CloseBranch() | HoldLine() | ReadLane() | FreeSpace():
                return await self._asked_of_branches(sender, question)
            case ProposeEntry():
                from anabranch.broker.metadata.proposals import (
                    asked,
                )  # For those alone who keep records in an object store.

                return await asked(broker.metadata, sender, question)
        raise InvalidRequestError(f"This broker does not answer {type(question).__name__}.")

    async def _carry_out(self, question: ForwardRequest) -> Answer:
        if question.api_key == ApiKey.PRODUCE:
            return await self.routing.asked(question)
        if question.api_key in carrying.FOR_OTHERS:
            return await carrying.asked(self._broker, question)
        return await self.forwarding.asked(question)

    async def _asked_of_branches(self, sender: BrokerId, question: "BranchQuestion | FreeSpace") -> Answer:
        if isinstance(question, FreeSpace):
            return Space(self._broker.disk_room()[1])
        if self._branches is not None:
            return await self._branches.asked(sender, question)
        if isinstance(question, PollBranches):
            return NO_BRANCHES
        raise UnknownTopicIdError("This broker has not heard of a topic in mode branch yet.")

    # --- joining -------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Until everything that was agreed on before is known here, and the others count on this broker: what a client
        asked sooner would be half of it, and a topic made sooner would leave it out. A broker with topics in mode
        branch that comes back on a side without the quorum serves what it knows after a while; the rest follows."""
        self._whole = asyncio.get_running_loop().create_task(self._join_whole())
        clock = self._broker.clock
        heard_ms = clock.monotonic_ms()
        try:
            while not self._whole.done():
                if self._branches is None or not self._missing_voters():
                    heard_ms = clock.monotonic_ms()
                elif clock.monotonic_ms() - heard_ms >= APART_MS:
                    logger.warning("topics in mode branch are served all the same, as they were known last")
                    self._whole.add_done_callback(_say_failure)
                    return
                await asyncio.wait([self._whole], timeout=PULSE_SECONDS)
            await self._whole
        except asyncio.CancelledError:
            self._whole.cancel()
            raise

    async def _join_whole(self) -> None:
        assert self._catching_up is not None
        await self._catching_up
        while True:
            if self.orchestrator.is_counted_on:
                break
            await asyncio.sleep(PULSE_SECONDS)
        await self._broker.topics.settled()
        self._broker.topics.sweep()
        self.has_joined = True

    async def _catch_up(self) -> None:
        clock = self._broker.clock
        say_ms = clock.monotonic_ms() + WAITING_SAY_MS
        while True:
            try:
                await self._broker.metadata.caught_up()
            except QuorumBusyError as error:
                logger.debug("not caught up yet: %s", error)
                if clock.monotonic_ms() >= say_ms:
                    say_ms = clock.monotonic_ms() + WAITING_SAY_AGAIN_MS
                    logger.warning("clients are not served yet: %s", self._missing_voters() or error)
                await asyncio.sleep(PULSE_SECONDS)
            else:
                self._listen()
                self._broker.topics.follow()
                return

    def _missing_voters(self) -> str:
        """Why the metadata quorum cannot agree on anything, if it is for want of brokers."""
        members = self._broker.metadata.members
        there = {each for each in members.voters if each.broker_id in (self._broker.id, *self._up)}
        if not members.voters or members.is_majority(there):
            return ""  # A blank broker has not heard yet who they are.
        names = [", ".join(str(each.broker_id) for each in sorted(some)) for some in (members.voters, there)]
        return (
            f"the metadata quorum of brokers {names[0]} needs a majority, of which are here: {names[1] or 'none'}; "
            "start the others."
        )


def _say_failure(joining: "asyncio.Task[None]") -> None:
    if not joining.cancelled() and joining.exception() is not None:
        logger.error("this broker cannot join its cluster: restart it", exc_info=joining.exception())
