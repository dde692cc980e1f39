"""Clients of a simulated cluster: they ask anybody who leads, and ask again when it was somebody else.

`ClusterClient` is what the producers of `sim_producers` produce to. `ClusterWitness` holds the cluster to what its
clients were told: of a partition that has changed its leader less may be to be seen for a while, but nothing else.
"""

from collections.abc import Callable, Sequence
from random import Random

from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.simulator import (
    Producer,
    SimulationError,
    fetch_request,
    produce_request,
    records_from,
)
from anabranch.testing.simulation.witness import Place, Sent, Witness, check_order, compare
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

REQUEST_MS = 4_000
PRODUCE_MS = 2_000

Found = list[tuple[int, bytes | None]]


class ClusterWitness(Witness):
    def acknowledged(self, place: Place, base_offset: int, sent: Sequence[Sent], acks: int) -> None:
        """Where there are several copies, acks=1 promises the same (ring.acks1=safe)."""
        super().acknowledged(place, base_offset, sent, -1)
        compare(
            place,
            "was seen",
            {
                offset: seen
                for offset, seen in self._seen.get(place, {}).items()
                if 0 <= offset - base_offset < len(sent)
            },
            dict(enumerate(sent, base_offset)),
        )

    def saw(self, place: Place, records: Sequence[tuple[int, bytes | None]]) -> None:
        """A consumer read from the start as far as it could."""
        found = {offset: Sent.decode(value or b"") for offset, value in records}
        check_order(place, found)
        for promise, known in (("was seen", self._seen), ("was acknowledged", self._promised)):
            there = {offset: sent for offset, sent in known.get(place, {}).items() if offset in found}
            compare(place, promise, there, found)
        self._seen.setdefault(place, {}).update(found)

    def saw_all(self, place: Place, records: Sequence[tuple[int, bytes | None]]) -> None:
        """The same when all is well, so that nothing is hidden."""
        self.saw(place, records)
        found = {offset: Sent.decode(value or b"") for offset, value in records}
        compare(place, "was seen", self._seen.get(place, {}), found)
        compare(place, "was acknowledged", self._promised.get(place, {}), found)


