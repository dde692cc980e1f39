"""A small blocking Kafka client: what a reader of topics asks, and nothing else.

A broker that is away, restarting or not ready is asked again with growing pauses, as long as `patience_seconds` says;
then `BrokerUnreachableError`. At the first contact we wait less: a wrong address should not take a minute to tell.
What does not exist is no trouble: an unknown topic is left out of an answer, and the caller decides what that means.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from anabranch.errors import (
    BrokerUnreachableError,
    InvalidTopicError,
    OptionError,
    PipelineError,
    TryAgainError,
    UnknownTopicOrPartitionError,
)
from anabranch.pipeline.client.connection import Address, Connection
from anabranch.values import TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import Body
from anabranch.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")

LATEST = -1
EARLIEST = -2
"""Timestamps that ListOffsets takes for the two ends of a log."""

PATIENCE_SECONDS = 60.0
FIRST_CONTACT_SECONDS = 10.0
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 2.0
READ_COMMITTED = 1
TOPIC_RESOURCE = 2
NO_MEMBER_GENERATION = -1

_ERRORS = {int(error): error for error in ErrorCode}
GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Topic(NamedTuple):
    name: str
    id: UUID
    leaders: Mapping[int, Address]
    """Of each partition."""
    is_internal: bool = False

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in sorted(self.leaders)]


class Cluster(NamedTuple):
    id: str | None
    topics: Mapping[str, Topic]


class Client:
    """Not for several threads at once."""

    def __init__(
        self,
        bootstrap: str,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        first_contact_seconds: float = FIRST_CONTACT_SECONDS,
    ) -> None:
        self._bootstrap = bootstrap
        self._addresses = addresses_of(bootstrap)
        self._patience_seconds = patience_seconds
        self._next_patience_seconds = min(first_contact_seconds, patience_seconds)
        self._links: dict[Address, Connection] = {}
        self._leaders: dict[TopicPartition, Address] = {}
        self._brokers: list[Address] = []
        """Of the cluster, as it was last heard of: those named at the start may all be gone one day."""

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- patience ---------------------------------------------------------------------------------------------

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Try until it works, or until our patience is at its end."""
        deadline = time.monotonic() + self._next_patience_seconds
        pause = PAUSE_SECONDS_MIN
        while True:
            try:
                result = attempt()
            except TryAgainError as error:
                self.forget()
                if time.monotonic() + pause > deadline:
                    raise BrokerUnreachableError(
                        f"Nothing could be read from {self._bootstrap} for {self._next_patience_seconds:.0f} s: "
                        f"{error}. Is the node up, and is this its address?"
                    ) from error
                logger.info("trying again in %.2f s: %s", pause, error)
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            else:
                self._next_patience_seconds = self._patience_seconds
                return result

    def forget(self) -> None:
        """Whatever we knew of connections and leaders may be wrong now."""
        self.close()
        self._leaders.clear()

    # --- topics -----------------------------------------------------------------------------------------------

    def cluster(self, names: Collection[str] | None = None) -> Cluster:
        """The topics of these names, or all of them; never makes one."""
        asked = None if names is None else [{"name": name} for name in names]
        body = {"topics": asked, "allow_auto_topic_creation": False}
        return self.patiently(lambda: self._cluster(self._any_link().ask(ApiKey.METADATA, body)))

    def _cluster(self, answer: Body) -> Cluster:
        brokers = {row["node_id"]: (row["host"], row["port"]) for row in answer["brokers"]}
        self._brokers = list(brokers.values())
        topics = {row["name"]: _topic(row, brokers) for row in answer["topics"] if not _is_unknown(row)}
        for topic in topics.values():
            for number, address in topic.leaders.items():
                self._leaders[TopicPartition(topic.name, number)] = address
        return Cluster(answer["cluster_id"], topics)

    def compacted_topics(self, names: Collection[str]) -> set[str]:
        """Those whose cleanup.policy thins them out, so that offsets have gaps."""
        policies = self.topic_configs(names, "cleanup.policy")
        return {name for name, policy in policies.items() if "compact" in policy}

    def topic_configs(self, names: Collection[str], config: str) -> dict[str, str]:
        """One config of each of these topics, as far as they are there and have it."""
        resources = [
            {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": [config]}
            for name in names
        ]
        answer = self.patiently(
            lambda: self._any_link().ask(ApiKey.DESCRIBE_CONFIGS, {"resources": resources})
        )
        return {
            row["resource_name"]: each["value"]
            for row in answer["results"]
            for each in row["configs"] or ()
            if each["value"]
        }

    def log_folders(self, names: Collection[str]) -> dict[TopicPartition, str]:
        """Where each partition's leader keeps it, by the leader's own file system: a follower may lag behind."""
        topics = self.cluster(names).topics.values()
        places = [place for topic in topics for place in topic.partitions]
        return self.patiently(lambda: self._log_folders(places)) if places else {}

    def _log_folders(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        found: dict[TopicPartition, str] = {}
        for address, led in self._by_leader(places).items():
            asked = [
                {"topic": name, "partitions": [place.partition for place in named]}
                for name, named in by_topic(led).items()
            ]
            answer = self._link(address).ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": asked})
            folders = _folders(answer)
            found.update({place: folders[place] for place in led if place in folders})
        return found

    # --- offsets ----------------------------------------------------------------------------------------------

    def offsets_at(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The first offset at or after each time in ms (or of EARLIEST, LATEST); -1 where there is none.

        `UnknownTopicOrPartitionError` if one of them is not there any more.
        """
        if not asked:
            return {}
        return self.patiently(lambda: self._offsets_at(asked))

    def _offsets_at(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for address, places in self._by_leader(asked).items():
            body = {"replica_id": -1, "isolation_level": READ_COMMITTED, "topics": _lookups(places, asked)}
            for topic in self._link(address).ask(ApiKey.LIST_OFFSETS, body)["topics"]:
                for row in topic["partitions"]:
                    place = TopicPartition(topic["name"], row["partition_index"])
                    check(row["error_code"], str(place))
                    found[place] = row["offset"]
        return found

    # --- records ----------------------------------------------------------------------------------------------

    def leader(self, place: TopicPartition) -> Connection:
        """The connection to whoever leads this partition; TryAgainError if it cannot be made."""
        (address,) = self._by_leader([place])
        return self._link(address)

    def links_of(self, places: Iterable[TopicPartition]) -> Iterator[tuple[Connection, list[TopicPartition]]]:
        """The connection to each broker that leads some of them, with those."""
        for address, led in self._by_leader(places).items():
            yield self._link(address), led

    # --- a group's progress -----------------------------------------------------------------------------------

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """As a group without members, which is what every Kafka tool shows as progress and lag."""
        rows = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": place.partition,
                        "committed_offset": offsets[place],
                        "committed_metadata": "",
                    }
                    for place in places
                ],
            }
            for name, places in by_topic(offsets).items()
        ]
        body = {"group_id": group, "generation_id_or_member_epoch": NO_MEMBER_GENERATION, "topics": rows}
        self.patiently(lambda: self._commit(group, body))

    def _commit(self, group: str, body: Body) -> None:
        for topic in self._coordinator(group).ask(ApiKey.OFFSET_COMMIT, body)["topics"]:
            for row in topic["partitions"]:
                check(row["error_code"], f"the progress of {group} in {topic['name']}")

    def committed_offsets(self, group: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What a group has committed; partitions without a commit are left out."""
        asked = [
            {"name": name, "partition_indexes": [place.partition for place in named]}
            for name, named in by_topic(places).items()
        ]
        body = {"group_id": group, "topics": asked, "require_stable": False}
        answer = self.patiently(lambda: self._coordinator(group).ask(ApiKey.OFFSET_FETCH, body))
        check(answer["error_code"], f"the progress of {group}")
        return {
            TopicPartition(topic["name"], row["partition_index"]): row["committed_offset"]
            for topic in answer["topics"]
            for row in topic["partitions"]
            if not row["error_code"] and row["committed_offset"] >= 0
        }

    def _coordinator(self, group: str) -> Connection:
        answer = self._any_link().ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]})
        (row,) = answer["coordinators"]
        check(row["error_code"], f"the coordinator of {group}")
        return self._link((row["host"], row["port"]))

    # --- connections ------------------------------------------------------------------------------------------

    def _any_link(self) -> Connection:
        """To any broker: one that is open, else the first address that answers."""
        for link in self._links.values():
            return link
        trouble: TryAgainError | None = None
        for address in dict.fromkeys((*self._addresses, *self._brokers)):
            try:
                return self._link(address)
            except TryAgainError as error:
                trouble = error
        assert trouble is not None, "at least one address was given"
        raise trouble

    def _link(self, address: Address) -> Connection:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Connection(address)
        return link

    def _by_leader(self, places: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        places = list(places)
        if any(place not in self._leaders for place in places):
            names = sorted({place.topic for place in places})
            body = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
            self._cluster(self._any_link().ask(ApiKey.METADATA, body))
        led: dict[Address, list[TopicPartition]] = defaultdict(list)
        for place in places:
            if place not in self._leaders:
                raise UnknownTopicOrPartitionError(f"Partition {place} does not exist.")
            led[self._leaders[place]].append(place)
        return led


# --- answers ---------------------------------------------------------------------------------------------------


def check(code: int, what: str) -> None:
    """Raise what an error code of an answer about `what` means to a reader."""
    if code == ErrorCode.NONE:
        return
    if code in GONE:
        raise UnknownTopicOrPartitionError(f"The broker does not know {what}.")
    error = _ERRORS.get(code)
    if error is not None and error.retriable:
        raise TryAgainError(f"the broker answers {error.name} about {what}")
    raise PipelineError(f"The broker answers {error.name if error else code} about {what}.")


def _folders(answer: Body) -> dict[TopicPartition, str]:
    """What one broker has where; copies on their way to another folder do not count."""
    return {
        TopicPartition(topic["name"], row["partition_index"]): folder["log_dir"]
        for folder in answer["results"]
        if not folder["error_code"]
        for topic in folder["topics"]
        for row in topic["partitions"]
        if not row["is_future_key"]
    }


def _is_unknown(row: Body) -> bool:
    if row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION:
        raise InvalidTopicError(f"{row['name']!r} cannot be the name of a topic.")
    if row["error_code"] in GONE:
        return True
    check(row["error_code"], f"topic {row['name']}")
    return False


def _topic(row: Body, brokers: Mapping[int, Address]) -> Topic:
    leaders = {}
    for partition in row["partitions"]:
        if partition["leader_id"] not in brokers:
            raise TryAgainError(f"{row['name']}-{partition['partition_index']} has no leader")
        leaders[partition["partition_index"]] = brokers[partition["leader_id"]]
    return Topic(row["name"], row["topic_id"], leaders, row["is_internal"])


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    grouped: dict[str, list[TopicPartition]] = defaultdict(list)
    for place in sorted(places):
        grouped[place.topic].append(place)
    return grouped


def _lookups(places: Iterable[TopicPartition], asked: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "partitions": [
                {"partition_index": place.partition, "timestamp": asked[place]} for place in named
            ],
        }
        for name, named in by_topic(places).items()
    ]


def addresses_of(bootstrap: str) -> list[Address]:
    """`host:port`, several with commas; an IPv6 address stands in brackets."""
    addresses = []
    for part in bootstrap.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise OptionError(
                f"bootstrap: {part.strip()!r} is not host:port, such as localhost:9092; several stand with commas."
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
