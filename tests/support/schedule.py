"""Schedules of whole brokers: what happens when is written down, and not left to a seed."""

from typing import Self

from anabranch.testing.in_process_client import Body, Pending
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.simulator import Producer, produce_request, produced
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

PLACE = ("t", 0)


class Schedule:
    """Brokers of a simulator that start together, and a topic of one partition."""

    produce_ms = 20_000
    """How long a broker may take to answer a producer."""

    def __init__(self, sim: ClusterSimulator, topic: Body) -> None:
        """`topic` without its name, as CreateTopics has it."""
        self.sim = sim
        sim.start_all()
        asked = {"topics": [{"name": PLACE[0], **topic}], "timeout_ms": 5000}
        body = self.ask(1, ApiKey.CREATE_TOPICS, 7, asked)
        assert body["topics"][0]["error_code"] == ErrorCode.NONE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sim.close()

    def ask(self, broker_id: int, api: ApiKey, version: int, body: Body) -> Body:
        pending = self.sim.send(broker_id, api, version, body)
        self.sim.run_until(lambda: pending.is_settled)
        assert pending.body is not None, pending.closed_because
        return pending.body

    def time_ms(self) -> int:
        """Of a record."""
        return self.sim.clock.wall_ms()

    def send(
        self, broker_id: int, value: bytes, producer: Producer | None = None, timeout_ms: int | None = None
    ) -> Pending:
        body = produce_request(*PLACE, [value], self.time_ms(), -1, producer)
        timeout_ms = self.produce_ms if timeout_ms is None else timeout_ms
        return self.sim.send(broker_id, ApiKey.PRODUCE, 9, {**body, "timeout_ms": timeout_ms})

    def write(self, broker_id: int, value: bytes, producer: Producer | None = None) -> int:
        """Until it is acknowledged; its offset."""
        pending = self.send(broker_id, value, producer)
        self.sim.run_until(lambda: pending.is_settled)
        answer = produced(pending)
        assert answer is not None, pending.closed_because
        assert answer[0] == ErrorCode.NONE, answer
        return answer[1]
