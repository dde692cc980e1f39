"""Entries without a lock: many at once, in order, refused as commits are; and nothing unreadable gets into the log."""

import asyncio
import errno
import json
from random import Random
from uuid import UUID

import pytest

from anabranch.broker.metadata.proposals import PROPOSAL_BYTES_MAX, Proposals, asked, check
from anabranch.broker.peers.messages import Proposed, ProposeEntry
from anabranch.cluster.metadata.entries import decode_entry, encode_entry, producer_ids_entry
from anabranch.cluster.objects.entries import (
    Commit,
    Import,
    Item,
    Replacement,
    commit_entry,
    commits_of,
    import_entry,
    incarnation_entry,
    replace_entry,
    start_entry,
    tombstone_entry,
)
from anabranch.errors import InvalidRequestError, NotControllerError, StorageError
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.values import BrokerId, Offset
from support.broker_bench import Bench, in_loop

ME = BrokerId(2)
ITEM = Item((UUID(int=1), 3), 0, 70, 1, -1, -1, -1, 0, 5, 6)
COMMIT = commit_entry(ME, 7, 1, [Commit(0, [ITEM]), Commit(1, [])])


@in_loop
async def test_many_entries_are_under_way_at_once_without_the_lock() -> None:
    bench = Bench()
    metadata = bench.broker.metadata
    async with metadata.lock:
        offsets = await asyncio.gather(*(metadata.propose(producer_ids_entry(each)) for each in range(1, 6)))
    assert offsets == [0, 1, 2, 3, 4]
    assert metadata.table.producer_id_next == 5
    assert bench.again().broker.metadata.table.producer_id_next == 5


@in_loop
async def test_all_entries_under_way_fail_with_the_write_that_failed() -> None:
    bench = Bench()
    metadata = bench.broker.metadata
    bench.disk.fail_next("write", errno.ENOSPC)
    proposals = [metadata.propose(producer_ids_entry(each)) for each in (7, 8)]
    ends = await asyncio.gather(*proposals, return_exceptions=True)
    assert [type(end) for end in ends] == [StorageError, StorageError]
    assert metadata.table.producer_id_next == 0
    assert await metadata.propose(producer_ids_entry(9)) == 0


@in_loop
async def test_an_entry_is_proposed_as_the_bytes_that_came() -> None:
    metadata = Bench().broker.metadata
    assert await metadata.propose(json.dumps(producer_ids_entry(4), indent=1).encode()) == 0
    assert metadata.table.producer_id_next == 4


# --- wherever the leader is ------------------------------------------------------------------------------------------


class Quorum:
    """Of which this broker is a member, and somebody else perhaps the leader."""

    def __init__(self, leader_id: int | None) -> None:
        self.leader_id = leader_id
        self.me = type("Me", (), {"broker_id": ME})
        self.is_leader = leader_id == ME
        self.proposed: list[object] = []

    async def propose(self, entry: object) -> Offset:
        self.proposed.append(entry)
        return Offset(41)


class Peers:
    def __init__(self) -> None:
        self.asked: list[tuple[int, object]] = []

    async def ask(self, to: int, question: object, timeout_ms: int) -> Proposed:
        self.asked.append((to, question))
        return Proposed(17)


@in_loop
async def test_a_broker_that_does_not_lead_asks_the_leader() -> None:
    peers = Peers()
    assert await Proposals(Quorum(leader_id=5), peers).propose(COMMIT) == 17  # type: ignore[arg-type]
    assert peers.asked == [(5, ProposeEntry(encode_entry(COMMIT)))]


@in_loop
async def test_the_leader_asks_nobody() -> None:
    quorum, peers = Quorum(leader_id=ME), Peers()
    assert await Proposals(quorum, peers).propose(COMMIT) == 41  # type: ignore[arg-type]
    assert (quorum.proposed, peers.asked) == ([COMMIT], [])


@in_loop
async def test_without_a_leader_there_is_nobody_to_ask() -> None:
    with pytest.raises(NotControllerError):
        await Proposals(Quorum(leader_id=None), Peers()).propose(COMMIT)  # type: ignore[arg-type]


