"""AlterReplicaLogDirs, versions 1 and 2, as a broker with a single data folder answers it: what is asked to be in that
folder is there already, and there is no other folder to move anything to.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Rows
from anabranch.errors import AnabranchError, LogDirNotFoundError, ReplicaNotAvailableError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

Row = dict[str, Any]


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> Rows:
    # A partition that is named twice counts with the last folder, as in Kafka.
    paths = {
        (topic["name"], index): wanted["path"]
        for wanted in request["dirs"]
        for topic in wanted["topics"]
        for index in topic["partitions"]
    }
    rows: dict[str, list[Row]] = defaultdict(list)
    for (name, index), path in paths.items():
        rows[name].append({"partition_index": index, "error_code": _code(broker, name, index, path)})
        yield
    return {"results": [{"topic_name": name, "partitions": each} for name, each in rows.items()]}


def _code(broker: "Broker", name: str, index: int, path: str) -> int:
    try:
        if path.rstrip("/") != broker.data_dir.rstrip("/"):
            raise LogDirNotFoundError(
                f"{path} is not a data folder of this broker: it has {broker.data_dir}."
            )
        topic = broker.topics.check_index(name, index)
        partition = broker.topics.find_partition(name, index)
        if partition is None or topic.is_stored(index):
            raise ReplicaNotAvailableError(f"This broker keeps no copy of partition {index} of {name}.")
    except AnabranchError as error:
        return code_of(error)
    return 0
