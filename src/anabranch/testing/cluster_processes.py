"""ClusterProcesses: a cluster of real broker processes that a test can kill, pause, cut apart and heal.

    with ClusterProcesses(folder) as cluster:
        run_my_service(cluster.bootstrap)
        cluster.kill(cluster.leader_of("orders", 0))
        ...
        cluster.cut(0, 1, one_way=True)         # what 0 sends does not arrive at 1
        cluster.heal()                          # cuts and pauses end; dead brokers stay dead
        cluster.restart(2)

All connections between the brokers run through `LinkProxies` here; clients connect to the brokers themselves, so that a
broker that is cut off from the others can still be talked to. Methods may be called from any one thread at a time.
"""

import dataclasses
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from anabranch.errors import ClusterAnswerError
from anabranch.local_cluster.broker_process import BrokerProcess, wait_until_ready
from anabranch.local_cluster.cluster_client import Body, ClusterClient
from anabranch.local_cluster.layout import LOCAL_HOST, Layout, make_layout, prepare
from anabranch.local_cluster.ports import random_block
from anabranch.testing.link_proxy import LinkProxies
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
ASK_SECONDS_MAX = 2.0
POLL_SECONDS = 0.05
QUORUM_TOPIC = "__cluster_metadata"


class BrokerInfo(NamedTuple):
    id: int
    kafka: str
    peer: str
    http: str | None
    pid: int
    folder: str


