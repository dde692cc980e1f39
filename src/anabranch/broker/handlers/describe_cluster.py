"""DescribeCluster, versions 0 to 2. One node is both broker and controller; controllers are not listed apart."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.handlers.answers import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ENDPOINT_BROKERS, ENDPOINT_CONTROLLERS = 1, 2


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if request["endpoint_type"] != ENDPOINT_BROKERS:
        return {
            "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request["endpoint_type"] == ENDPOINT_CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": "This node lists brokers only (endpoint type 1).",
            "cluster_id": "",
        }
    host, port = broker.address_for(call.client)
    return {
        "error_code": ErrorCode.NONE,
        "endpoint_type": ENDPOINT_BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.id,
        "brokers": [{"broker_id": broker.id, "host": host, "port": port}],
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request["include_cluster_authorized_operations"]
        else OPERATIONS_NOT_ASKED,
    }
