"""Recovery: lets a ring go on that its own rules cannot give a leader any more (rule 7), and says what is lost by it.

Done by the leader of the metadata quorum, which asks every replica what it has and, if the loss is accepted, commits a
forced view: the best log alone, which leads at once, and a move that gives the partition as many copies as it had. What
was found and what is given up is told in sentences, whether anything is done or not.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.peers.messages import LookAtReplica, ReplicaSeen
from anabranch.broker.ring.driver import ring_driver
from anabranch.cluster.metadata.entries import forced_boundary_entry
from anabranch.cluster.metadata.rows import Placement, Topic
from anabranch.cluster.placement import ring_of, walk
from anabranch.errors import (
    ElectionNotNeededError,
    NotOwnerError,
    PeerError,
    PreferredLeaderNotAvailableError,
    RequestTimedOutError,
    StorageError,
)
from anabranch.modes.generations import Generations, Row
from anabranch.modes.ring.recovery import (
    Seen,
    best_of,
    can_lead_again,
    given_up,
    gone_for_good,
    last_generation,
)
from anabranch.values import BrokerId, Generation, Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

logger = logging.getLogger(__name__)

LOOK_MS = 2000
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of one partition."""

    topic: Topic
    partition: int
    placement: Placement
    seen: dict[BrokerId, Seen]
    directories: dict[BrokerId, str]
    silent: dict[BrokerId, str]
    """Who did not answer, and why."""

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def best(self) -> BrokerId:
        return best_of(self.placement.replicas, self.seen)


class Recovery:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    # --- a broker that keeps the partition -----------------------------------------------------------------------

    def seen_here(self, topic_id: UUID, index: int) -> ReplicaSeen:
        """Raises NotOwnerError, StorageError."""
        partition = self._broker.topics.find_partition(topic_id, index)
        if partition is None:
            raise NotOwnerError("it keeps nothing of it")
        if partition.log.fenced:
            raise StorageError("its disk failed: restart it")
        log, ring = partition.log, ring_driver(partition)
        directory_id = self._broker.metadata.me.directory_id
        if ring is None:
            end, table = log.end_offset, Generations([Row(partition.generation, Offset(0))])
            return ReplicaSeen(
                directory_id, 0, partition.generation, table, log.start_offset, end, end, True, True
            )
        replica = ring.mode.replica
        return ReplicaSeen(
            directory_id,
            replica.kept.view,
            replica.kept.promised,
            replica.kept.table,
            log.start_offset,
            replica.synced_end,
            replica.safe,
            replica.kept.is_trusted,
            replica.is_led,
        )

    # --- the leader of the quorum --------------------------------------------------------------------------------

    async def look(self, name: str, index: int) -> Found:
        """Raises ElectionNotNeededError if it has a leader or gets one by itself, PreferredLeaderNotAvailableError if
        nobody has anything."""
        topic = self._broker.topics.check_index(name, index)
        placement = self._broker.metadata.table.placement(topic, index)
        answers = await asyncio.gather(*(self._ask(one, topic, index) for one in placement.replicas))
        found = Found(topic, index, placement, {}, {}, {})
        for broker_id, answer in zip(placement.replicas, answers, strict=True):
            if not isinstance(answer, ReplicaSeen):
                found.silent[broker_id] = answer
                continue
            if answer.view != placement.view:
                raise PreferredLeaderNotAvailableError(
                    f"Broker {broker_id} has not heard yet who keeps {found.name}: try again in a moment."
                )
            found.seen[broker_id] = _seen(answer)
            found.directories[broker_id] = answer.directory_id
        self._check(found)
        return found

    async def _ask(self, broker_id: BrokerId, topic: Topic, index: int) -> ReplicaSeen | str:
        """What it says, or why it says nothing."""
        try:
            if broker_id == self._broker.id:
                return self.seen_here(topic.topic_id, index)
            assert self._broker.peers is not None
            answer = await self._broker.peers.ask(broker_id, LookAtReplica(topic.topic_id, index), LOOK_MS)
        except (PeerError, NotOwnerError, StorageError) as error:
            return str(error)
        assert isinstance(answer, ReplicaSeen)
        return answer

    def _check(self, found: Found) -> None:
        if found.seen and can_lead_again(found.placement.replicas, found.seen):
            raise ElectionNotNeededError(
                f"{found.name} has a leader, or replicas that may agree on one: nothing has to be given up. Wait a "
                "moment, and look with `anabranch cluster ring`."
            )
        if not found.seen:
            reasons = "; ".join(f"broker {one}: {why}" for one, why in sorted(found.silent.items()))
            raise PreferredLeaderNotAvailableError(
                f"No replica of {found.name} can be asked what it has ({reasons}): start one of these brokers first."
            )

    async def recover_or_tell(self, name: str, index: int, timeout_ms: int, *, is_meant: bool) -> str:
        """What there is, and what is lost by going on with it; done only if that `is_meant`."""
        found = await self.look(name, index)
        message = told(found, self.target(found))
        if is_meant:
            logger.warning("going on although records may be lost: %s", message.replace("\n", " "))
            await self.recover(found, timeout_ms)
        return message

    async def recover(self, found: Found, timeout_ms: int) -> None:
        """Let the best log go on. Raises RequestTimedOutError if nobody leads in time: it is agreed on all the same."""
        metadata, placement, best = self._broker.metadata, found.placement, found.best
        view = placement.view + 1
        forced = Placement(
            (best,),
            (found.directories[best],),
            view,
            found.seen[best].end,
            max(placement.generation, last_generation(found.seen.values())),
            self.target(found),
        )
        async with metadata.lock:
            await metadata.commit(forced_boundary_entry(found.topic.topic_id, found.partition, forced))
        if not self._is_in(found, view, best):
            raise RequestTimedOutError(f"{found.name} has changed since it was looked at: look again.")
        end_ms = self._broker.clock.monotonic_ms() + timeout_ms
        while not self._is_led(found, forced.generation):
            if self._broker.clock.monotonic_ms() >= end_ms:
                raise RequestTimedOutError(
                    f"{found.name} goes on with what broker {best} has, and has no leader yet: look again."
                )
            await asyncio.sleep(PAUSE_SECONDS)

    def _is_led(self, found: Found, after: Generation) -> bool:
        leader = self._broker.leaders.of(found.topic.topic_id, found.partition)
        return leader.broker_id is not None and leader.generation > after

    def _is_in(self, found: Found, view: int, best: BrokerId) -> bool:
        table = self._broker.metadata.table
        topic = table.topics_by_id.get(found.topic.topic_id)
        if topic is None:
            return False
        placement = table.placement(topic, found.partition)
        return placement.view >= view and placement.is_kept_by(best)

    def target(self, found: Found) -> tuple[BrokerId, ...] | None:
        """Who shall keep it next: as many as before, without those that did not answer."""
        topic, placement = found.topic, found.placement
        rows = [row for row in self._broker.orchestrator.keepers() if row.broker_id not in found.silent]
        ring = ring_of(topic.name, found.partition, topic.partition_count, rows)
        count = max(len(placement.replicas), len(placement.target or ()))
        target = walk(ring, found.seen.keys(), count)
        return target if target not in ((), (found.best,)) else None


