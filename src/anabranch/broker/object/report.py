"""What a broker says of its object store: the segments it gathers and stores now, and the objects that are agreed on.

Asked by DescribeConfigs for our own type of resource (`handlers/describe_configs.py`): one line a name, its value JSON.

    store       where, and in which life of the cluster
    segment.N   one that is not agreed on yet: state, number, batches, bytes, age
    flushed     how many were, since this broker's start
    objects     what the agreed table names
"""

import json
from typing import TYPE_CHECKING

from anabranch.objects.layout.names import ObjectKind

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.objects import Objects


def report(broker: "Broker", objects: "Objects") -> dict[str, str]:
    facts: dict[str, object] = {"store": _store(broker, objects)}
    for place, each in enumerate(objects.writing.segments()):
        facts[f"segment.{place}"] = {
            "state": each.state.name,
            "number": each.number,
            "batches": each.batches,
            "bytes": each.size,
            "age_ms": each.age_ms,
            "failures": each.failures,
            "is_stored": each.is_stored,
        }
    flushed = objects.writing.summary()[-1]
    facts["flushed"] = {
        "segments": flushed.segments,
        "batches": flushed.batches,
        "bytes": flushed.size,
        "failures": flushed.failures,
    }
    facts["objects"] = _objects(broker)
    return {name: json.dumps(value) for name, value in facts.items()}


def _store(broker: "Broker", objects: "Objects") -> dict[str, object]:
    incarnation = broker.metadata.table.objects.incarnation
    return {
        "url": objects.store.url,
        "incarnation": None if incarnation is None else f"{incarnation:016x}",
        "epoch": broker.orchestrator.epoch,
    }


def _objects(broker: "Broker") -> dict[str, int]:
    table = broker.metadata.table.objects
    merged = sum(each.kind is ObjectKind.MERGED for each in table.referenced())
    keys = list(table.keys())
    return {
        "written": sum(1 for _ in table.referenced()) - merged,
        "merged": merged,
        "unreferenced": sum(1 for _ in table.unreferenced()),
        "tombstoned": len(table.tombstones),
        "partitions": len(keys),
        "rows": sum(table.row_count(key) for key in keys),
        "bytes": sum(table.head(key).size_bytes for key in keys),
    }
