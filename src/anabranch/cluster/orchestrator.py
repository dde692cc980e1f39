"""What the leader of the metadata quorum does next for its cluster. It is told who was heard; it says what to commit.

    heard(beat) ...  ->  step(cluster, now)  ->  [Fence, ChangeMembers, BeginMove, ...]

The memory here belongs to one leadership: a new leader begins with an empty one, and grants everybody a full session
before it fences anybody. Nothing here is kept on disk, and nothing needs to be: what was decided is in the table.

Voters: one of 1 or 2 brokers, three of 3 to 6, five of 7 and more; the others are learners. A voter comes only when it
has caught up, and goes only where a majority of those that stay is alive. One voter at a time; from an odd number to
the next even one only when the one after that is ready too, because of two voters both must live.

Moves: partitions of a topic whose number of replicas nobody chose get more when brokers join; those of a broker that
drains, or is no longer registered, move away; a topic whose mode was changed gets the copies of the new one. The move
itself is the work of the partition's leader.

Forms (`metadata/residence.py`): partitions that shall go over to the object store are told to, as a move to nobody;
those that shall come back from it do so by one entry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from anabranch.cluster.metadata.residence import KEPT, STORED, form_in
from anabranch.cluster.metadata.rows import STORE, BrokerRow, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.placement import (
    RING,
    SOLO,
    Replicas,
    default_factor,
    factor_in,
    ring_of,
    ring_replicas,
    walk,
)
from anabranch.cluster.raft.messages import Member, Members
from anabranch.values import BrokerId

SESSION_MS = 3000
"""A broker that is not heard for this long is fenced."""
BEAT_MS = 500
HEARD_ROUND_MS = BEAT_MS + 100
"""In this time everybody who lives has said so again, and whether it is leaving too."""
SETTLED_MS = 3000
"""Brokers often join in a row: partitions grow once for all of them."""
MOVES_AT_ONCE_MAX = 4
LEAVING_AT_ONCE_MAX = 4
"""Partitions that are copied to the object store at the same time."""
CHANGES_PER_STEP_MAX = 16
"""Each is an entry, for which everything else waits."""
MOVE_PATIENCE_MS = 30_000
"""A move to a broker that is silent for so long is given up for another."""


# --- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """Enter in the table that a broker is not to be counted on, or is again."""

    broker_id: BrokerId
    epoch: int
    is_fenced: bool


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    members: Members


@dataclass(frozen=True, slots=True)
class HandOver:
    """This leader is leaving: let that voter take over."""

    to: Member


@dataclass(frozen=True, slots=True)
class BeginMove:
    topic: Topic
    partition: int
    target: Replicas | None
    """None: call the present one off."""
    instead_of: Replicas | None = None
    """The target so far."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Let these brokers keep a partition that is in the object store, from its end on."""

    topic: Topic
    partition: int
    replicas: Replicas


Action = Fence | ChangeMembers | HandOver | BeginMove | Keep


# --- what is known ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Session:
    """What a broker said last."""

    epoch: int
    heard_ms: int
    applied_end: int = 0
    stopping_since_ms: int | None = None
    caught_up_ms: int | None = None
    """When it last had everything that was committed."""

    @property
    def is_stopping(self) -> bool:
        return self.stopping_since_ms is not None


@dataclass(frozen=True, slots=True)
class Cluster:
    """What everybody agrees on, as the leader has it now."""

    table: MetadataTable
    members: Members
    applied_end: int
    """Of the leader: what a broker must have to have caught up."""
    me: Member
    default_factor: int = 0


