"""A cluster that only answers questions about itself: real sockets, real frames, a table instead of brokers.

Moves finish one at each ListPartitionReassignments. `silent` brokers accept connections and hang up,
`paused` ones accept them and never answer, as a stopped process does.
"""

import socket
import struct
import threading
from typing import Any, Self

from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request, encode_response, versions_of
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import parse_request_header, response_header

Body = dict[str, Any]


class FakeCluster:
    def __init__(self, brokers: int, topics: dict[str, list[list[int]]]) -> None:
        self.topics = topics
        self.fenced: set[int] = set()
        self.still_leading: set[int] = set()
        """Fenced brokers that the others still name as leaders."""
        self.silent: set[int] = set()
        self.paused: set[int] = set()
        self.out_of_sync: set[int] = set()
        self.unaware: set[int] = set()
        """Brokers that have not heard yet who is out of sync."""
        self.generation = 7
        self.moving: dict[tuple[str, int], list[int]] = {}
        self.refuses: str | None = None
        self.forgets = False
        self.elects: dict[ApiKey, int] = {}
        """So many requests of this kind find the quorum without a leader; then it has one."""
        self.dies_in_a_move: int | None = None
        self.draining: set[int] = set()
        self.objects: set[str] = set()
        """Topics in the object store."""
        self.branches: set[str] = set()
        """Topics in mode branch; the leader of one that drains goes to the next broker at each look."""
        self.branch_lag = 0
        """Of every copy of these, for the next look: each finds less missing."""
        self.changing: set[str] = set()
        """Those on their way to their mode; they are there after two looks."""
        self.unregistered: list[int] = []
        self.stops_when_empty: int | None = None
        self.asked: list[tuple[int, ApiKey]] = []
        self.elections: list[int] = []
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(brokers)]
        self._threads: list[threading.Thread] = []
        self._links: list[socket.socket] = []
        self._handlers = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.DESCRIBE_QUORUM: self._describe_quorum,
            ApiKey.METADATA: self._metadata,
            ApiKey.DESCRIBE_LOG_DIRS: self._describe_log_dirs,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self._alter_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self._list_reassignments,
            ApiKey.UNREGISTER_BROKER: self._unregister,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            ApiKey.ELECT_LEADERS: self._elect,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
        }

    def address(self, broker: int) -> tuple[str, int]:
        host, port = self._listeners[broker].getsockname()
        return host, port

    @property
    def bootstrap(self) -> str:
        return ",".join("{}:{}".format(*self.address(broker)) for broker in range(len(self._listeners)))

    def __enter__(self) -> Self:
        for broker, listener in enumerate(self._listeners):
            self._begin(self._accept, broker, listener)
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in self._links:
            link.close()
        for thread in self._threads:
            thread.join(5)

    def _begin(self, target: Any, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, broker: int, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            self._links.append(link)
            self._begin(self._serve, broker, link)

    def _serve(self, broker: int, link: socket.socket) -> None:
        with link:
            while broker not in self.silent:
                try:
                    frame = self._frame(link)
                except OSError:
                    return
                if not frame:
                    return
                if broker not in self.paused:
                    link.sendall(self._answer(broker, frame))

    def _frame(self, link: socket.socket) -> bytes:
        size = link.recv(4, socket.MSG_WAITALL)
        return link.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL) if len(size) == 4 else b""

    def _answer(self, broker: int, frame: bytes) -> bytes:
        header, start = parse_request_header(frame, 0, len(frame))
        api = ApiKey(header.api_key)
        self.asked.append((broker, api))
        request = decode_request(api, header.api_version, frame, start, len(frame))
        body = self._handlers[api](broker, request)
        if self.elects.get(api):
            self.elects[api] -= 1
            body = _without_leader(body)
        answer = response_header(api, header.api_version, header.correlation_id)
        answer += encode_response(api, header.api_version, body)
        return struct.pack(">i", len(answer)) + answer

    # --- answers -----------------------------------------------------------------------------------------------

    def _api_versions(self, broker: int, request: Body) -> Body:
        rows = [
            {"api_key": api, "min_version": versions_of(api)[0], "max_version": versions_of(api)[-1]}
            for api in self._handlers
        ]
        return {"error_code": 0, "api_keys": rows}

    def _describe_configs(self, broker: int, request: Body) -> Body:
        return {
            "results": [
                {
                    "error_code": 0,
                    "resource_type": asked["resource_type"],
                    "resource_name": asked["resource_name"],
                    "configs": self._mode_configs(asked["resource_name"]),
                }
                for asked in request["resources"]
            ]
        }

    def _mode_configs(self, topic: str) -> list[Body]:
        mode = "object" if topic in self.objects else "branch" if topic in self.branches else "ring"
        configs = [{"name": "anabranch.mode", "value": mode}]
        if topic in self.changing:
            configs.append({"name": "anabranch.mode.changing", "value": "some are not there yet"})
        if self.draining:
            self.changing.discard(topic)
        return configs

    def _listed(self, *, fenced: bool) -> list[int]:
        return [
            number
            for number in range(len(self._listeners))
            if number not in self.unregistered and (fenced or number not in self.fenced)
        ]

    def _describe_cluster(self, broker: int, request: Body) -> Body:
        leaving = self.stops_when_empty
        if leaving is not None and not any(leaving in kept for rows in self.topics.values() for kept in rows):
            self.fenced.add(leaving)
        rows = [
            {
                "broker_id": number,
                "host": "127.0.0.1",
                "port": self.address(number)[1],
                "is_fenced": number in self.fenced,
            }
            for number in self._listed(fenced=request["include_fenced_brokers"])
        ]
        return {"error_code": 0, "cluster_id": "fake", "controller_id": 0, "brokers": rows}

    def _describe_quorum(self, broker: int, request: Body) -> Body:
        voters = [{"replica_id": number, "log_end_offset": 100 - number} for number in range(3)]
        row = {
            "partition_index": 0, "error_code": 0, "error_message": None, "leader_id": 0, "leader_epoch": 4,
            "high_watermark": 99, "current_voters": voters,
            "observers": [{"replica_id": 3, "log_end_offset": 90}],
        }  # fmt: skip
        topics = [{"topic_name": "__cluster_metadata", "partitions": [row]}]
        return {"error_code": 0, "error_message": None, "topics": topics, "nodes": []}

    def _metadata(self, broker: int, request: Body) -> Body:
        wanted = self.topics if request["topics"] is None else [row["name"] for row in request["topics"]]
        return {
            "brokers": [
                {"node_id": number, "host": "127.0.0.1", "port": self.address(number)[1]}
                for number in self._listed(fenced=False)
            ],
            "controller_id": 0,
            "cluster_id": "fake",
            "topics": [self._topic_row(broker, name) for name in wanted if name in self.topics],
        }

    def _topic_row(self, broker: int, name: str) -> Body:
        partitions = []
        missed = (self.fenced - self.still_leading) | (set() if broker in self.unaware else self.out_of_sync)
        for index, replicas in enumerate(self.topics[name]):
            in_sync = [number for number in replicas if number not in missed]
            is_branch = name in self.branches
            if is_branch and replicas[0] in self.draining:
                self.topics[name][index] = [*replicas[1:], replicas[0]]
            partitions.append(
                {
                    "error_code": 0, "partition_index": index, "leader_id": in_sync[0] if in_sync else -1,
                    "leader_epoch": -1 if is_branch else self.generation,
                    "replica_nodes": replicas, "isr_nodes": in_sync,
                    "offline_replicas": [],
                }
            )  # fmt: skip
        return {"error_code": 0, "name": name, "is_internal": name.startswith("__"), "partitions": partitions}

    def _lag(self, broker: int, name: str) -> int:
        if name not in self.branches:
            return broker
        self.branch_lag = max(0, self.branch_lag - 1)
        return self.branch_lag

    def _describe_log_dirs(self, broker: int, request: Body) -> Body:
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "partition_size": 1000, "offset_lag": self._lag(broker, name)}
                    for index, replicas in enumerate(partitions)
                    if broker in replicas
                ],
            }
            for name, partitions in self.topics.items()
        ]
        return {"error_code": 0, "results": [{"error_code": 0, "log_dir": "/data", "topics": topics}]}

    def _list_offsets(self, broker: int, request: Body) -> Body:
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": row["partition_index"], "error_code": 0, "offset": 42}
                    for row in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
        return {"topics": topics}

    def _alter_reassignments(self, broker: int, request: Body) -> Body:
        code = ErrorCode.NONE if self.refuses is None else ErrorCode.INVALID_REPLICA_ASSIGNMENT
        responses = []
        for topic in request["topics"]:
            rows = []
            for row in topic["partitions"]:
                if self.refuses is None and not self.forgets:
                    self.moving[topic["name"], row["partition_index"]] = row["replicas"]
                rows.append(
                    {
                        "partition_index": row["partition_index"],
                        "error_code": code,
                        "error_message": self.refuses,
                    }
                )
            responses.append({"name": topic["name"], "partitions": rows})
        return {"error_code": 0, "error_message": None, "responses": responses}

    def _list_reassignments(self, broker: int, request: Body) -> Body:
        if self.dies_in_a_move is not None:
            self.fenced.add(self.dies_in_a_move)
        elif self.moving:
            (name, index), replicas = self.moving.popitem()
            self.topics[name][index] = replicas
        topics: dict[str, list[Body]] = {}
        for (name, index), replicas in self.moving.items():
            row = {
                "partition_index": index,
                "replicas": replicas,
                "adding_replicas": [],
                "removing_replicas": [],
            }
            topics.setdefault(name, []).append(row)
        rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        return {"error_code": 0, "error_message": None, "topics": rows}

    def _alter_configs(self, broker: int, request: Body) -> Body:
        rows = []
        for resource in request["resources"]:
            assert [config["name"] for config in resource["configs"]] == ["broker.draining"]
            change = self.draining.add if resource["configs"][0]["value"] == "true" else self.draining.discard
            change(int(resource["resource_name"]))
            name = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
            rows.append({"error_code": 0, "error_message": None, **name})
        return {"responses": rows}

    def _elect(self, broker: int, request: Body) -> Body:
        """Of partition 0 it can be done, with two sentences; nowhere else it is needed."""
        self.elections.append(request["election_type"])
        rows = [
            {"partition_id": index, "error_code": 0, "error_message": "What there is.\nWhat is lost."}
            if index == 0
            else {
                "partition_id": index,
                "error_code": ErrorCode.ELECTION_NOT_NEEDED,
                "error_message": "It has one.",
            }
            for index in request["topic_partitions"][0]["partitions"]
        ]
        topic = request["topic_partitions"][0]["topic"]
        return {"error_code": 0, "replica_election_results": [{"topic": topic, "partition_result": rows}]}

    def _unregister(self, broker: int, request: Body) -> Body:
        self.unregistered.append(request["broker_id"])
        return {"error_code": 0, "error_message": None}


def _without_leader(body: Any) -> Any:
    """The same answer, as a broker gives it whose leader has just gone: the change may have been made."""
    if isinstance(body, list):
        return [_without_leader(each) for each in body]
    if isinstance(body, dict):
        body = {name: _without_leader(each) for name, each in body.items()}
        return {**body, "error_code": ErrorCode.NOT_CONTROLLER} if "error_code" in body else body
    return body
