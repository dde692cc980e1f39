"""A simulated cluster with one topic in mode branch, and what a test asks of it."""

from collections.abc import Callable, Mapping

from anabranch.broker.branch.partition import BranchPartition
from anabranch.modes.branch.lines import Span
from anabranch.testing.in_process_client import Body
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.simulator import (
    Producer,
    fetch_request,
    produce_request,
    produced,
    records_from,
)
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

TOPIC = "t"
PATIENCE_MS = 20_000


class BranchCluster:
    def __init__(self, seed: int, brokers: int = 3, **settings: object) -> None:
        self.sim = ClusterSimulator(seed, brokers, settings=settings)
        self.sim.start_all()
        self.acknowledged: list[bytes] = []
        self._record_ms: int | None = None

    def create(self, topic: str = TOPIC, factor: int = -1, configs: Mapping[str, str] | None = None) -> None:
        more = [{"name": name, "value": value} for name, value in (configs or {}).items()]
        body = {
            "name": topic,
            "num_partitions": 1,
            "replication_factor": factor,
            "configs": [{"name": "anabranch.mode", "value": "branch"}, *more],
        }
        pending = self.sim.send(1, ApiKey.CREATE_TOPICS, 7, {"topics": [body], "timeout_ms": 10_000})
        self.sim.run_until(lambda: pending.is_settled)
        assert pending.body is not None
        assert pending.body["topics"][0]["error_code"] == ErrorCode.NONE, pending.body

    # --- who is who ----------------------------------------------------------------------------------------------

    def partition(self, broker: int, topic: str = TOPIC) -> BranchPartition:
        found = self.sim.broker(broker).topics.find_partition(topic, 0)
        assert isinstance(found, BranchPartition)
        return found

    def leader(self, asked: int, topic: str = TOPIC) -> int | None:
        """Whom a broker names as leader."""
        pending = self.sim.send(asked, ApiKey.METADATA, 9, {"topics": [{"name": topic}]})
        self.sim.run_until(lambda: pending.is_settled)
        assert pending.body is not None
        [row] = pending.body["topics"][0]["partitions"]
        return row["leader_id"] if row["leader_id"] >= 0 else None

    def wait_leader(self, asked: int, topic: str = TOPIC) -> int:
        found: list[int] = []

        def is_there() -> bool:
            leader = self.leader(asked, topic)
            found[:] = [leader] if leader is not None else []
            return bool(found) and self.partition(found[0], topic).reign is not None

        self.sim.run_until(is_there, PATIENCE_MS)
        return found[0]

    def split(self, *sides: tuple[int, ...]) -> None:
        for side in sides:
            for one in side:
                for other in self.sim.machines:
                    if other not in side:
                        self.sim.net.cut(BrokerId(one), BrokerId(other))

    def heal(self) -> None:
        self.sim.net.heal()

    # --- records -------------------------------------------------------------------------------------------------

    def try_produce(self, leader: int, value: bytes, topic: str = TOPIC) -> ErrorCode | None:
        body = produce_request(topic, 0, [value], self.sim.clock.wall_ms(), -1, None)
        pending = self.sim.send(leader, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 5000}, timeout_ms=6000)
        self.sim.run_until(lambda: pending.is_settled)
        answer = produced(pending)
        return None if answer is None else answer[0]

    def freeze_time(self) -> None:
        """Batches of the same records are the same from now on: a producer that repeats one does not change it."""
        self._record_ms = self.sim.clock.wall_ms()

    def produce(
        self, asked: int, *values: bytes, producer: Producer | None = None, topic: str = TOPIC
    ) -> int:
        """By whom that broker names, until it is acknowledged; the answer is the offset."""
        end_ms = self.sim.clock.monotonic_ms() + PATIENCE_MS
        while self.sim.clock.monotonic_ms() < end_ms:
            leader = self.wait_leader(asked, topic)
            now_ms = self._record_ms or self.sim.clock.wall_ms()
            body = produce_request(topic, 0, values, now_ms, -1, producer)
            pending = self.sim.send(leader, ApiKey.PRODUCE, 9, {**body, "timeout_ms": 5000}, timeout_ms=6000)
            self.sim.run_until(lambda request=pending: request.is_settled)  # type: ignore[misc]
            answer = produced(pending)
            if answer is not None and answer[0] == ErrorCode.NONE:
                self.acknowledged.extend(values)
                return answer[1]
            self.sim.run(100)
        raise AssertionError(f"{values} were not taken: {answer}")

    def read(self, asked: int, offset: int = 0, topic: str = TOPIC) -> list[tuple[int, bytes | None]]:
        """From an offset on to the end, as a consumer of whoever leads does."""
        found: list[tuple[int, bytes | None]] = []
        while True:
            pending = self.sim.send(
                self.wait_leader(asked, topic), ApiKey.FETCH, 12, fetch_request(topic, 0, offset)
            )
            self.sim.run_until(lambda request=pending: request.is_settled)  # type: ignore[misc]
            assert pending.body is not None
            [row] = pending.body["responses"][0]["partitions"]
            assert row["error_code"] == ErrorCode.NONE, row
            piece = list(records_from(row["records"], offset))
            if not piece:
                return found
            found.extend(piece)
            offset = piece[-1][0] + 1

    def values(self, asked: int, topic: str = TOPIC) -> list[bytes | None]:
        return [value for _, value in self.read(asked, topic=topic)]

    # --- groups --------------------------------------------------------------------------------------------------

    def commit(self, asked: int, offset: int, topic: str = TOPIC) -> None:
        """For one group, by whoever that broker says coordinates it, until it is taken."""
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [partition]}],
        }

        def is_taken(answer: Body) -> bool:
            return bool(answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NONE)

        self._ask_coordinator(asked, ApiKey.OFFSET_COMMIT, body, is_taken)

    def committed(self, asked: int, topic: str = TOPIC) -> int:
        topics = [{"name": topic, "partition_indexes": [0]}]
        body = {"groups": [{"group_id": "g", "topics": topics}], "require_stable": False}

        def is_told(answer: Body) -> bool:
            return not answer["groups"][0]["error_code"]

        answer = self._ask_coordinator(asked, ApiKey.OFFSET_FETCH, body, is_told)
        return int(answer["groups"][0]["topics"][0]["partitions"][0]["committed_offset"])

    def _ask_coordinator(self, asked: int, api: ApiKey, body: Body, is_good: Callable[[Body], bool]) -> Body:
        end_ms = self.sim.clock.monotonic_ms() + PATIENCE_MS
        while self.sim.clock.monotonic_ms() < end_ms:
            wanted = {"key_type": 0, "coordinator_keys": ["g"]}
            found = self._answer(asked, ApiKey.FIND_COORDINATOR, 4, wanted)
            row = found["coordinators"][0] if found is not None else None
            if row is not None and not row["error_code"]:
                answer = self._answer(row["node_id"], api, 8, body)
                if answer is not None and is_good(answer):
                    return answer
            self.sim.run(200)
        raise AssertionError(f"nobody answers {api!r}")

    def _answer(self, broker: int, api: ApiKey, version: int, body: Body) -> Body | None:
        pending = self.sim.send(broker, api, version, body, timeout_ms=12_000)
        self.sim.run_until(lambda: pending.is_settled)
        return pending.body

    # --- calm ----------------------------------------------------------------------------------------------------

    def is_equal(self, topic: str = TOPIC) -> bool:
        """Everybody that runs has the same rows; one reigns, all that others have is in its line, and the copies are
        as it is."""
        parts = {broker: self.partition(broker, topic) for broker in self.sim.lives}
        reigning = [broker for broker, part in parts.items() if part.reign is not None]
        if len({frozenset(part.tube.rows) for part in parts.values()}) != 1 or len(reigning) != 1:
            return False
        primary = parts[reigning[0]]
        copies = [primary, *(parts[broker] for broker in primary.mode.copies)]
        wanted = min(len(parts), self.sim.broker(1).metadata.table.topics[topic].copies)
        return (
            len(copies) == wanted
            and len({part.tip for part in copies}) == 1
            and all(part.high_watermark == part.log.end_offset for part in copies)
            and all(primary.branches.is_behind(primary.tip, part.tip) for part in parts.values())
            and all(_is_held(part, span) for part in copies for span in part.line)
        )

    def calm(self, topic: str = TOPIC) -> None:
        self.sim.run_until(lambda: self.is_equal(topic), PATIENCE_MS)


def _is_held(partition: BranchPartition, span: Span) -> bool:
    held = partition.lanes.held(span.lane)
    return span.start >= span.end or (held is not None and held.end >= span.end)
