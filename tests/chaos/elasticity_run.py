"""One run of elasticity: a cluster of real processes with many topics, under load, that grows, shrinks and is repaired.

    report = ElasticityRun(folder, topics=320, rounds=10, seed=7).run()

A round is five steps: a broker is added, all brokers are restarted one after the other, a broker is drained, removed,
and another one loses its disk. While each step runs, the leader of the metadata quorum is killed (kill -9) and started
again. After every step the run waits until the cluster is whole: no broker fenced, no partition moving, and every one
with a leader and all its copies in sync. Commands are those that people type (`anabranch cluster add`); one that fails
is written down and run again once the cluster is whole.

Two topics are under load the whole time, one in mode ring and one in the object store, and a group commits what it has
read of the second one by hand: an acknowledged commit must never be found lower later.
"""

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.cli.cluster.view import ClusterView, read_view
from anabranch.errors import ClusterAnswerError
from anabranch.local_cluster.cluster_client import ClusterClient
from anabranch.testing import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from chaos.cluster_load import QUIET, ClusterLoad, close_consumer, final_reads, now_ms
from chaos.cluster_run import make_topic, wait_until
from chaos.commit_ledger import CommitLedger
from chaos.history import check, counts, report

RING_TOPIC, OBJECT_TOPIC = "elastic", "elastic-stored"
PASSING = "passing-"
"""How topics are called that are made and deleted all the time."""
PARTITIONS = 6
PLAN = ("add", "rolling restart", "drain", "remove", "lost disk")
TOPICS_PER_REQUEST = 40
RECORDS_PER_TOPIC = 5
START_SECONDS_MAX = 120.0
COMMAND_SECONDS_MAX = 600.0
LOOK_SECONDS = 0.25
DEFECT_LENGTH_MAX = 4000
MAKE_EVERY_SECONDS = 1.0
MAKE_SECONDS_MAX = 30.0


class Step(NamedTuple):
    round: int
    name: str
    broker: int | None
    seconds_done: float
    """Until the command, or what the step does by itself, was over."""
    seconds_whole: float | None
    """From then on, until the cluster was whole; None: not within the bound."""
    kills: int
    acknowledged: int
    """By the load, during the step and until the cluster was whole."""
    silence_ms: tuple[int, int]
    """The longest time without an acknowledgement in the ring topic, and in the one in the object store."""
    problem: str = ""
    """What a command that failed said, or what the cluster still waited for."""


