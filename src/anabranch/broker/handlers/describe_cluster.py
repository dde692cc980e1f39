"""DescribeCluster, versions 0 to 2. Every broker may be a controller too; controllers are not listed apart."""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED, controller_id
from anabranch.broker.requests.call import Call
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.metadata.rows import BrokerRow

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
    orchestrator = broker.orchestrator
    rows = orchestrator.rows().values() if request["include_fenced_brokers"] else orchestrator.available()
    return {
        "error_code": ErrorCode.NONE,
        "endpoint_type": ENDPOINT_BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": controller_id(broker),
        "brokers": [_row(broker, call, row) for row in rows],
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request["include_cluster_authorized_operations"]
        else OPERATIONS_NOT_ASKED,
    }


def _row(broker: "Broker", call: Call, row: "BrokerRow") -> dict[str, Any]:
    host, port = broker.address_in(row, call.client)
    return {
        "broker_id": row.broker_id,
        "host": host,
        "port": port,
        "rack": row.rack,
        "is_fenced": row.is_fenced,
    }