@in_loop
async def test_the_leader_takes_what_another_proposes_and_keeps_its_own_copy() -> None:
    quorum = Quorum(leader_id=ME)
    buffer = bytearray(encode_entry(COMMIT))
    assert await asked(quorum, ME, ProposeEntry(memoryview(buffer))) == Proposed(41)  # type: ignore[arg-type]
    buffer[:] = bytes(len(buffer))
    assert [decode_entry(data) for data in quorum.proposed] == [json.loads(encode_entry(COMMIT))]  # type: ignore[arg-type]


# --- what is not taken -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [COMMIT, incarnation_entry(5), commit_entry(ME, 0, 0, [])])
def test_what_brokers_propose_is_let_through(entry: dict[str, object]) -> None:
    check(ME, encode_entry(entry))


@pytest.mark.parametrize(
    "entry",
    [
        {**COMMIT, "broker": 3},
        {**COMMIT, "epoch": -1},
        {**COMMIT, "epoch": True},
        {**COMMIT, "now_ms": "1"},
        {**COMMIT, "commits": 5},
        {**COMMIT, "commits": [{"n": 0, "keys": [], "items": "AAAA"}]},
        {**COMMIT, "commits": [{"n": 2**63, "keys": [], "items": ""}]},
        {**COMMIT, "commits": [{"n": 0, "keys": [["zz", 0]], "items": ""}]},
        {**COMMIT, "commits": [{**COMMIT["commits"][0], "keys": [["0" * 32, -1]]}]},
        {**COMMIT, "commits": [{**COMMIT["commits"][0], "keys": []}]},
        {"type": "objects-incarnation", "incarnation": "0" * 16},
        {"type": "objects-incarnation", "incarnation": "1" * 17},
        {"type": "objects-incarnation", "incarnation": 7},
        dict(producer_ids_entry(1)),
        dict(tombstone_entry([ObjectId(1, 2, 3)], 0)),
        {"type": 5},
    ],
)
def test_what_no_broker_proposes_is_refused(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        check(ME, encode_entry(entry))


def test_bytes_that_are_no_entry_are_refused_and_large_ones_are_not_even_read() -> None:
    for data in (b"", b"{}", b"[]", b"\xff", b'{"type":"objects-commit"}', bytes(PROPOSAL_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequestError):
            check(ME, data)


def test_random_damage_is_refused_or_harmless() -> None:
    rng = Random(3)
    for _ in range(2000):
        data = bytearray(encode_entry(COMMIT))
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            check(ME, bytes(data))
        except InvalidRequestError:
            continue
        entry = decode_entry(bytes(data))
        assert entry["broker"] == ME
        assert len(list(commits_of(entry))) == 2


def test_a_broker_may_propose_its_own_replacements_and_nobody_elses() -> None:
    row = Row(Offset(0), Offset(1), ObjectId(1, 7, 0), 0, 70, 0, 1)
    entry = replace_entry(ME, 7, [Replacement((UUID(int=1), 3), [row], [])])
    check(ME, encode_entry(entry))
    with pytest.raises(InvalidRequestError, match="may not propose"):
        check(BrokerId(3), encode_entry(entry))
    for wrong in ({**entry, "epoch": -1}, {**entry, "replacements": [{"id": "x"}]}):
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            check(ME, encode_entry(wrong))


IMPORT = import_entry(ME, 7, Import((UUID(int=1), 3), 9, Offset(0), Offset(5), [], [[4, 0, 1, [[0, 2, 1]]]]))


def test_a_broker_may_bring_its_own_partitions_and_move_their_starts() -> None:
    check(ME, encode_entry(IMPORT))
    check(ME, encode_entry(start_entry({(UUID(int=1), 3): Offset(4)})))
    with pytest.raises(InvalidRequestError, match="may not propose"):
        check(BrokerId(3), encode_entry(IMPORT))


@pytest.mark.parametrize(
    "spoiled",
    [
        {"end": -1},
        {"move": "nine"},
        {"key": ["no id", 3]},
        {"key": [UUID(int=1).hex, -3]},
        {"rows": "AAAA"},
        {"producers": [[4, 0, 1, [[0, 2]]]]},
        {"producers": [["4", 0, 1, []]]},
        {"producers": 5},
    ],
)
def test_an_import_that_cannot_be_read_is_refused(spoiled: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        check(ME, encode_entry({**IMPORT, **spoiled}))


def test_a_start_that_is_none_is_refused() -> None:
    for start in (-1, 2**63, "4"):
        entry = {"type": "objects-start", "starts": [[UUID(int=1).hex, 3, start]]}
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            check(ME, encode_entry(entry))