@dataclass(slots=True)
class Orchestrator:
    """The memory of one leadership, which began at `since_ms`."""

    since_ms: int
    sessions: dict[BrokerId, Session] = field(default_factory=dict)
    _settled_since_ms: int = 0
    _keepers: frozenset[BrokerId] = frozenset()
    _looked_at: tuple[int, frozenset[BrokerId], frozenset[BrokerId]] | None = None

    # --- hearing

    def heard(
        self, row: BrokerRow, applied_end: int, committed_end: int, now_ms: int, *, is_stopping: bool
    ) -> Session:
        """A beat of the broker that is registered with this row."""
        session = self.sessions.get(row.broker_id)
        if session is None or session.epoch != row.epoch:
            session = self.sessions[row.broker_id] = Session(row.epoch, now_ms)
        session.heard_ms = now_ms
        session.applied_end = max(session.applied_end, applied_end)
        if not is_stopping:
            session.stopping_since_ms = None
        elif session.stopping_since_ms is None:
            session.stopping_since_ms = now_ms
        if applied_end >= committed_end:
            session.caught_up_ms = now_ms
        return session

    def is_alive(self, row: BrokerRow, now_ms: int) -> bool:
        """Heard within the session, or not yet silent for as long as this leadership grants everybody."""
        session = self.sessions.get(row.broker_id)
        since_ms = self.since_ms if session is None or session.epoch != row.epoch else session.heard_ms
        return now_ms - since_ms < SESSION_MS

    def _has_said(self, row: BrokerRow, now_ms: int) -> Session | None:
        """Its session, if it was really heard and is not leaving."""
        session = self.sessions.get(row.broker_id)
        if session is None or session.epoch != row.epoch or session.is_stopping:
            return None
        return session if now_ms - session.heard_ms < SESSION_MS else None

    def _is_lost(self, row: BrokerRow, now_ms: int) -> bool:
        session = self.sessions.get(row.broker_id)
        heard_ms = self.since_ms if session is None else session.heard_ms
        return row.is_fenced and now_ms - heard_ms >= MOVE_PATIENCE_MS

    # --- deciding

    def step(self, cluster: Cluster, now_ms: int) -> list[Action]:
        """In the order in which they are to be done. What cannot be done now is decided anew at the next step."""
        actions: list[Action] = list(self._fences(cluster, now_ms))
        members = self._members(cluster, now_ms)
        if members is not None:
            actions.append(ChangeMembers(members))
        hand_over = self._hand_over(cluster, now_ms)
        if hand_over is not None:
            actions.append(hand_over)
        actions += self._form_changes(cluster, now_ms)
        actions += self._moves(cluster, now_ms)
        return actions

    # --- fencing

    def _fences(self, cluster: Cluster, now_ms: int) -> Iterator[Fence]:
        for row in cluster.table.brokers.values():
            is_fenced = self._should_be_fenced(cluster, row, now_ms)
            if is_fenced != row.is_fenced:
                yield Fence(row.broker_id, row.epoch, is_fenced)

    def _should_be_fenced(self, cluster: Cluster, row: BrokerRow, now_ms: int) -> bool:
        if member_of(row) == cluster.me:
            return False  # Whoever can commit this is alive; a leader that leaves hands over first.
        if not row.is_fenced:
            session = self.sessions.get(row.broker_id)
            leaves = session is not None and session.epoch == row.epoch and session.is_stopping
            return leaves or not self.is_alive(row, now_ms)
        said = self._has_said(row, now_ms)
        # It must know its own registration, or it would serve what it has not heard of.
        return said is None or said.applied_end <= row.epoch

    # --- members of the quorum

    def _members(self, cluster: Cluster, now_ms: int) -> Members | None:
        """The next change of the members, if one is due."""
        current = cluster.members
        known = {member_of(row): row for row in cluster.table.brokers.values()}
        voters = self._next_voters(cluster, known, now_ms)
        learners = frozenset(known) - voters
        wanted = Members(voters, learners)
        return None if wanted == current else wanted

    def _next_voters(
        self, cluster: Cluster, known: Mapping[Member, BrokerRow], now_ms: int
    ) -> frozenset[Member]:
        voters = cluster.members.voters
        stale = voters - known.keys()
        ready = self._ready(cluster, known, now_ms)
        wanted = voters_wanted(len(known))
        for gone in sorted(stale - {cluster.me}):
            if self._is_safe(voters - {gone}, cluster, known, now_ms):
                return voters - {gone}
        sound = len(voters) - len(stale)
        if ready and sound < wanted and (len(voters) % 2 == 0 or len(ready) > 1 or stale):
            return self._with_one_more(voters, ready, cluster, known, now_ms)
        if cluster.me in stale and sound > 0 and self._is_safe(voters - stale, cluster, known, now_ms):
            return voters - {cluster.me}
        if len(voters) > wanted and not stale:
            return self._with_one_less(voters, cluster, known, now_ms)
        return voters

    def _ready(self, cluster: Cluster, known: Mapping[Member, BrokerRow], now_ms: int) -> list[Member]:
        """Learners that could be voters at once."""
        return [
            member
            for member in sorted(cluster.members.learners & known.keys())
            if self._could_vote(cluster, known[member], now_ms)
        ]

    def _could_vote(self, cluster: Cluster, row: BrokerRow, now_ms: int) -> bool:
        said = self._has_said(row, now_ms)
        return (
            said is not None
            and not row.is_fenced
            and not row.is_draining
            and said.caught_up_ms is not None
            and now_ms - said.caught_up_ms < SESSION_MS
        )

    def _with_one_more(
        self,
        voters: frozenset[Member],
        ready: list[Member],
        cluster: Cluster,
        known: Mapping[Member, BrokerRow],
        now_ms: int,
    ) -> frozenset[Member]:
        racks = {known[voter].rack for voter in voters & known.keys() if known[voter].rack is not None}
        best = next((member for member in ready if known[member].rack not in racks), ready[0])
        wanted = voters | {best}
        return wanted if self._is_safe(wanted, cluster, known, now_ms) else voters

    def _with_one_less(
        self,
        voters: frozenset[Member],
        cluster: Cluster,
        known: Mapping[Member, BrokerRow],
        now_ms: int,
    ) -> frozenset[Member]:
        """Those that are fenced or leaving go first, then the greatest id; never the leader itself."""

        def worth(member: Member) -> tuple[bool, bool, int]:
            row = known[member]
            return (
                not row.is_fenced and self.is_alive(row, now_ms),
                not row.is_draining,
                -row.broker_id,
            )

        for least in sorted(voters - {cluster.me}, key=worth):
            if self._is_safe(voters - {least}, cluster, known, now_ms):
                return voters - {least}
        return voters

    def _is_safe(
        self,
        voters: frozenset[Member],
        cluster: Cluster,
        known: Mapping[Member, BrokerRow],
        now_ms: int,
    ) -> bool:
        """With these voters, more than half would be alive."""
        alive = [
            voter
            for voter in voters
            if voter == cluster.me or (voter in known and self._has_said(known[voter], now_ms) is not None)
        ]
        return len(alive) * 2 > len(voters)

    def _hand_over(self, cluster: Cluster, now_ms: int) -> HandOver | None:
        """A leader that is stopping leaves its office to whoever knows most, once it has heard who else is stopping."""
        mine = self.sessions.get(BrokerId(cluster.me.broker_id))
        if mine is None or mine.stopping_since_ms is None:
            return None
        if now_ms - mine.stopping_since_ms < HEARD_ROUND_MS:
            return None
        heirs = self.heirs(cluster, now_ms)
        return HandOver(heirs[-1]) if heirs else None

    def heirs(self, cluster: Cluster, now_ms: int) -> list[Member]:
        """Voters that live and stay, the one that knows most last."""
        rows = {member_of(row): row for row in cluster.table.brokers.values()}
        heirs = [
            (said.applied_end, voter)
            for voter in sorted(cluster.members.voters - {cluster.me})
            if voter in rows and (said := self._has_said(rows[voter], now_ms)) is not None
        ]
        return [voter for _, voter in sorted(heirs)]

    # --- forms

    def _form_changes(self, cluster: Cluster, now_ms: int) -> list[Action]:
        """What partitions still have to do to have the form that their topic's mode wants."""
        changing = [topic for _, topic in sorted(cluster.table.topics.items()) if topic.forms]
        if not changing:
            return []
        leaving = sum(
            placement.leaves_for_store for topic in changing for placement in cluster.table.placements(topic)
        )
        changes: list[Action] = []
        for topic in changing:
            for partition, placement in enumerate(cluster.table.placements(topic)):
                change = self._form_change(cluster, topic, partition, placement, now_ms)
                if isinstance(change, BeginMove) and change.target == STORE:
                    leaving += 1
                    if leaving > LEAVING_AT_ONCE_MAX:
                        continue
                if change is not None:
                    changes.append(change)
        return changes[:CHANGES_PER_STEP_MAX]

    def _form_change(
        self, cluster: Cluster, topic: Topic, partition: int, placement: Placement, now_ms: int
    ) -> Action | None:
        if topic.is_stored(partition):
            # Into branches, too, the way leads through brokers that keep it.
            is_wanted = form_in(topic.mode) != STORED
            replicas = self._keepers_of(cluster, topic, partition, now_ms) if is_wanted else ()
            return Keep(topic, partition, replicas) if replicas else None
        if topic.is_branched(partition):
            return None  # Whoever reigns over it brings it out of branches.
        if topic.is_object and not placement.leaves_for_store:
            return BeginMove(topic, partition, STORE, placement.target)
        if topic.is_branch and not placement.leaves_for_branches:
            return BeginMove(topic, partition, placement.replicas, placement.target)
        return None

    def _keepers_of(self, cluster: Cluster, topic: Topic, partition: int, now_ms: int) -> Replicas:
        alive = [
            row
            for row in cluster.table.brokers.values()
            if not row.is_draining and not row.is_fenced and self._has_said(row, now_ms) is not None
        ]
        count = factor_in(topic.mode, default_factor(cluster.default_factor, len(alive)), len(alive))
        return ring_replicas(topic.name, partition, topic.partition_count, alive, count) if alive else ()

    # --- moves

    def _moves(self, cluster: Cluster, now_ms: int) -> list[BeginMove]:
        rows = [
            replace(row, is_fenced=row.is_fenced or self._has_said(row, now_ms) is None)
            for row in cluster.table.brokers.values()
            if not row.is_draining
        ]
        keepers = frozenset(row.broker_id for row in rows if not row.is_fenced)
        if keepers != self._keepers:
            self._keepers, self._settled_since_ms = keepers, now_ms
        if now_ms - self._settled_since_ms < SETTLED_MS:
            return []
        lost = frozenset(row.broker_id for row in rows if self._is_lost(row, now_ms))
        looked_at = (cluster.applied_end, keepers, lost)
        if looked_at == self._looked_at:
            return []
        under_way = sum(
            placement.target is not None and not placement.is_closing
            for topic in _topics(cluster)
            for placement in topic.placements
        )
        moves: list[BeginMove] = list(_moves_given_up(cluster, rows, lost))
        for move in _moves_wanted(cluster, rows):
            if under_way + len(moves) >= MOVES_AT_ONCE_MAX:
                break
            moves.append(move)
        else:
            self._looked_at = None if moves else looked_at
        return moves


