"""Whether a broker is well, for `/healthz`."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


def health(broker: "Broker") -> tuple[bool, bytes]:
    """Healthy: every partition takes writes, the log of topics and configs too, and groups are served."""
    fenced = [str(each.id) for each in broker.partitions() if each.log.fenced]
    groups = "failed" if broker.groups_failed else "ok"
    is_well = not fenced and not broker.groups_failed
    found = {"status": "ok" if is_well else "degraded", "fenced_partitions": fenced, "groups": groups}
    return is_well, json.dumps(found).encode() + b"\n"
