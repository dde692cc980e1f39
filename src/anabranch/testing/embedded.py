"""EmbeddedBroker: a real broker inside the test process, with helpers that need no Kafka client.

    with EmbeddedBroker() as broker:
        broker.create_topic("orders", partitions=3)
        broker.produce("orders", [b"one", ("key", "two")])
        run_my_service(broker.bootstrap)
        broker.wait_for_records("receipts", count=2)
        broker.kill_and_restart()                 # same port, same folder, as after kill -9

It listens on a free port of 127.0.0.1, keeps its data in a temporary folder unless told where, and runs in a thread
of its own, so that any client can talk to it: blocking, asyncio or in another process. Helpers may be called from
any thread but the broker's. They go through the same handlers as a client's requests, but not through the faults
set with `faults`, which are for the code under test.
"""

import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from anabranch.broker.broker import Broker
from anabranch.config import NodeSettings
from anabranch.log.disk.real_files import RealFiles
from anabranch.testing.embedded_requests import (
    GroupState,
    NewRecord,
    StoredRecord,
    committed_offsets,
    create_topic,
    delete_topic,
    describe_group,
    produce,
    stored_records,
)
from anabranch.testing.faults import Faults
from anabranch.testing.faulty_files import FaultyFiles
from anabranch.testing.node_thread import NodeThread

POLL_SECONDS = 0.005
TIMEOUT_SECONDS = 10.0
TOPIC_NAME_LENGTH_MAX = 200

Result = TypeVar("Result")


class _Wish(NamedTuple):
    """Something waited for: what to say if it does not come."""

    what: str
    timeout_seconds: float


class EmbeddedBroker:
    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`settings` by Kafka's dotted names, such as {"flush": "os", "num.partitions": 3}."""
        self._owns_folder = data_dir is None
        self.data_dir = os.fspath(data_dir) if data_dir is not None else tempfile.mkdtemp(prefix="anabranch-")
        self.faults = Faults()
        self._settings = {"listen": "127.0.0.1:0", **(settings or {}), "data.dir": self.data_dir}
        self._life: NodeThread | None = None
        self._names = itertools.count(1)

    # --- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the folder and the port; answers when this returns."""
        assert self._life is None, "the broker runs already"
        life = NodeThread(
            NodeSettings.load(self._settings), FaultyFiles(RealFiles(), self.faults), self.faults.dispatch
        )
        life.start()
        self._life = life
        # Clients know the port by now: a restart must come back on the same one.
        self._settings["listen"] = self.bootstrap
        if self.http_address is not None:
            self._settings["http"] = self.http_address

    def stop(self) -> None:
        """Stop cleanly, and remove the folder if it is our own."""
        if self._life is not None:
            life, self._life = self._life, None
            life.stop()
        if self._owns_folder:
            shutil.rmtree(self.data_dir)

    def restart(self) -> None:
        """Stop cleanly and start again on the same folder and port; clients reconnect by themselves."""
        life, self._life = self._running(), None
        life.stop()
        self.start()

    def kill_and_restart(self) -> None:
        """The same after a crash of the process: no log is closed, the start has to recover."""
        life, self._life = self._running(), None
        life.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> NodeThread:
        if self._life is None:
            raise RuntimeError(
                "The embedded broker does not run: call start() or use it in a with statement."
            )
        return self._life

    @property
    def bootstrap(self) -> str:
        """Where it listens, as clients want it: "127.0.0.1:41234"."""
        node = self._running().node
        assert node is not None
        return node.bootstrap

    @property
    def http_address(self) -> str | None:
        """Where its gateway answers, if `settings` name `http`: "127.0.0.1:41235"."""
        node = self._running().node
        assert node is not None
        return node.http_address

    # --- topics and records ----------------------------------------------------------------------------------

    def unused_name(self, hint: str = "topic") -> str:
        """A topic name no other test uses, with something of `hint` in it."""
        legal = re.sub(r"[^a-zA-Z0-9-]+", "-", hint).strip("-")[:TOPIC_NAME_LENGTH_MAX]
        return f"{legal or 'topic'}-{os.getpid()}-{next(self._names)}"

    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> str:
        """Make a topic; configs with underscores for dots (`retention_ms=1000`). Answers its name."""
        life = self._running()
        life.run(create_topic(life.client, name, partitions, configs))
        return name

    def delete_topic(self, name: str) -> None:
        life = self._running()
        life.run(delete_topic(life.client, name))

    def topics(self) -> list[str]:
        """The names of all topics, without the broker's own."""
        return self._ask_broker(
            lambda broker: sorted(state.topic.name for state in broker.topics if not state.topic.is_internal)
        )

    def produce(
        self, topic: str, records: Iterable[NewRecord], *, partition: int | None = None, acks: int = -1
    ) -> list[int]:
        """Write records, one batch for each partition: values, (key, value) or (key, value, headers); text is sent as
        UTF-8. Without `partition` the key decides, by the topic's partitioner; records without key go to partition 0.
        Answers their offsets, in the order of the records."""
        life = self._running()
        assert life.node is not None
        return life.run(produce(life.node.broker, life.client, topic, partition, list(records), acks))

    def records(self, topic: str, partition: int | None = None) -> list[StoredRecord]:
        """What a consumer would read from the beginning, partition by partition, in the order of offsets."""
        return self._stored(topic, partition)

    def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """The group's committed offset of each partition that has one."""
        life = self._running()
        return life.run(committed_offsets(life.client, group_id, topic, self._partitions(topic)))

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait_for_records(
        self,
        topic: str,
        count: int,
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        partition: int | None = None,
    ) -> list[StoredRecord]:
        """All records of the topic as soon as there are `count`. Raises TimeoutError that says what there was."""

        def look() -> list[StoredRecord]:
            return self._stored(topic, partition, missing_ok=True)

        wish = _Wish(f"{count} records of {topic}", timeout_seconds)
        return _wait(wish, look, lambda found: len(found) >= count)

    def wait_for_group(
        self,
        group_id: str,
        *,
        state: str = "Stable",
        members: int | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> GroupState:
        """The group as soon as it is in this state ("Stable", "Empty" ...), with so many members if given."""
        life = self._running()

        def is_it(group: GroupState) -> bool:
            return group.state == state and members in (None, len(group.members))

        wish = _Wish(f"group {group_id} to be {state} with {members or 'any'} members", timeout_seconds)
        return _wait(wish, lambda: life.run(describe_group(life.client, group_id)), is_it)

    def _partitions(self, topic: str) -> int:
        def count(broker: Broker) -> int:
            state = broker.topics.find(topic)
            return len(state.partitions) if state is not None else 0

        return self._ask_broker(count)

    def _stored(self, topic: str, partition: int | None, *, missing_ok: bool = False) -> list[StoredRecord]:
        life = self._running()
        assert life.node is not None
        return life.run(stored_records(life.node.broker, topic, partition, missing_ok=missing_ok))

    def _ask_broker(self, function: Callable[[Broker], Result]) -> Result:
        life = self._running()
        assert life.node is not None
        broker = life.node.broker
        return life.call(lambda: function(broker))


def _wait(wish: _Wish, look: Callable[[], Result], is_enough: Callable[[Result], bool]) -> Result:
    deadline = time.monotonic() + wish.timeout_seconds
    while not is_enough(found := look()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"Waited {wish.timeout_seconds} s for {wish.what}; there was: {found}")
        time.sleep(POLL_SECONDS)
    return found