def _seen(answer: ReplicaSeen) -> Seen:
    return Seen(
        answer.view,
        answer.promised,
        answer.table,
        answer.start,
        answer.end,
        answer.safe,
        answer.is_trusted,
        answer.is_led,
    )


# --- in words ------------------------------------------------------------------------------------------------------


def told(found: Found, target: tuple[BrokerId, ...] | None) -> str:
    """What there is, what would go on, and what is lost by it: one sentence a line."""
    return "\n".join([*_what_there_is(found), *_what_goes_on(found, target), *_what_is_lost(found)])


def _what_there_is(found: Found) -> Iterator[str]:
    for broker_id in found.placement.replicas:
        if broker_id in found.silent:
            yield f"Broker {broker_id} says nothing: {found.silent[broker_id]}."
            continue
        one = found.seen[broker_id]
        doubt = "" if one.is_trusted else "; it may lack records that it once had"
        yield f"Broker {broker_id} has {_records(one)}{doubt}."


def _records(one: Seen) -> str:
    if one.start >= one.end:
        return "no records"
    return f"offsets {one.start} to {one.end - 1}, the last of generation {one.table.last}"


def _what_goes_on(found: Found, target: tuple[BrokerId, ...] | None) -> Iterator[str]:
    copies = f"; copies follow on brokers {', '.join(map(str, target))}" if target else ""
    yield f"{found.name} goes on with what broker {found.best} has{copies}."


def _what_is_lost(found: Found) -> Iterator[str]:
    best = found.seen[found.best]
    lost = gone_for_good(best, found.seen.values())
    if lost is not None:
        yield f"Lost for good: offsets {lost[0]} to {lost[1] - 1}, which were acknowledged."
    for broker_id, one in found.seen.items():
        dropped = given_up(best, one) if broker_id != found.best else None
        if dropped is not None:
            yield (
                f"Given up: offsets {dropped[0]} to {dropped[1] - 1} of broker {broker_id}, which broker {found.best} "
                "does not have, or has otherwise."
            )
    doubted = [broker_id for broker_id, one in found.seen.items() if not one.is_trusted]
    others = " and ".join(f"broker {broker_id}" for broker_id in doubted if broker_id != found.best)
    if others:
        yield f"What {others} once had besides that is lost, if there was anything: nobody knows."
    if not best.is_trusted:
        yield f"What broker {found.best} itself may lack nobody knows."
    if found.silent:
        away = ", ".join(str(broker_id) for broker_id in found.silent)
        yield (
            f"What only broker {away} had is lost for good, and thrown away should it come back: if its disk lives, "
            "start it instead."
        )
