"""Bytes flipped under running nodes: whatever is read afterwards is right, or an error that is counted.

One topic in mode solo on a node and one in mode ring on three, each of several sealed segments and an active one. A
flip changes one byte of a segment file of the partition's leader, in a batch chosen at random, in half of the cases in
what its CRC leaves out. Then one kind of reader reads all of the topic, going on behind each offset that is refused.
Counted are records that are not what was written, intact records that could not be read, flips that no metric tells of,
and, in a ring, flips that were not repaired. A solo node's byte is put back by us.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
from websockets.sync.client import connect

from anabranch.errors import AnabranchError
from anabranch.gateway.read.fan_out import AGE_MS_MAX
from anabranch.pipeline.source.options import reader_options
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.reading import read_range
from anabranch.record.batch import batch_spans, read_header
from anabranch.record.columns.columns import schema_of
from anabranch.testing.cluster_processes import ClusterProcesses
from support.clusters import wait_until_in_sync
from support.http_client import ask_at
from support.node_process import NodeProcess
from support.topics import make_topic
from support.waiting import wait_until

TOPIC = "flipped"
SEGMENT_BYTES = 128 * 1024
BATCHES = 130
HEAD_BYTES = 17
"""What the CRC of a batch leaves out."""
SETTLES_SECONDS = 0.06
"""After which what was checked once may leave by sendfile."""
REPAIR_SECONDS_MAX = 20.0
STALLED_SECONDS = 0.5
METRICS = ("anabranch_corrupt_reads_total", "anabranch_damaged_regions")


def value_of(number: int) -> bytes:
    return f"{number:06d}".encode() * Random(number).randrange(200, 700)


Read = dict[int, bytes]


@dataclass
class Site:
    """One topic of a mode, where it is led and what was written to it."""

    mode: str
    bootstrap: str
    http: str
    folder: Path
    written: dict[int, bytes] = field(default_factory=dict)

    def write(self, count: int) -> None:
        """One batch each."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for _ in range(count):
            number = len(self.written)
            producer.produce(TOPIC, value_of(number), b"%d" % number)
            assert producer.flush(30) == 0
            self.written[number] = value_of(number)

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / f"{TOPIC}-0").glob("*.log"))

    @property
    def damage_told(self) -> float:
        """By readers who met it, and by the scrubber, which may be there first."""
        lines = ask_at(self.http, "GET", "/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(METRICS))


@dataclass(frozen=True)
class Flip:
    path: Path
    position: int
    change: int
    base_offset: int
    last_offset: int

    def apply(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.position)
            byte = file.read(1)[0]
            file.seek(self.position)
            file.write(bytes([byte ^ self.change]))


def choose(site: Site, random: Random, *, is_active: bool) -> Flip:
    """Some byte of some batch."""
    path = site.files[-1] if is_active else random.choice(site.files[:-1])
    data = path.read_bytes()
    start, end = random.choice(list(batch_spans(data)))
    position = start + random.randrange(HEAD_BYTES) if random.random() < 0.5 else random.randrange(start, end)
    header = read_header(data, start)
    return Flip(path, position, random.randrange(1, 256), header.base_offset, header.last_offset)


# --- readers -------------------------------------------------------------------------------------------------------


def read_by_kafka(site: Site) -> Read:
    """librdkafka does not tell of CORRUPT_MESSAGE: it asks again and again, so whoever waits in vain goes on."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": "flips",
            "check.crcs": False,
            "enable.auto.commit": False,
            "fetch.error.backoff.ms": 10,
            "fetch.wait.max.ms": 10,
        }
    )
    found: Read = {}
    at, end = 0, len(site.written)
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        heard = time.monotonic() + 5  # It has to connect first.
        while at < end:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                _take(found, message.offset(), message.value())
                at, heard = message.offset() + 1, time.monotonic()
            elif time.monotonic() - heard > STALLED_SECONDS:
                at, heard = at + 1, time.monotonic()
                consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, at)])
    finally:
        consumer.close()
    return found


def _take(found: Read, offset: int, value: bytes | None) -> None:
    assert offset not in found, f"offset {offset} came twice"
    found[offset] = value or b""


def read_by_http(site: Site) -> Read:
    found: Read = {}
    at = 0
    while at < len(site.written):
        target = f"/v1/topics/{TOPIC}/partitions/0/records?offset={at}&max_bytes=1000000"
        answer = ask_at(site.http, "GET", target)
        if answer.status == 500:
            assert answer.code == "CORRUPT_MESSAGE", answer
            at += 1
            continue
        assert answer.status == 200, answer
        for record in answer.json["records"]:
            _take(found, int(record["offset"]), record["value"].encode())
        at = int(answer.json["next_offset"])
    return found


def read_by_socket(site: Site) -> Read:
    found: Read = {}
    at, number = 0, 0
    with connect(f"ws://{site.http}/v1/ws", max_size=None) as link:
        while at < len(site.written):
            number += 1
            wish = {"type": "subscribe", "id": number, "topic": TOPIC, "from": {"offset": {"0": str(at)}}}
            link.send(json.dumps({**wish, "credit": 10_000}))
            while at < len(site.written):
                message = json.loads(link.recv(20))
                if message.get("id") != number or message["type"] == "subscribed":
                    continue
                if message["type"] == "error":
                    assert message["code"] == "CORRUPT_MESSAGE", message
                    at += 1
                    break
                for record in message["records"]:
                    _take(found, int(record["offset"]), record["value"].encode())
                at = int(message["next"])
    return found


def read_by_session(site: Site) -> Read:
    found: Read = {}
    at = 0
    group = f"flips-{time.monotonic_ns()}"
    answer = ask_at(
        site.http, "POST", f"/v1/groups/{group}/sessions", {"topics": [TOPIC], "from": "earliest"}
    )
    assert answer.status == 201, answer
    path, cursor = answer.headers["location"], ""
    while at < len(site.written):
        answer = ask_at(site.http, "POST", f"{path}/records?wait_ms=500&max_records=5000{cursor}")
        if answer.status == 500:
            assert answer.code == "CORRUPT_MESSAGE", answer
            at += 1
            moved = {"offsets": [{"topic": TOPIC, "partition": 0, "offset": str(at)}]}
            answer = ask_at(site.http, "POST", f"{path}/commit", moved)
            assert answer.status == 200, answer
            cursor = ""
            continue
        assert answer.status == 200, answer
        for record in answer.json["records"]:
            _take(found, int(record["offset"]), record["value"].encode())
            at = int(record["offset"]) + 1
        if answer.json.get("cursor"):
            cursor = f"&cursor={answer.json['cursor']}"
    ask_at(site.http, "DELETE", path)
    return found


def read_by_spark(site: Site) -> Read:
    """What the tasks of a Spark job run, without the job: sealed segments from files, the rest by the protocol."""
    found: Read = {}
    at, end = 0, len(site.written)
    while at < end:
        options = reader_options(
            {
                "bootstrap": site.bootstrap,
                "topic": TOPIC,
                "direct": "auto",
                "startingOffsets": json.dumps({TOPIC: {"0": at}}),
                "brokerTimeoutSeconds": "1",
            }
        )
        with contextlib.closing(Planner(options)) as planner:
            ranges = planner.batch_ranges()
        try:
            for wanted in ranges:
                for rows in read_range(options, wanted, schema_of(["offset", "value"])):
                    for row in rows.to_pylist():
                        _take(found, row["offset"], row["value"])
                        at = max(at, row["offset"] + 1)
        except AnabranchError:
            at += 1
    return found


READERS: dict[str, Callable[[Site], Read]] = {
    "kafka": read_by_kafka,
    "http": read_by_http,
    "websocket": read_by_socket,
    "session": read_by_session,
    "spark": read_by_spark,
}


# --- the run -------------------------------------------------------------------------------------------------------


class Flips:
    """Flips in turn for each reader, mode and kind of segment; `table` has what became of them."""

    def __init__(
        self, sites: list[Site], seed: int, readers: list[str], say: Callable[[str], Any] = print
    ) -> None:
        self.sites = sites
        self.readers = readers
        self.random = Random(seed)
        self.say = say
        self._sockets_read = 0.0
        """Since when the gateway may have records in memory, which it sends to others without reading them again."""
        self.table: dict[tuple[str, str, str], Counter[str]] = {}

    def run(self, count: int) -> None:
        """Each reader in turn, each time at another site, and then in the other kind of segment."""
        for number in range(count):
            reader = self.readers[number % len(self.readers)]
            turn = number // len(self.readers)
            site = self.sites[turn % len(self.sites)]
            kind = ("active", "sealed")[(number + turn // len(self.sites)) % 2]
            self.table.setdefault((reader, site.mode, kind), Counter()).update(self.one(reader, site, kind))

    def one(self, reader: str, site: Site, kind: str) -> Counter[str]:
        if self.random.random() < 0.3:
            site.write(1)
        if self.random.random() < 0.7:
            time.sleep(SETTLES_SECONDS)
            for _ in range(2):
                assert read_by_http(site) == site.written, "before anything is wrong"
        if reader == "websocket":
            time.sleep(max(0.0, self._sockets_read + AGE_MS_MAX / 1000 + 1 - time.monotonic()))
        flip = choose(site, self.random, is_active=kind == "active")
        before = site.damage_told
        good = flip.path.read_bytes()
        flip.apply()
        found = READERS[reader](site)
        if reader == "websocket":
            self._sockets_read = time.monotonic()
        hurt = range(flip.base_offset, flip.last_offset + 1)
        wrong = [offset for offset in found if found[offset] != site.written.get(offset)]
        lost = [offset for offset in site.written if offset not in found and offset not in hurt]
        outcome = Counter(flips=1, wrong=len(wrong), lost=len(lost), counted=int(site.damage_told > before))
        if site.mode == "ring":
            with contextlib.suppress(AssertionError):
                wait_until(
                    lambda: flip.path.read_bytes()[: len(good)] == good, "a repair", REPAIR_SECONDS_MAX
                )
                outcome["repaired"] = 1
        if flip.path.read_bytes()[: len(good)] != good:
            flip.apply()
        if wrong or lost or not outcome["counted"] or (site.mode == "ring" and not outcome["repaired"]):
            self.say(f"{reader} {site.mode} {kind}: {flip}: wrong {wrong}, lost {lost}, {dict(outcome)}")
        return outcome

    @property
    def sums(self) -> Counter[str]:
        return sum(self.table.values(), Counter())

    def report(self) -> str:
        lines = [
            "| reader | mode | segment | flips | wrong records served | intact records lost | counted | repaired |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for (reader, mode, kind), outcome in sorted(self.table.items()):
            repaired = str(outcome["repaired"]) if mode == "ring" else ""
            numbers = " | ".join(str(outcome[name]) for name in ("flips", "wrong", "lost", "counted"))
            lines.append(f"| {reader} | {mode} | {kind} | {numbers} | {repaired} |")
        return "\n".join(lines)


@contextlib.contextmanager
def solo_site(folder: Path) -> Iterator[Site]:
    folder.mkdir()
    settings = {"http": "127.0.0.1:0", "num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    with NodeProcess(folder, settings) as node:
        make_topic(node.bootstrap, TOPIC, segment_bytes=str(SEGMENT_BYTES))
        site = Site("solo", node.bootstrap, str(node.ready["http"]), node.data_folder)
        site.write(BATCHES)
        yield site


@contextlib.contextmanager
def ring_site(folder: Path) -> Iterator[Site]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ClusterProcesses(folder, settings=settings) as cluster:
        make_topic(cluster.bootstrap, TOPIC, segment_bytes=str(SEGMENT_BYTES))
        wait_until_in_sync(cluster, [TOPIC])
        leader = cluster.leader_of(TOPIC)
        info = next(info for info in cluster.brokers if info.id == leader)
        site = Site("ring", cluster.bootstrap, str(info.http), Path(info.folder))
        site.write(BATCHES)
        yield site
