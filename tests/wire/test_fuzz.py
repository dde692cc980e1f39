"""Spoiled frames of every API and version, on many connections at once, for FUZZ_SECONDS (10 unless told).

The corpus is what the exchanges of every API send. The node must stay alive and small, serve somebody else all
the while, and log no defect. FUZZ_SEED repeats the frames of a run; a failure names the seed.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from anabranch.broker.handlers import HANDLERS
from anabranch.errors import AnabranchError
from anabranch.record.compression import Codec
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_request
from anabranch.wire.error_codes import ErrorCode as E
from anabranch.wire.header import parse_request_header
from support.exchanges import EXCHANGES, make_world
from support.mutations import mutated, sized
from support.raw_client import RawClient, batch_of
from support.wire_node import MIB, WireNode, bystander

SECONDS = float(os.environ.get("FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
CONNECTIONS = 12
FRAMES_PER_CONNECTION_MAX = 20
ANSWER_SECONDS_MAX = 0.05
GROWTH_BYTES_MAX = 128 * MIB
PARTITIONS_MAX = 20
RELOAD_SECONDS_MAX = 10.0

# Topics made by chance would grow the node, as they should: that is no matter of bad input.
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}


class RecordingClient(RawClient):
    """Remembers every frame it sends."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.frames: list[bytes] = []

    def send_frame(self, frame: bytes) -> None:
        self.frames.append(frame)
        super().send_frame(frame)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireNode]:
    with WireNode(tmp_path_factory.mktemp("fuzzed"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def corpus(fuzzed: WireNode) -> list[bytes]:
    """What a good and a refused exchange of every API in every version sends."""
    with RecordingClient(fuzzed.bootstrap) as client:
        world = make_world(client)
        for key, api in HANDLERS.items():
            for version in api.versions:
                for exchange in EXCHANGES[key]:
                    exchange(client, version, world)
        for codec in Codec:
            values = [b"value %d" % number for number in range(50)]
            for sequence in (-1, 0):
                idempotence = {"producer_id": sequence, "producer_epoch": sequence, "base_sequence": sequence}
                batch = batch_of(*values, codec=codec, **idempotence)
                assert client.produce(world.topic, 1, batch)["error_code"] in (
                    0,
                    E.OUT_OF_ORDER_SEQUENCE_NUMBER,
                )
    return client.frames


def is_too_much(frame: bytes) -> bool:
    """A sane request for thousands of partitions: it would be carried out, and fill the disk."""
    try:
        header, body = parse_request_header(frame, 0, len(frame))
        if header.api_key not in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
            return False
        request = decode_request(header.api_key, header.api_version, frame, body, len(frame))
    except AnabranchError:
        return False
    counts = [topic.get("num_partitions", topic.get("count", 0)) for topic in request["topics"]]
    return any(count > PARTITIONS_MAX for count in counts)


class Fuzzer(threading.Thread):
    """One connection at a time: frames until it is closed, then the next."""

    def __init__(self, bootstrap: str, corpus: list[bytes], rng: Random, end: float) -> None:
        super().__init__(name="fuzzer")
        self._address = bootstrap
        self._corpus = corpus
        self._rng = rng
        self._end = end
        self.frames_sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._end:
                with RawClient(self._address) as client:
                    self._converse(client)
        except BaseException as error:  # noqa: BLE001 - told to the test after the run.
            self.error = error

    def _converse(self, client: RawClient) -> None:
        client.sock.settimeout(ANSWER_SECONDS_MAX)
        for _ in range(self._rng.randrange(1, FRAMES_PER_CONNECTION_MAX)):
            try:
                for part in self._parts():
                    client.send_bytes(part)
                if not client.sock.recv(65536):
                    return
            except TimeoutError:
                continue  # No answer yet: more is coming, or it waits for something. Go on regardless.
            except ConnectionError:
                return

    def _parts(self) -> list[bytes]:
        """What to send at once: a frame, a burst of them, or one in two parts."""
        burst = self._rng.choice((1, 1, 1, 1, 8))
        frames = [mutated(self._rng, self._corpus) for _ in range(burst)]
        data = b"".join(sized(self._rng, frame) for frame in frames if not is_too_much(frame))
        self.frames_sent += burst
        cut = self._rng.randrange(len(data) + 1) if self._rng.random() < 0.2 else 0
        return [part for part in (data[:cut], data[cut:]) if part]


def run_fuzzers(node: WireNode, corpus: list[bytes]) -> int:
    """Fuzz for SECONDS; how many frames that were."""
    end = time.monotonic() + SECONDS
    fuzzers = [
        Fuzzer(node.bootstrap, corpus, Random(f"{SEED}-{number}"), end) for number in range(CONNECTIONS)
    ]
    for fuzzer in fuzzers:
        fuzzer.start()
    for fuzzer in fuzzers:
        fuzzer.join()
    errors = [fuzzer.error for fuzzer in fuzzers if fuzzer.error is not None]
    assert not errors, f"FUZZ_SEED={SEED}: {errors}"
    return sum(fuzzer.frames_sent for fuzzer in fuzzers)


def test_spoiled_frames_leave_the_node_alive_small_and_of_service(
    fuzzed: WireNode, corpus: list[bytes]
) -> None:
    log_position = fuzzed.log_size()
    fuzzed.forget_peak()
    before = fuzzed.rss_bytes()
    with bystander(fuzzed) as other:
        frames_sent = run_fuzzers(fuzzed, corpus)
    grown = fuzzed.peak_bytes() - before
    slowest = max(other.seconds)
    sys.stdout.write(
        f"FUZZ_SEED={SEED}: {frames_sent} frames in {SECONDS:.0f} s; grew by {grown / MIB:.0f} MiB; "
        f"somebody else was served {len(other.seconds)} times, the slowest in {slowest * 1000:.0f} ms\n"
    )
    assert fuzzed.is_alive(), f"FUZZ_SEED={SEED}"
    assert fuzzed.defects_since(log_position) == [], f"FUZZ_SEED={SEED}"
    assert grown <= GROWTH_BYTES_MAX, f"FUZZ_SEED={SEED}: the node grew by {grown / MIB:.0f} MiB"
    assert frames_sent >= 100 * SECONDS, f"only {frames_sent} frames"


def test_after_the_fuzzing_every_api_answers_as_before(fuzzed: WireNode) -> None:
    with RawClient(fuzzed.bootstrap) as client:
        world = make_world(client)
        for key, api in HANDLERS.items():
            for exchange in EXCHANGES[key]:
                exchange(client, api.versions[-1], world)


def test_the_fuzzed_node_starts_again_with_everything_it_had(fuzzed: WireNode) -> None:
    log_position = fuzzed.log_size()
    ends_before = end_offsets(fuzzed)
    fuzzed.stop()
    fuzzed.start()
    # What some clients left behind a long poll may still have been written before the stop, but nothing is lost.
    ends = end_offsets(fuzzed)
    assert {key: end for key, end in ends_before.items() if ends.get(key, end) < end} == {}
    before = settled_inventory(fuzzed)
    fuzzed.kill()
    fuzzed.start()
    missing = before
    end = time.monotonic() + RELOAD_SECONDS_MAX
    while missing and time.monotonic() < end:
        missing = before - inventory(fuzzed)
    assert missing == set()
    fuzzed.check_served()
    assert fuzzed.defects_since(log_position) == []


def end_offsets(node: WireNode) -> dict[tuple[str, int], int]:
    """The last offset of every partition clients may write to."""
    with RawClient(node.bootstrap) as client:
        topics = client.ask(ApiKey.METADATA, 9, {"topics": None})["topics"]
        return {
            (topic["name"], row["partition_index"]): client.end_offset(topic["name"], row["partition_index"])
            for topic in topics
            for row in topic["partitions"]
            if not topic["is_internal"]
        }


def settled_inventory(node: WireNode) -> set[str]:
    """The same twice in a row: groups are read back in the background."""
    before: set[str] = set()
    while before != (now := inventory(node)) or not now:
        before = now
    return now


def inventory(node: WireNode) -> set[str]:
    """Every topic with the first and last offsets of its partitions, every group with what it committed."""
    with RawClient(node.bootstrap) as client:
        topics = client.ask(ApiKey.METADATA, 9, {"topics": None})["topics"]
        asked = [
            {"name": topic["name"], "partitions": [each["partition_index"] for each in topic["partitions"]]}
            for topic in topics
        ]
        groups = [group["group_id"] for group in client.ask(ApiKey.LIST_GROUPS, 4, {})["groups"]]
        wanted = [{"group_id": group, "topics": None} for group in groups]
        committed = client.ask(ApiKey.OFFSET_FETCH, 8, {"groups": wanted})["groups"]
        kept = {repr(group) for group in committed if group["topics"]}
        return kept | list_offsets(client, asked, -2) | list_offsets(client, asked, -1)


def list_offsets(client: RawClient, asked: list[dict[str, Any]], timestamp: int) -> set[str]:
    topics = [
        {
            "name": topic["name"],
            "partitions": [
                {"partition_index": index, "timestamp": timestamp} for index in topic["partitions"]
            ],
        }
        for topic in asked
        if topic["name"] != "__consumer_offsets"  # Members that leave are noted there after the count.
    ]
    answer = client.ask(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})
    return {f"{timestamp}: {topic}" for topic in answer["topics"]}
