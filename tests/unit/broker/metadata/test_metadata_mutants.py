"""Metadata logs that break one rule each: the world of `metadata_world` must notice every one of them."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.metadata import metadata_log
from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.broker.metadata.quorum_store import QuorumState, QuorumStore
from anabranch.broker.metadata.quorum_writer import QuorumWriter
from anabranch.cluster.raft.messages import AskVote, GiveVote, Snapshot
from anabranch.cluster.raft.quorum import Ready
from anabranch.errors import CorruptDataError, QuorumBusyError
from anabranch.log.log import Log
from anabranch.values import Offset
from support.metadata_world import World, in_world

SEEDS_MAX = 60

Patch = Callable[[type, str, Any], None]
Mutant = Callable[[Patch], None]


def answers_before_the_sync(patch: Patch) -> None:
    real = QuorumWriter.take

    def take(self: QuorumWriter, ready: Ready) -> None:
        self._owner.send(ready.after)
        ready.after = []
        real(self, ready)

    patch(QuorumWriter, "take", take)


def counts_before_the_sync(patch: Patch) -> None:
    real = QuorumWriter._carry_out

    async def carry_out(self: QuorumWriter, group: list[Ready]) -> None:
        self._owner.persisted(group[-1].token)
        await real(self, group)

    patch(QuorumWriter, "_carry_out", carry_out)


def reads_without_a_quorum(patch: Patch) -> None:
    async def read_index(self: MetadataLog) -> Offset:
        self._check_leader()
        return self.commit_end

    patch(MetadataLog, "read_index", read_index)


def replaces_the_log_without_a_mark(patch: Patch) -> None:
    def replace_all(self: QuorumStore, snapshot: Snapshot, table: Any, log: Log) -> None:
        self.write_snapshot(snapshot, table)
        log.restart_at(Offset(snapshot.end))

    patch(QuorumStore, "replace_all", replace_all)


def forgets_its_term(patch: Patch) -> None:
    real = QuorumStore.write_state

    def write_state(self: QuorumStore, state: QuorumState) -> None:
        if not self._files.exists(self._state_path):
            real(self, state)

    patch(QuorumStore, "write_state", write_state)


async def trouble(world: World) -> None:
    await world.grow(3 if world.chance.random() < 0.5 else 5)
    world.loss = world.chance.choice([0, 0.02, 0.1])
    await world.trouble(500)
    await world.calm()


def is_caught(seed: int) -> bool:
    try:
        in_world(seed, trouble)
    except (AssertionError, CorruptDataError):
        return True
    return False


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (answers_before_the_sync, 11),
        (counts_before_the_sync, 0),
        (replaces_the_log_without_a_mark, 42),
        (forgets_its_term, 0),
    ],
)
def test_mutant_is_caught(mutant: Mutant, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`first`: the seed that has caught it before; a change of the code may make it another one soon after."""
    monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 8)
    mutant(monkeypatch.setattr)
    assert any(is_caught(seed) for seed in range(first, first + SEEDS_MAX))


def is_read_when_cut_off() -> bool:
    """Whether a leader that hears nobody answers a read."""
    answered = []

    async def test(world: World) -> None:
        await world.grow(3)
        old = await world.leader()
        assert old.metadata is not None
        world.split({old.id}, set(world.nodes) - {old.id})
        with contextlib.suppress(QuorumBusyError):
            await old.metadata.caught_up()
            answered.append(True)

    in_world(1, test)
    return bool(answered)


def test_mutant_that_reads_without_a_quorum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_read_when_cut_off()
    reads_without_a_quorum(monkeypatch.setattr)
    assert is_read_when_cut_off()


def votes_of_one_term() -> list[bool]:
    """What a member says to two who ask it in the same term, with a power cut in between."""
    votes: list[bool] = []

    async def test(world: World) -> None:
        await world.grow(3)
        node, *candidates = world.nodes.values()
        carried: list[object] = []
        world.carry = lambda sender, receiver, message: carried.append(message)  # type: ignore[method-assign]
        await asyncio.sleep(3)  # Nobody is heard any more.
        assert node.metadata is not None
        term = node.metadata.term + 5
        for candidate in candidates:
            carried.clear()
            ask = AskVote(candidate.member, node.member, term, 1000, term - 1, is_trial=False)
            node.metadata.heard(ask)
            await asyncio.sleep(0.1)
            votes.append(any(isinstance(each, GiveVote) and each.is_given for each in carried))
            node.crash()
            node.boot()

    in_world(1, test)
    return votes


def test_member_votes_once_in_a_term_whatever_happens_to_it() -> None:
    assert votes_of_one_term() == [True, False]


def test_mutant_that_forgets_its_vote_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = QuorumStore.write_state
    monkeypatch.setattr(QuorumStore, "write_state", lambda self, state: real(self, state._replace(vote=None)))
    assert votes_of_one_term() == [True, True]