def voters_wanted(broker_count: int) -> int:
    if broker_count >= 7:
        return 5
    return 3 if broker_count >= 3 else 1


def member_of(row: BrokerRow) -> Member:
    return Member(row.broker_id, row.directory_id)


def _topics(cluster: Cluster) -> list[Topic]:
    """Those that brokers keep: of what every broker has open there is nothing to move."""
    return [topic for _, topic in sorted(cluster.table.topics.items()) if topic.is_placed]


def _moves_wanted(cluster: Cluster, rows: list[BrokerRow]) -> Iterator[BeginMove]:
    staying = {row.broker_id for row in rows}
    alive = {row.broker_id for row in rows if not row.is_fenced}
    for topic in _topics(cluster):
        for partition, placement in enumerate(cluster.table.placements(topic)):
            if placement.target is not None or topic.form(partition) != KEPT:
                continue
            count = _copies_wanted(cluster, topic, placement, len(alive))
            if len(placement.replicas) == count and staying.issuperset(placement.replicas):
                continue
            ring = ring_of(topic.name, partition, topic.partition_count, rows)
            if count < len(placement.replicas):
                target = walk(ring, alive.intersection(placement.replicas), count)
                if alive.intersection(placement.replicas).issuperset(target):
                    yield BeginMove(topic, partition, target)
                continue
            target = walk(ring, placement.replicas, count)
            if _is_better(placement, target, staying):
                yield BeginMove(topic, partition, target)