class ClusterProcesses:
    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        brokers: int = 3,
        settings: Mapping[str, object] | None = None,
        begin_with: int | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> None:
        """`settings` by Kafka's dotted names, for all brokers. Without a folder, a temporary one. `begin_with`: how
        many of the brokers `start` starts; the others join by `restart`. `start_seconds_max`: how long a broker may
        take until its port answers."""
        self._start_seconds_max = start_seconds_max
        self._owns_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="anabranch-") if folder is None else folder)
        self._settings = dict(settings or {})
        self._begin_with = brokers if begin_with is None else begin_with
        self.layout = _layout(self.folder, brokers)
        self._processes: dict[int, BrokerProcess] = {}
        self._paused: set[int] = set()
        self._proxies: LinkProxies | None = None
        # A broker is told to stop when the thread that started it ends: it must not be that of a passing caller.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="cluster-starter")

    def _arguments(self) -> list[str]:
        arguments = ["--log-level", "warning"]
        for name, value in self._settings.items():
            text = ("true" if value else "false") if isinstance(value, bool) else str(value)
            arguments += ["--set", f"{name}={text}"]
        return arguments

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all; every port answers when this returns."""
        self._proxies = LinkProxies().__enter__()
        try:
            self.layout = _behind(self._proxies, self.layout)
            prepare(self.layout)
            self._processes = {
                place.broker_id: BrokerProcess(self.layout, place, self._arguments())
                for place in self.layout.places
            }
            self._start(list(self._processes.values())[: self._begin_with])
        except BaseException:
            self.stop()
            raise

    def _start(self, processes: Iterable[BrokerProcess]) -> None:
        those = list(processes)
        for process in those:
            self._starter.submit(process.start).result()
        wait_until_ready(those, self._start_seconds_max)

    def stop(self) -> None:
        """Stop all that run; a temporary folder is removed."""
        self.heal()
        for process in self._processes.values():
            process.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in self._processes.values():
            process.finish(max(0.0, deadline - time.monotonic()))
        if self._proxies is not None:
            self._proxies.__exit__(None, None, None)
            self._proxies = None
        self._starter.shutdown()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return self.layout.bootstrap

    @property
    def brokers(self) -> list[BrokerInfo]:
        """Those that run, paused ones included."""
        return [
            BrokerInfo(
                broker,
                process.place.kafka,
                process.place.peer,
                process.place.http,
                process.pid,
                str(process.place.folder),
            )
            for broker, process in self._processes.items()
            if process.is_alive
        ]

    @property
    def ids(self) -> list[int]:
        """All brokers, dead or alive."""
        return [place.broker_id for place in self.layout.places]

    def is_alive(self, broker: int) -> bool:
        return self._processes[broker].is_alive

    def log_of(self, broker: int) -> str:
        """The end of what a broker has logged since its last start."""
        return self._processes[broker].last_words()

    # --- what can go wrong -------------------------------------------------------------------------------------

    def kill(self, broker: int) -> None:
        """kill -9."""
        self._paused.discard(broker)
        self._processes[broker].kill()

    def stop_broker(self, broker: int) -> int | None:
        """Ask a broker to stop in order, as SIGTERM does. Its exit code; None: it had to be killed."""
        self._paused.discard(broker)
        return self._processes[broker].stop(STOP_SECONDS_MAX)

    def restart(self, broker: int) -> None:
        """Start a dead broker, or stop a running one in order and start it again. Its port answers afterwards."""
        process = self._processes[broker]
        if process.is_alive:
            self.stop_broker(broker)
        self._start([process])

    def pause(self, broker: int) -> None:
        """SIGSTOP: the process is there and does nothing."""
        self._paused.add(broker)
        self._processes[broker].signal(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self._paused.discard(broker)
        self._processes[broker].signal(signal.SIGCONT)

    def cut(self, a: int, b: int, one_way: bool = False) -> None:
        """The link between two brokers; one way: only what `a` sends to `b` is held back."""
        self._require(a, b)
        assert self._proxies is not None
        self._proxies.cut(BrokerId(a), BrokerId(b), one_way=one_way)

    def isolate(self, broker: int) -> None:
        """Cut a broker from all the others; clients still reach it."""
        self._require(broker)
        assert self._proxies is not None
        self._proxies.isolate(BrokerId(broker))

    def heal(self) -> None:
        """End all cuts and pauses. Dead brokers need `restart`."""
        if self._proxies is not None:
            self._proxies.heal()
        for broker in list(self._paused):
            self.resume(broker)

    def recover(self) -> None:
        """Heal, and start whoever is dead."""
        self.heal()
        dead = [process for process in self._processes.values() if not process.is_alive]
        if dead:
            self._start(dead)

    def _require(self, *brokers: int) -> None:
        for broker in brokers:
            if broker not in self._processes:
                raise ValueError(f"There is no broker {broker}: there are {self.ids}.")

    # --- who leads ---------------------------------------------------------------------------------------------

    def leader_of(self, topic: str, partition: int = 0, timeout_seconds: float = 15.0) -> int:
        """Who leads the partition, as the broker with the newest generation says. Waits until somebody does."""
        return self._wait(
            lambda: self.leaders(topic).get(partition), f"a leader of {topic}-{partition}", timeout_seconds
        )

    def leaders(self, topic: str) -> dict[int, int]:
        """By partition, who leads it now as far as anybody knows; partitions without a leader are left out."""
        newest: dict[int, tuple[int, int]] = {}
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        for answer in self._answers(ApiKey.METADATA, body):
            for row in (row for found in answer["topics"] for row in found["partitions"]):
                known = (row["leader_epoch"], row["leader_id"])
                if row["leader_id"] >= 0:
                    newest[row["partition_index"]] = max(known, newest.get(row["partition_index"], known))
        return {partition: leader for partition, (_, leader) in newest.items() if self._can_lead(leader)}

    def controller(self, timeout_seconds: float = 15.0) -> int:
        """Who leads the metadata quorum. Waits until somebody does."""
        return self._wait(self._controller, "a leader of the metadata quorum", timeout_seconds)

    def _controller(self) -> int | None:
        asked = [{"topic_name": QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]
        known = [
            (row["leader_epoch"], row["leader_id"])
            for answer in self._answers(ApiKey.DESCRIBE_QUORUM, {"topics": asked})
            for topic in answer["topics"]
            for row in topic["partitions"]
            if row["error_code"] == 0 and row["leader_id"] >= 0
        ]
        leader = max(known)[1] if known else None
        return leader if leader is not None and self._can_lead(leader) else None

    def _can_lead(self, broker: int) -> bool:
        """A dead or paused one is only still remembered."""
        process = self._processes.get(broker)
        return process is not None and process.is_alive and broker not in self._paused

    def _answers(self, api: ApiKey, body: Body) -> list[Body]:
        """Of every broker that can answer now."""
        answers = []
        for broker in self.brokers:
            if broker.id in self._paused:
                continue
            with ClusterClient(broker.kafka, ASK_SECONDS_MAX) as client:
                try:
                    answers.append(client.ask(api, body))
                except ClusterAnswerError:
                    continue  # It is just going, or cut off and cannot know.
        return answers

    def _wait(self, find: Callable[[], int | None], what: str, timeout_seconds: float) -> int:
        deadline = time.monotonic() + timeout_seconds
        while (found := find()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"There was not {what} within {timeout_seconds:g} s.")
            time.sleep(POLL_SECONDS)
        return found


def _layout(folder: Path, brokers: int) -> Layout:
    ports = random_block(LOCAL_HOST, 3 * brokers, random.Random())
    return make_layout(folder, ports[:brokers], ports[brokers : 2 * brokers], ports[2 * brokers :])


def _behind(proxies: LinkProxies, layout: Layout) -> Layout:
    """The same brokers, each of which tells the others the address of the proxy in front of it."""
    places = []
    for place in layout.places:
        broker = BrokerId(place.broker_id)
        places.append(dataclasses.replace(place, advertise=proxies.front(broker)))
        proxies.behind(broker, place.peer)
    return dataclasses.replace(layout, places=tuple(places))