@dataclass(slots=True)
class ElasticityRun:
    folder: Path
    brokers: int = 4
    topics: int = 320
    rounds: int = 1
    seed: int = 0
    per_second: int = 50
    """Records of one producer of each topic under load."""
    whole_seconds_max: float = 240.0
    """Also how long a broker may take to start: the machine may be busy."""
    settings: dict[str, object] = field(default_factory=dict)
    kill_after_seconds: tuple[float, float] = (0.3, 3.0)
    """When in a step the quorum's leader is killed."""
    down_seconds: tuple[float, float] = (0.5, 2.0)
    plan: tuple[str, ...] = PLAN
    """The steps of a round."""
    say: Callable[[str], None] = lambda line: None
    steps: list[Step] = field(default_factory=list)
    _rng: random.Random = field(init=False)
    _cluster: ClusterProcesses = field(init=False)
    _loads: list[ClusterLoad] = field(default_factory=list)
    _processes: threading.Lock = field(default_factory=threading.Lock)
    """Whoever starts or ends one holds it: no broker is killed while somebody waits for its start."""
    _disks_lost: int = 0
    """Each broker has its turn."""
    _spare: int = 0
    """A broker id that is not in the cluster at the moment."""

    def run(self) -> dict[str, Any]:
        self._rng = random.Random(self.seed)
        self._spare = self.brokers
        store = self.folder / "store"
        store.mkdir(parents=True)
        self._cluster = ClusterProcesses(
            self.folder / "cluster",
            brokers=self.brokers + 1,
            begin_with=self.brokers,
            settings={"object.store": store.as_uri(), **self.settings},
            start_seconds_max=self.whole_seconds_max,
        )
        with self._cluster as cluster:
            self._prepare()
            ledger = CommitLedger(cluster.bootstrap, OBJECT_TOPIC, PARTITIONS)
            self._loads = [
                ClusterLoad(
                    cluster.bootstrap, topic, PARTITIONS, producers=2, consumers=1, per_second=self.per_second
                )
                for topic in (RING_TOPIC, OBJECT_TOPIC)
            ]
            for load in self._loads:
                load.start()
            ledger.start()
            maker = _TopicMaker(cluster.bootstrap)
            maker.start()
            try:
                wait_until(lambda: all(load.acknowledged_count for load in self._loads), "records", 60)
                for number in range(1, self.rounds + 1):
                    self._round(number)
            finally:
                for load in self._loads:
                    load.stop()
                ledger.stop()
                maker.stop()
            histories = {
                load.topic: load.history(final_reads(cluster.bootstrap, load.topic, PARTITIONS))
                for load in self._loads
            }
            lost_of_others = self._read_others()
            ledger.check()
        defects = self._defects()
        violations = {topic: check(history) for topic, history in histories.items()}
        return {
            "seed": self.seed,
            "topics": self.topics,
            "rounds": self.rounds,
            "steps": [step._asdict() for step in self.steps],
            "acknowledged": sum(load.acknowledged_count for load in self._loads),
            "violations": {topic: counts(found) for topic, found in violations.items() if found},
            "examples": "\n".join(report(found) for found in violations.values() if found),
            "lost_of_others": lost_of_others,
            "topics_made_and_deleted": maker.made,
            "admin_errors": dict(maker.refused),
            "defects": defects,
            "commits": ledger.acknowledged_count,
            "commits_lost": ledger.lost,
            "read_again_uncommitted": ledger.reread,
            "client_errors": dict(sum((Counter(load.errors()) for load in self._loads), Counter())),
        }

    # --- before the first round ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        bootstrap = self._cluster.bootstrap
        make_topic(bootstrap, RING_TOPIC, PARTITIONS, 3)
        admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        stored = NewTopic(OBJECT_TOPIC, PARTITIONS, config={"anabranch.mode": "object"})
        admin.create_topics([stored])[OBJECT_TOPIC].result(30)
        for begin in range(0, self.topics, TOPICS_PER_REQUEST):
            names = self._others()[begin : begin + TOPICS_PER_REQUEST]
            made = admin.create_topics([NewTopic(name, 1, 3) for name in names], request_timeout=60)
            for future in made.values():
                future.result(60)
        self._write_others()
        self.say(f"{self.topics} topics are made and written to")
        self._wait_whole(START_SECONDS_MAX)

    def _others(self) -> list[str]:
        return [f"other-{number:03d}" for number in range(self.topics)]

    def _write_others(self) -> None:
        producer = confluent_kafka.Producer(
            {**QUIET, "bootstrap.servers": self._cluster.bootstrap, "enable.idempotence": True}
        )
        failed: list[object] = []
        for name in self._others():
            for number in range(RECORDS_PER_TOPIC):
                producer.produce(
                    name,
                    f"{name}-{number}".encode(),
                    partition=0,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                producer.poll(0)
        assert producer.flush(120) == 0, "records of the other topics were not acknowledged"
        assert not failed, failed[:3]

    def _defects(self) -> list[str]:
        """Lines in which a broker says that something happened which should not be possible."""
        return [
            line[:DEFECT_LENGTH_MAX]
            for place in self._cluster.layout.places
            if place.log.exists()
            for line in place.log.read_text(encoding="utf-8", errors="replace").splitlines()
            if "this is a defect" in line
        ]

    def _read_others(self) -> list[str]:
        """Topics without load of which something that was acknowledged at the start cannot be read any more."""
        wanted = {
            name: {f"{name}-{number}".encode() for number in range(RECORDS_PER_TOPIC)}
            for name in self._others()
        }
        consumer = confluent_kafka.Consumer(
            {
                **QUIET,
                "bootstrap.servers": self._cluster.bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(name, 0, 0) for name in wanted])
            deadline = time.monotonic() + START_SECONDS_MAX
            while any(wanted.values()) and time.monotonic() < deadline:
                for message in consumer.consume(500, 0.5):
                    if message.error() is None:
                        wanted[str(message.topic())].discard(message.value())
        finally:
            close_consumer(consumer)
        return [name for name, left in wanted.items() if left]

    # --- a round -------------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        leaving: int | None = None
        for name in self.plan:
            match name:
                case "add":
                    self._step(number, name, self._spare, self._add)
                case "rolling restart":
                    self._step(number, name, None, self._restart_all)
                case "drain" | "remove":
                    leaving = self._rng.choice(self._members()) if leaving is None else leaving
                    self._step(number, name, leaving, self._drain if name == "drain" else self._remove)
                case _:
                    members = self._members()
                    self._disks_lost += 1
                    unlucky = members[self._disks_lost % len(members)]
                    self._step(number, name, unlucky, self._lose_disk)

    def _members(self) -> list[int]:
        return [broker for broker in self._cluster.ids if broker != self._spare]

    def _step(self, number: int, name: str, broker: int | None, act: Callable[[int], str]) -> None:
        begun, began_ms = time.monotonic(), now_ms()
        # One that is away for the step cannot lead for long; one that is drained may be killed over it.
        spared = broker if name in ("remove", "lost disk") else None
        killer = _LeaderKiller(
            self._cluster,
            self._processes,
            after=self._rng.uniform(*self.kill_after_seconds),
            down=self._rng.uniform(*self.down_seconds),
            spared=spared,
        )
        killer.start()
        try:
            problem = act(-1 if broker is None else broker)
        finally:
            killer.finish()
        done = time.monotonic()
        waits_for = self._wait_whole(self.whole_seconds_max)
        if problem and not waits_for and name in ("add", "drain", "remove"):
            again = act(-1 if broker is None else broker)
            problem += f"; again: {again or 'done'}"
            waits_for = self._wait_whole(self.whole_seconds_max)
        ended_ms = now_ms()
        silences = [load.longest_silence_ms(began_ms, ended_ms) for load in self._loads]
        step = Step(
            number,
            name,
            broker,
            round(done - begun, 1),
            None if waits_for else round(time.monotonic() - done, 1),
            killer.kills,
            sum(load.acknowledged_within(began_ms, ended_ms) for load in self._loads),
            (silences[0], silences[1]),
            problem or waits_for,
        )
        self.steps.append(step)
        self.say(row_of(step))

    def _add(self, broker: int) -> str:
        with self._processes:
            if not self._cluster.is_alive(broker):
                self._cluster.restart(broker)
        wait_until(lambda: broker in self._look().live, f"broker {broker} joins", START_SECONDS_MAX)
        problem = self._command("add", str(broker))
        self._spare = -1
        return problem

    def _drain(self, broker: int) -> str:
        return self._command("drain", str(broker))

    def _remove(self, broker: int) -> str:
        with self._processes:
            if self._cluster.is_alive(broker):
                self._cluster.stop_broker(broker)
        problem = self._command("remove", str(broker), "--yes")
        if not problem:
            shutil.rmtree(self._folder_of(broker))
            self._spare = broker
        return problem

    def _restart_all(self, _: int) -> str:
        for broker in self._members():
            with self._processes:
                self._cluster.restart(broker)
        return ""

    def _lose_disk(self, broker: int) -> str:
        with self._processes:
            self._cluster.kill(broker)
            shutil.rmtree(self._folder_of(broker))
            self._cluster.restart(broker)
        return ""

    def _folder_of(self, broker: int) -> Path:
        return next(place.folder for place in self._cluster.layout.places if place.broker_id == broker)

    def _command(self, *words: str) -> str:
        """What was wrong with it; empty: it did what it should."""
        command = [
            sys.executable,
            "-m",
            "anabranch",
            "cluster",
            *words,
            "--bootstrap",
            self._cluster.bootstrap,
        ]
        try:
            ended = subprocess.run(
                [*command, "--format", "json"], capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX
            )
        except subprocess.TimeoutExpired:
            return f"{words[0]} did not end within {COMMAND_SECONDS_MAX:.0f} s"
        return "" if ended.returncode == 0 else f"{words[0]} failed: {ended.stderr.strip()[-300:]}"

    # --- whole ---------------------------------------------------------------------------------------------------

    def _look(self) -> ClusterView:
        with ClusterClient(self._cluster.bootstrap, 10.0) as client:
            return read_view(client)

    def _wait_whole(self, seconds_max: float) -> str:
        """Empty once the cluster is whole; else what it still waits for."""
        deadline = time.monotonic() + seconds_max
        while waits_for := self._waits_for():
            if time.monotonic() > deadline:
                return waits_for
            time.sleep(LOOK_SECONDS)
        return ""

    def _waits_for(self) -> str:
        try:
            with ClusterClient(self._cluster.bootstrap, 10.0) as client:
                view = read_view(client)
                moving = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None})
        except ClusterAnswerError as error:
            return str(error)
        wanted = len(self._members())
        fenced = [str(each.broker_id) for each in view.brokers.values() if each.is_fenced]
        lasting = [each for each in view.partitions if not each.topic.startswith(PASSING)]
        nobody = [each.name for each in lasting if each.leader < 0]
        short = [each.name for each in lasting if each.is_short]
        found = {
            f"fenced: {', '.join(fenced)}": fenced,
            f"{len(view.brokers)} brokers instead of {wanted}": len(view.brokers) != wanted,
            f"{len(nobody)} without a leader ({', '.join(nobody[:3])})": nobody,
            f"{len(short)} under-replicated ({', '.join(short[:3])})": short,
            f"{len(moving['topics'])} moving": moving["topics"],
            f"the moves were not listed: {moving['error_message']}": moving["error_code"],
        }
        return "; ".join(what for what, is_so in found.items() if is_so)