def _copies_wanted(cluster: Cluster, topic: Topic, placement: Placement, broker_count: int) -> int:
    """Never fewer than there are, unless the topic was made solo."""
    now = len(placement.replicas)
    is_too_small = topic.mode == RING and now == 1
    if topic.mode != SOLO and topic.is_pinned and not is_too_small:
        return now
    usual = factor_in(topic.mode, default_factor(cluster.default_factor, broker_count), broker_count)
    return usual if topic.mode == SOLO else max(now, usual)


def _moves_given_up(
    cluster: Cluster, rows: list[BrokerRow], lost: frozenset[BrokerId]
) -> Iterator[BeginMove]:
    """Moves that wait for a broker that does not come back, or is leaving; others are decided on afterwards. What
    somebody has chosen stays as long as the broker is registered at all."""
    staying = {row.broker_id for row in rows}
    for topic in _topics(cluster):
        for partition, placement in enumerate(topic.placements):
            if placement.target is None or placement.is_closing:
                continue
            coming = set(placement.target) - set(placement.replicas)
            gone = coming - cluster.table.brokers.keys()
            if gone or (not topic.is_pinned and (coming - staying or coming & lost)):
                yield BeginMove(topic, partition, None, placement.target)


def _is_better(placement: Placement, target: Replicas, staying: set[BrokerId]) -> bool:
    """More copies, or as many of them on brokers that stay: a drained broker's only copy is not simply dropped."""
    if len(target) > len(placement.replicas):
        return True
    leaves = not staying.issuperset(placement.replicas)
    return leaves and len(target) == len(placement.replicas)