class ClusterClient:
    """One client and what it believes."""

    lives = 0
    """It outlives every broker."""

    def __init__(self, sim: ClusterSimulator, rng: Random) -> None:
        self._sim = sim
        self._rng = rng
        self._leaders: dict[Place, int] = {}
        self._coordinators: dict[str, int] = {}
        self._is_asking = False

    def note(self, line: str) -> None:
        if not line.endswith(": None"):  # Of what nobody answered there is too much.
            self._sim.note(line)

    def anybody(self) -> int:
        return self._rng.choice(sorted(self._sim.machines))

    def send(self, broker_id: int, api: ApiKey, version: int, body: Body) -> Pending:
        return self._sim.send(broker_id, api, version, body, timeout_ms=REQUEST_MS)

    # --- who leads -----------------------------------------------------------------------------------------------

    def leader_of(self, place: Place) -> int | None:
        """Whoever is believed to lead; None: it is being asked for."""
        if place not in self._leaders:
            self._ask_for_leaders()
        return self._leaders.get(place)

    def _ask_for_leaders(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self.send(self.anybody(), ApiKey.METADATA, 9, {"topics": None}).on_settled = self._heard_leaders

    def _heard_leaders(self, pending: Pending) -> None:
        self._is_asking = False
        for topic in pending.body["topics"] if pending.body is not None else ():
            for partition in topic["partitions"]:
                if partition["leader_id"] >= 0:
                    self._leaders[topic["name"], partition["partition_index"]] = partition["leader_id"]

    def _forget(self, place: Place) -> None:
        self._leaders.pop(place, None)

    # --- records -------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes],
        acks: int = -1,
        producer: Producer | None = None,
    ) -> Pending:
        """To the leader, as far as it is known; once."""
        place = (topic, partition)
        answer = Pending(ApiKey.PRODUCE, 9)
        leader = self.leader_of(place)
        if leader is None:
            self._sim.world.call_soon(answer.settle, None, "nobody is known to lead")
            return answer
        body = self._produce_request(place, values, acks, producer)

        def settled(pending: Pending) -> None:
            code = None
            if pending.body is not None:
                code = pending.body["responses"][0]["partition_responses"][0]["error_code"]
            if code != ErrorCode.NONE:
                self._forget(place)
            answer.settle(pending.body, pending.closed_because)

        request = self.send(leader, ApiKey.PRODUCE, 9, {**body, "timeout_ms": PRODUCE_MS})
        request.on_settled = settled
        return answer

    def _produce_request(
        self, place: Place, values: Sequence[bytes], acks: int, producer: Producer | None
    ) -> Body:
        return produce_request(*place, values, self._sim.clock.wall_ms(), acks, producer)

    def read(self, place: Place, broker_id: int, then: Callable[[Found, ErrorCode | None], None]) -> None:
        """Everything from the start as far as that broker gives it; the code says why it ended (None: no answer)."""
        found: Found = []

        def ask() -> None:
            offset = found[-1][0] + 1 if found else 0
            self.send(broker_id, ApiKey.FETCH, 12, fetch_request(*place, offset)).on_settled = heard

        def heard(pending: Pending) -> None:
            if pending.body is None:
                self._forget(place)
                then(found, None)
                return
            offset = found[-1][0] + 1 if found else 0
            answer = pending.body["responses"][0]["partitions"][0]
            if answer["error_code"]:
                self._forget(place)
                then(found, ErrorCode(answer["error_code"]))
                return
            more = list(records_from(answer["records"], offset))
            if any(number >= answer["high_watermark"] for number, _ in more):
                raise SimulationError(f"{place} shows records beyond {answer['high_watermark']}: {more}")
            found.extend(more)
            if more:
                ask()
            else:
                then(found, ErrorCode.NONE)

        ask()

    # --- groups --------------------------------------------------------------------------------------------------

    def commit(self, group: str, place: Place, offset: int, then: Callable[[ErrorCode | None], None]) -> None:
        partition = {"partition_index": place[1], "committed_offset": offset, "committed_metadata": ""}
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": place[0], "partitions": [partition]}],
        }

        def heard(answer: Body | None) -> None:
            code = None if answer is None else ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])
            if code != ErrorCode.NONE:
                self._coordinators.pop(group, None)
            then(code)

        self._ask_coordinator(group, ApiKey.OFFSET_COMMIT, body, heard)

    def committed(self, group: str, place: Place, then: Callable[[int | None], None]) -> None:
        """The offset that was committed, -1 if none was, None if nobody says."""
        topics = [{"name": place[0], "partition_indexes": [place[1]]}]
        body = {"groups": [{"group_id": group, "topics": topics}], "require_stable": False}

        def heard(answer: Body | None) -> None:
            row = None if answer is None else answer["groups"][0]
            if row is None or row["error_code"] or row["topics"][0]["partitions"][0]["error_code"]:
                self._coordinators.pop(group, None)
                then(None)
            else:
                then(row["topics"][0]["partitions"][0]["committed_offset"])

        self._ask_coordinator(group, ApiKey.OFFSET_FETCH, body, heard)

    def _ask_coordinator(
        self, group: str, api: ApiKey, body: Body, then: Callable[[Body | None], None]
    ) -> None:
        def found(pending: Pending) -> None:
            row = pending.body["coordinators"][0] if pending.body is not None else None
            if row is None or row["error_code"]:
                then(None)
            else:
                self._coordinators[group] = row["node_id"]
                ask()

        def ask() -> None:
            pending = self.send(self._coordinators[group], api, 8, body)
            pending.on_settled = lambda done: then(done.body)

        if group in self._coordinators:
            ask()
            return
        wanted = {"key_type": 0, "coordinator_keys": [group]}
        self.send(self.anybody(), ApiKey.FIND_COORDINATOR, 4, wanted).on_settled = found