class _TopicMaker:
    """Makes topics and deletes them again, by a stock admin client, as long as the run lasts."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-maker", daemon=True)
        self.made = 0
        self.refused: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(MAKE_SECONDS_MAX * 3)
        assert not self._thread.is_alive(), "the maker of topics did not end"

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.wait(MAKE_EVERY_SECONDS):
            number += 1
            name = f"{PASSING}{number}"
            topic = NewTopic(name, 2, 3)
            made = self._admin.create_topics([topic], operation_timeout=10, request_timeout=MAKE_SECONDS_MAX)
            self._note(made[name])
            gone = self._admin.delete_topics([name], operation_timeout=10, request_timeout=MAKE_SECONDS_MAX)
            self._note(gone[name])

    def _note(self, future: "Future[None]") -> None:
        try:
            future.result(MAKE_SECONDS_MAX * 2)
            self.made += 1
        except confluent_kafka.KafkaException as error:
            self.refused[error.args[0].name()] += 1


class _LeaderKiller:
    """Kills the leader of the metadata quorum once, in the middle of a step, and starts it again."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        processes: threading.Lock,
        *,
        after: float,
        down: float,
        spared: int | None,
    ) -> None:
        self._cluster = cluster
        self._processes = processes
        self._spared = spared
        """The step is about this broker: another one is to die."""
        self._after = after
        self._down = down
        self._thread = threading.Thread(target=self._run, name="leader-killer")
        self.kills = 0

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        time.sleep(self._after)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.kills and time.monotonic() < deadline:
            with self._processes:
                leader = self._cluster.controller(START_SECONDS_MAX)
                if leader != self._spared and self._cluster.is_alive(leader):
                    self._cluster.kill(leader)
                    self.kills += 1
                    time.sleep(self._down)
                    self._cluster.restart(leader)
            time.sleep(LOOK_SECONDS)


def row_of(step: Step) -> str:
    whole = "never" if step.seconds_whole is None else f"{step.seconds_whole:.1f}"
    broker = "" if step.broker is None else f" {step.broker}"
    ring_ms, object_ms = step.silence_ms
    return (
        f"| {step.round} | {step.name}{broker} | {step.kills} | {step.seconds_done:.1f} | {whole} | "
        f"{step.acknowledged} | {ring_ms / 1000:.1f} | {object_ms / 1000:.1f} | {step.problem or '-'} |"
    )


HEADER = (
    "| round | step | leaders killed | step s | whole after s | acknowledged | ring paused s | object paused s "
    "| problem |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def is_sound(result: dict[str, Any]) -> bool:
    """No command failed and nothing was lost. How long it took is told, not judged."""
    return not (
        any(step["problem"] for step in result["steps"])
        or result["violations"]
        or result["lost_of_others"]
        or result["commits_lost"]
        or result["defects"]
    )


def as_json(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=2) + "\n"
