"""ListConfigResources, versions 0 and 1: everything that has configs. Version 0 asks for client metrics: none.

Types that have none here have an empty list; types that Kafka does not know are refused.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.config_resources import BROKER, TOPIC, TYPE_NAMES, broker_names
from anabranch.broker.requests.call import Call
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    if call.header.api_version == 0:
        return {"error_code": 0, "config_resources": []}
    wanted = set(request["resource_types"]) or {TOPIC, BROKER}
    if not wanted <= TYPE_NAMES.keys():
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
    rows = []
    if TOPIC in wanted:
        rows += [{"resource_name": state.topic.name, "resource_type": TOPIC} for state in broker.topics]
    if BROKER in wanted:
        rows += [{"resource_name": name, "resource_type": BROKER} for name in broker_names(broker)]
    return {"error_code": 0, "config_resources": rows}
