"""UnregisterBroker, version 0: a broker leaves the table for good; one that keeps something must be drained first."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import accepted, refused
from anabranch.broker.requests.call import Call
from anabranch.cluster.metadata.entries import broker_removed_entry
from anabranch.errors import AnabranchError, InvalidRequestError, UnknownBrokerError
from anabranch.values import BrokerId

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        await _remove(broker, BrokerId(request["broker_id"]))
    except AnabranchError as error:
        return refuse(request, error)
    return accepted()


async def _remove(broker: "Broker", broker_id: BrokerId) -> None:
    metadata = broker.metadata
    async with metadata.lock:
        if broker_id not in metadata.table.brokers:
            raise UnknownBrokerError(f"There is no broker {broker_id}.")
        if len(metadata.table.brokers) == 1:
            raise InvalidRequestError(f"Broker {broker_id} is the only one: a cluster has at least one.")
        kept = list(metadata.table.kept_by(broker_id))
        if kept:
            alone = sum(placement.replicas == (broker_id,) for _, _, placement in kept)
            only = f", {alone} of them as the only copy" if alone else ""
            raise InvalidRequestError(
                f"Broker {broker_id} keeps {len(kept)} partitions{only}: move them away first with "
                f"`anabranch cluster drain {broker_id}`."
            )
        if not metadata.table.brokers[broker_id].is_fenced:
            raise InvalidRequestError(
                f"Broker {broker_id} runs, and would join again: stop its process first, and wait a few seconds."
            )
        await metadata.commit(broker_removed_entry(broker_id))


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    return refused(error)
