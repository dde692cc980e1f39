"""Who leads instead (KIP-951): told along with a refusal because this broker does not lead a partition, so that a
client need not ask for metadata first. A node without peers has nobody to name.

In mode branch nobody is named: no generation says which of two hints is newer. After 'it is 3' and 'it is 2' at once
librdkafka sends to 3 what it believes to be led by 2, until that changes."""

from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.requests.call import Client
from anabranch.errors import AnabranchError, FencedGenerationError, NotOwnerError
from anabranch.values import BrokerId
from anabranch.wire.leader_hints import Endpoint, LeaderHint

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


class LeaderHints:
    """Those of one answer."""

    __slots__ = ("_broker", "_client", "_endpoints")

    def __init__(self, broker: "Broker", client: Client) -> None:
        self._broker = broker
        self._client = client
        self._endpoints: dict[int, Endpoint] = {}

    @property
    def endpoints(self) -> list[Endpoint]:
        """Of all that were named."""
        return list(self._endpoints.values())

    def of(self, topic: str | UUID, index: int, error: AnabranchError | None) -> LeaderHint | None:
        """Who leads this partition, if that is what the error is about."""
        broker = self._broker
        if broker.peers is None or not isinstance(error, NotOwnerError | FencedGenerationError):
            return None
        state = broker.topics.find(topic)
        if state is None or not 0 <= index < state.topic.partition_count or state.topic.is_branched(index):
            return None
        leader = broker.leaders.of(state.topic.topic_id, index)
        if leader.broker_id is None:
            return None  # librdkafka takes nobody for somebody, looks for it, and complains.
        self._name(leader.broker_id)
        return leader.broker_id, leader.generation

    def _name(self, broker_id: BrokerId) -> None:
        row = self._broker.orchestrator.rows().get(broker_id)
        if row is not None:
            host, port = self._broker.address_in(row, self._client)
            self._endpoints[broker_id] = (broker_id, host, port, row.rack)
