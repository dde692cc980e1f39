"""Orchestrator: this broker's place in its cluster, and on the leader of the metadata quorum everybody's.

Every broker registers (its row in the table gets a new epoch each time it starts), beats to the leader every
`BEAT_MS`, and keeps links to whom the table names. A broker that is not answered for a session takes itself for cut
off. The leader remembers who was heard and carries out what `cluster.orchestrator` decides: fences, members of the
quorum, moves. All of it happens in `pulse`, which the broker's timer calls; what takes longer runs as one task of its
kind, and is decided anew by a later pulse if it fails.

A node without peers has none of this, only the Membership below it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from anabranch.broker.metadata.membership import Membership
from anabranch.broker.metadata.registration import registration
from anabranch.broker.peers.messages import (
    BeatAnswer,
    BrokerBeat,
    ProducerIdBlock,
    ProducerIds,
    RegisterBroker,
    Registered,
)
from anabranch.cluster.metadata.entries import (
    Entry,
    broker_entry,
    broker_fenced_entry,
    keep_entry,
    move_entry,
)
from anabranch.cluster.metadata.rows import BrokerRow
from anabranch.cluster.orchestrator import (
    BEAT_MS,
    SESSION_MS,
    Action,
    BeginMove,
    ChangeMembers,
    Cluster,
    Fence,
    HandOver,
    Keep,
    Session,
)
from anabranch.cluster.orchestrator import Orchestrator as Memory
from anabranch.config import host_and_port
from anabranch.errors import (
    DuplicateBrokerError,
    InvalidRequestError,
    NotControllerError,
    PeerError,
    QuorumBusyError,
    StorageError,
    UnknownBrokerError,
)
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ASK_MS_MAX = 2000
REGISTER_MS_MAX = 6000
"""A registration is committed before it is answered, which takes a while where disks are busy. Who asked again sooner
would be given another epoch each time and never hear of one; a leader that is gone is noticed by its link."""
REGISTER_AGAIN_MS = 500
LEAVE_MS_MAX = 2500
"""Enough for another leader to be elected."""
LEAVE_PAUSE_SECONDS = 0.05
NAME_LENGTH_MAX = 255
PORT_MAX = 65_535

logger = logging.getLogger(__name__)


class Orchestrator(Membership):
    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker)
        self._memory: Memory | None = None
        """Of this leadership; None: another broker leads."""
        self._term = -1
        self._tried_ms = self._beaten_ms = -BEAT_MS
        self._answered_ms: int | None = None
        self._may_stop = False
        self._joined: list[BrokerId] = []
        self._asked_anybody = 0
        self._asked_to_join = -1
        self._complaint = ""
        self._metadata.subscribe(self._follow)

    # --- this broker -----------------------------------------------------------------------------------------------

    @property
    def is_counted_on(self) -> bool:
        """The table has this start of the broker, and not as a silent one."""
        row = self._metadata.table.brokers.get(self._me)
        return row is not None and row.epoch == self._epoch and not row.is_fenced

    def is_cut_off(self, now_ms: int) -> bool:
        """No leader has answered this broker for a session."""
        if self._broker.peers is None or self._metadata.is_leader:
            return False
        return self._answered_ms is None or now_ms - self._answered_ms >= SESSION_MS

    def session(self, broker_id: BrokerId) -> Session | None:
        """What a broker said last, as the leader of the quorum remembers it."""
        return self._memory.sessions.get(broker_id) if self._memory is not None else None

    def _own_row(self) -> BrokerRow:
        own = self._registration()
        return BrokerRow(
            self._me,
            own.directory_id,
            0,
            own.host,
            own.port,
            own.peer_host,
            own.peer_port,
            own.rack,
        )

    def _registration(self) -> RegisterBroker:
        settings, broker = self._broker.settings, self._broker
        bound = broker.bound or host_and_port(settings.listen)
        assert settings.peer_listen is not None, "only a broker with a peer port has peers"
        peers_bound = broker.peers_bound or host_and_port(settings.peer_listen)
        return registration(settings, self._metadata.me.directory_id, bound, peers_bound)

    def connect(self) -> None:
        """Keep links to whom the table names."""
        if self._broker.peers is not None:
            self._broker.peers.connect(
                {
                    row.broker_id: (row.peer_host, row.peer_port)
                    for row in self._metadata.table.brokers.values()
                    if row.broker_id != self._me and row.peer_port
                }
            )

    def _follow(self, offset: Offset, entry: Entry | None) -> None:
        if entry is None or entry["type"] in ("broker", "broker-removed"):
            self.connect()

    async def asked(
        self, question: RegisterBroker | BrokerBeat | ProducerIdBlock
    ) -> Registered | BeatAnswer | ProducerIds:
        """What other brokers ask of the leader of the metadata quorum."""
        match question:
            case RegisterBroker():
                return await self.registered(question)
            case BrokerBeat():
                return self.beaten(question)
            case ProducerIdBlock():
                return ProducerIds(*await self._broker.producer_ids.reserve())

    # --- the pulse -----------------------------------------------------------------------------------------------

    def pulse(self, now_ms: int) -> None:
        """A few times per `BEAT_MS`, by the monotonic clock; only on a node with peers."""
        assert self._broker.peers is not None
        if self._is_over:
            return
        if self._metadata.is_leader:
            self._lead(now_ms)
        else:
            self._memory = None
        if self._epoch is None:
            if now_ms - self._tried_ms >= REGISTER_AGAIN_MS:
                self._tried_ms = now_ms
                self._begin("register", self._register())
        elif now_ms - self._beaten_ms >= BEAT_MS or self.is_stopping or not self.is_counted_on:
            self._beaten_ms = now_ms
            self._begin("beat", self._beat(now_ms))

    # --- every broker: registering and beating -------------------------------------------------------------------

    async def _register(self) -> None:
        question = self._registration()
        try:
            if self._metadata.is_leader:
                self._epoch = (await self.registered(question)).epoch
                return
            answer = await self._ask_leader(question)
        except (PeerError, NotControllerError, QuorumBusyError, StorageError, DuplicateBrokerError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.warning("broker %d is not registered yet, and tries again: %s", self._me, error)
            return
        assert isinstance(answer, Registered)
        self._epoch = answer.epoch
        logger.info("broker %d is registered with epoch %d", self._me, answer.epoch)

    async def _ask_leader(self, question: RegisterBroker | BrokerBeat) -> object:
        peers = self._broker.peers
        assert peers is not None
        leader = self._metadata.leader_id
        patience_ms = REGISTER_MS_MAX if isinstance(question, RegisterBroker) else ASK_MS_MAX
        if leader is not None and leader != self._me and peers.is_up(leader):
            return await peers.ask(leader, question, patience_ms)
        if isinstance(question, BrokerBeat):
            raise NotControllerError("No leader of the metadata quorum is known.")
        return await peers.ask(await self._anybody(), question, patience_ms)

    async def _anybody(self) -> BrokerId:
        """A broker that may know more than this one does: each in turn, for those that are joining themselves know
        nothing either, and then those named by peer.join."""
        peers = self._broker.peers
        assert peers is not None
        peering = self._broker.peering
        linked: list[BrokerId] = peering.linked if peering is not None else []
        known = dict.fromkeys([*self._joined, *linked, *self._metadata.table.brokers])
        reached = [each for each in known if each != self._me and peers.is_up(each)]
        turn = self._asked_anybody % (len(reached) + 1)
        self._asked_anybody += 1
        if turn < len(reached):
            return reached[turn]
        reasons = []
        addresses = self._broker.settings.peer_join
        # Those who vote have to find each other, though the first of these may know nobody.
        self._asked_to_join += 1
        first = self._asked_to_join % max(1, len(addresses))
        for address in (*addresses[first:], *addresses[:first]):
            try:
                hello = await peers.join(host_and_port(address))
            except PeerError as error:
                reasons.append(f"{address}: {error}")
                continue
            if hello.broker_id == self._me:
                reasons.append(f"{address} is this broker itself")
                continue
            self._joined = [hello.broker_id]
            return hello.broker_id
        raise NotControllerError("; ".join(reasons) or "No broker of the cluster can be reached.")

    async def _beat(self, now_ms: int) -> None:
        assert self._epoch is not None
        beat = BrokerBeat(self._me, self._epoch, self._metadata.applied_end, self.is_stopping)
        try:
            answer = self.beaten(beat) if self._metadata.is_leader else await self._ask_leader(beat)
        except UnknownBrokerError:
            self._epoch = None
            return
        except (PeerError, NotControllerError) as error:
            if getattr(error, "kind", "") == UnknownBrokerError.__name__:
                self._epoch = None
            return
        assert isinstance(answer, BeatAnswer)
        self._answered_ms = now_ms
        self._may_stop = answer.may_stop

    async def leave(self, wait_ms_max: int = LEAVE_MS_MAX) -> None:
        """Before this broker stops: hand the quorum's leadership over, and be fenced, so that nobody counts on it."""
        self.is_stopping = True
        if self._broker.peers is None:
            return
        clock = self._broker.clock
        end_ms = clock.monotonic_ms() + wait_ms_max
        while not self._may_stop and clock.monotonic_ms() < end_ms:
            self.pulse(clock.monotonic_ms())
            if self._epoch is None or not self._is_missed(clock.monotonic_ms()):
                break
            await asyncio.sleep(LEAVE_PAUSE_SECONDS)

    def _is_missed(self, now_ms: int) -> bool:
        """Somebody is left who could take note of it: another voter that stays, or a quorum that agrees."""
        if self._metadata.is_leader:
            return bool(self._remembered().heirs(self._cluster(), now_ms))
        peers, members = self._broker.peers, self._metadata.members
        assert peers is not None
        there = {
            each
            for each in members.voters
            if each == self._metadata.me or peers.is_up(BrokerId(each.broker_id))
        }
        return members.is_majority(there)

    # --- the leader: hearing -------------------------------------------------------------------------------------

    async def registered(self, question: RegisterBroker) -> Registered:
        """Enter a broker in the table. Raises DuplicateBrokerError, NotControllerError."""
        _check(question)
        if not self._metadata.is_leader:
            return await self._registered_elsewhere(question)
        async with self._metadata.lock:
            self._check_free(question)
            row = BrokerRow(
                question.broker_id,
                question.directory_id,
                0,
                question.host,
                question.port,
                question.peer_host,
                question.peer_port,
                question.rack,
                is_fenced=question.broker_id
                != self._me,  # Until it is heard to know of its own registration.
            )
            epoch = await self._metadata.commit(broker_entry(row))
        return Registered(epoch)

    async def _registered_elsewhere(self, question: RegisterBroker) -> Registered:
        """A broker that joins may ask anybody."""
        leader, peers = self._metadata.leader_id, self._broker.peers
        if leader is None or peers is None or leader in (self._me, question.broker_id):
            raise NotControllerError("There is no leader of the metadata quorum at the moment: try again.")
        answer = await peers.ask(leader, question, REGISTER_MS_MAX)
        assert isinstance(answer, Registered)
        return answer

    def _check_free(self, question: RegisterBroker) -> None:
        known = self._metadata.table.brokers.get(question.broker_id)
        if known is None or known.directory_id == question.directory_id:
            return
        now_ms = self._broker.clock.monotonic_ms()
        is_here = known.broker_id == self._me
        if is_here or (self._memory is not None and self._memory.is_alive(known, now_ms)):
            raise DuplicateBrokerError(
                f"There is a broker {known.broker_id} at {known.host}:{known.port} with another disk, and it lives: "
                f"start this one with another --broker-id, or stop that one and wait {SESSION_MS // 1000} s."
            )

    def beaten(self, beat: BrokerBeat) -> BeatAnswer:
        """A broker is alive. Raises UnknownBrokerError: it must register (again); NotControllerError."""
        if not self._metadata.is_leader:
            raise NotControllerError("This broker does not lead the metadata quorum.")
        row = self._metadata.table.brokers.get(beat.broker_id)
        if row is None or row.epoch != beat.epoch:
            raise UnknownBrokerError(f"Broker {beat.broker_id} is not registered with epoch {beat.epoch}.")
        memory, now_ms = self._remembered(), self._broker.clock.monotonic_ms()
        memory.heard(row, beat.applied_end, self._metadata.applied_end, now_ms, is_stopping=beat.is_stopping)
        return BeatAnswer(row.is_fenced, beat.is_stopping and row.is_fenced)

    # --- the leader: deciding ------------------------------------------------------------------------------------

    def _remembered(self) -> Memory:
        """What is remembered of others begins with the leadership."""
        if self._memory is None or self._term != self._metadata.term:
            self._memory = Memory(self._broker.clock.monotonic_ms())
            self._term = self._metadata.term
        return self._memory

    def _lead(self, now_ms: int) -> None:
        memory = self._remembered()
        own = self._metadata.table.brokers.get(self._me)
        if own is not None:
            end = self._metadata.applied_end
            memory.heard(own, end, end, now_ms, is_stopping=self.is_stopping)
        if "lead" in self._tasks:
            return
        actions = memory.step(self._cluster(), now_ms)
        if actions:
            self._begin("lead", self._carry_out(actions))

    def _cluster(self) -> Cluster:
        return Cluster(
            self._metadata.table,
            self._metadata.members,
            self._metadata.applied_end,
            self._metadata.me,
            self._broker.settings.default_replication_factor,
        )

    async def _carry_out(self, actions: list[Action]) -> None:
        try:
            for action in actions:
                await self._do(action)
        except (NotControllerError, QuorumBusyError, StorageError) as error:
            logger.info("decided anew in a moment: %s", error)

    async def _do(self, action: Action) -> None:
        match action:
            case Fence():
                await self._fence(action)
            case BeginMove():
                await self._begin_move(action)
            case Keep():
                await self._keep(action)
            case ChangeMembers():
                logger.info("the metadata quorum: %s", _described(action))
                await self._metadata.change_members(action.members)
            case HandOver():
                self._metadata.transfer(action.to)

    async def _fence(self, fence: Fence) -> None:
        async with self._metadata.lock:
            row = self._metadata.table.brokers.get(fence.broker_id)
            if row is None or row.epoch != fence.epoch or row.is_fenced == fence.is_fenced:
                return
            logger.info(
                "broker %d is %s", row.broker_id, "fenced: it is silent" if fence.is_fenced else "back"
            )
            await self._metadata.commit(
                broker_fenced_entry(fence.broker_id, fence.epoch, is_fenced=fence.is_fenced)
            )

    async def _begin_move(self, move: BeginMove) -> None:
        async with self._metadata.lock:
            topic = self._metadata.table.topics_by_id.get(move.topic.topic_id)
            if topic is None:
                return
            if self._metadata.table.placement(topic, move.partition).target != move.instead_of:
                return  # Somebody has decided otherwise meanwhile.
            await self._metadata.commit(move_entry(topic.topic_id, move.partition, move.target))

    async def _keep(self, keep: Keep) -> None:
        """It is checked when it is applied: a topic that has gone, or is to stay in the store after all, stays so."""
        async with self._metadata.lock:
            topic, brokers = keep.topic, ", ".join(map(str, keep.replicas))
            logger.info("%s-%d leaves the object store for brokers %s", topic.name, keep.partition, brokers)
            await self._metadata.commit(keep_entry(topic.topic_id, keep.partition, keep.replicas))


def _check(question: RegisterBroker) -> None:
    names = question.host, question.peer_host, question.directory_id
    if not all(0 < len(name) <= NAME_LENGTH_MAX for name in names):
        raise InvalidRequestError("A broker registers with its addresses and its directory id.")
    if not (0 < question.port <= PORT_MAX and 0 < question.peer_port <= PORT_MAX):
        raise InvalidRequestError(f"A port is 1 to {PORT_MAX}.")


def _described(change: ChangeMembers) -> str:
    voters = ", ".join(str(each.broker_id) for each in sorted(change.members.voters))
    learners = ", ".join(str(each.broker_id) for each in sorted(change.members.learners))
    return f"voters {voters}; learners {learners or 'none'}"
