"""Too many, too much, too slow: those who cause it wait or are closed; somebody else is served all the while."""

import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from anabranch.clock import RealClock
from anabranch.config import NodeSettings
from anabranch.log.disk.real_files import RealFiles
from anabranch.record.batch import batch_spans, check_batch
from anabranch.record.records import records_of
from anabranch.server import listener as listener_module
from anabranch.testing.node_thread import NodeThread
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import encode_request
from anabranch.wire.header import request_header
from support.exchanges import only
from support.raw_client import ClosedByBroker, RawClient, batch_of, fetch_body, produce_body
from support.waiting import wait_until
from support.wire_node import MIB, WireNode, bystander

SILENT_CONNECTIONS = 2000


@pytest.fixture(scope="module", autouse=True)
def many_descriptors() -> Iterator[None]:
    """This process holds the clients' ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SILENT_CONNECTIONS + 500
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"{wanted} open files are needed, {hard} allowed"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def silent_connection(bootstrap: str) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 10)


# --- many connections ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("others_served")
def test_two_thousand_connections_that_say_nothing_cost_nobody_anything(node: WireNode) -> None:
    # Others of the same node may just be closing: a count of descriptors from before would never be reached.
    before = node.open_sockets()
    with ExitStack() as stack:
        for _ in range(SILENT_CONNECTIONS):
            stack.enter_context(silent_connection(node.bootstrap))
        wait_until(lambda: len(node.open_sockets() - before) >= SILENT_CONNECTIONS, "all are accepted")
        for _ in range(20):
            node.check_served()
    wait_until(lambda: len(node.open_sockets() - before) <= 5, "all are let go")


class FewDescriptors(WireNode):
    """A node that may open 200 files."""

    def _command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 200 && exec "$@"', "sh", *super()._command()]


def test_the_open_file_limit_is_respected(tmp_path_factory: pytest.TempPathFactory) -> None:
    with FewDescriptors(tmp_path_factory.mktemp("few")) as node, RawClient(node.bootstrap) as early:
        early.create_topic("early")
        with ExitStack() as stack:
            crowd = [stack.enter_context(silent_connection(node.bootstrap)) for _ in range(400)]
            wait_until(lambda: is_closed(crowd[-1]), "those beyond the limit are turned away")
            assert not is_closed(crowd[0])
            assert node.descriptor_count() < 200
            for number in range(20):
                assert early.produce("early", 0, batch_of(b"x"))["base_offset"] == number
            early.create_topic("late", partitions=5)
            assert early.produce("late", 4, batch_of(b"x"))["error_code"] == 0
        wait_until(lambda: can_be_served(node), "there is room again")
        assert node.defects_since(0) == []


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def can_be_served(node: WireNode) -> bool:
    try:
        node.check_served()
    except (ClosedByBroker, ConnectionError):
        return False
    return True


# --- slow readers and fast writers ------------------------------------------------------------------------------------


def push(client: RawClient, data: bytes) -> int:
    """Send again and again until nobody takes any more; how many bytes that were."""
    client.sock.settimeout(0.5)
    total = 0
    try:
        while total < 64 * MIB:
            client.sock.sendall(data)
            total += len(data)
    except TimeoutError:
        pass
    return total


def frame(key: ApiKey, version: int, body: dict[str, object]) -> bytes:
    whole = request_header(key, version, 1, "raw") + encode_request(key, version, body)
    return struct.pack(">i", len(whole)) + whole


@pytest.mark.usefixtures("others_served")
@pytest.mark.parametrize("kind", ["large fetches", "small fetches", "metadata"])
def test_a_client_that_never_reads_its_answers_is_read_no_more(node: WireNode, topic: str, kind: str) -> None:
    with RawClient(node.bootstrap) as writer:
        for _ in range(6):
            assert writer.produce(topic, 0, batch_of(b"x" * 1_000_000))["error_code"] == 0
        assert writer.produce(topic, 1, batch_of(b"x" * 8000))["error_code"] == 0
    requests = {
        "large fetches": frame(ApiKey.FETCH, 12, fetch_body(topic, 0, 0)),
        "small fetches": frame(ApiKey.FETCH, 12, fetch_body(topic, 1, 0)),
        "metadata": frame(ApiKey.METADATA, 9, {"topics": None}),
    }
    with RawClient(node.bootstrap) as sleeper, bystander(node) as other:
        sleeper.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        pushed = push(sleeper, requests[kind] * 100)
        assert pushed < 32 * MIB, "the node went on reading"
    assert other.seconds, "nobody else was served meanwhile"


class TestFlood:
    CONNECTIONS = 4
    REQUESTS = 60

    @pytest.fixture
    def memory_growth_max(self) -> int:
        """The append queue may hold 64 MiB; beyond, sockets wait with a frame each."""
        return 128 * MIB

    @pytest.mark.usefixtures("others_served")
    def test_a_flood_of_pipelined_produces_is_acknowledged_whole(self, node: WireNode, topic: str) -> None:
        batch = batch_of(b"x" * 1_000_000)
        offsets: list[int] = []
        with bystander(node) as other:
            floods = [
                threading.Thread(target=self.flood, args=(node, topic, batch, offsets))
                for _ in range(self.CONNECTIONS)
            ]
            for flood in floods:
                flood.start()
            for flood in floods:
                flood.join()
        assert sorted(offsets) == list(range(self.CONNECTIONS * self.REQUESTS))
        assert other.seconds, "nobody else was served meanwhile"

    def flood(self, node: WireNode, topic: str, batch: bytes, offsets: list[int]) -> None:
        with RawClient(node.bootstrap) as client:
            client.sock.settimeout(60)
            reader = threading.Thread(target=self.read_answers, args=(client, offsets))
            reader.start()
            for _ in range(self.REQUESTS):
                client.send(ApiKey.PRODUCE, 9, produce_body(topic, 0, batch))
            reader.join()

    def read_answers(self, client: RawClient, offsets: list[int]) -> None:
        for number in range(self.REQUESTS):
            answer = client.receive(ApiKey.PRODUCE, 9, number + 1)
            row = only(only(answer["responses"])["partition_responses"])
            assert row["error_code"] == 0, row
            offsets.append(row["base_offset"])


@pytest.mark.usefixtures("others_served")
def test_batches_behind_a_request_that_holds_them_up_are_written_as_they_were_sent(
    node: WireNode, client: RawClient, topic: str
) -> None:
    """What was parsed when the hold ended must not be overwritten by what arrives before it is written."""
    values = [b"%04d" % number + b"v" * (number % 50) for number in range(5000)]
    held_up = frame(ApiKey.API_VERSIONS, 0, {})
    with RawClient(node.bootstrap) as writer:
        writer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender = threading.Thread(target=send_each, args=(writer, topic, held_up, values))
        sender.start()
        for _ in range(2 * len(values)):
            writer.receive_frame()
        sender.join()
    wait_until(lambda: client.end_offset(topic) == len(values), "everything is synced")
    assert read_values(client, topic) == values


def send_each(writer: RawClient, topic: str, held_up: bytes, values: list[bytes]) -> None:
    for value in values:
        writer.send_bytes(held_up + frame(ApiKey.PRODUCE, 9, produce_body(topic, 0, batch_of(value), acks=1)))


def read_values(client: RawClient, topic: str) -> list[bytes | None]:
    """Every value of a partition, each batch with its checksum checked."""
    values: list[bytes | None] = []
    end = client.end_offset(topic)
    while len(values) < end:
        row = client.fetch(topic, 0, len(values))
        assert row["error_code"] == 0, row["error_code"]
        records = bytes(row["records"])
        for start, stop in batch_spans(records):
            check_batch(records, start, stop)
            values += [record.value for record in records_of(records[start:stop])]
    return values


# --- frames that never end --------------------------------------------------------------------------------------------


class HastyClock(RealClock):
    """The real time, plus what a test adds."""

    ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class HastyNode:
    """A node in this process whose listener can be told that time has passed."""

    def __init__(self, life: NodeThread) -> None:
        assert life.node is not None
        self.bootstrap = life.node.bootstrap
        self.clock = HastyClock()
        self.listener = life.node.listener
        self._life = life
        life.call(lambda: setattr(self.listener, "clock", self.clock))
        life.call(lambda: setattr(self.listener.poller, "clock", self.clock))

    def connection_count(self) -> int:
        return self._life.call(lambda: len(self.listener.connections))

    def buffered_bytes(self) -> int:
        """What has arrived of frames that are not whole."""
        return self._life.call(lambda: sum(len(each._buffer) for each in self.listener.connections))

    def memory_taken(self) -> int:
        return self._life.call(lambda: self.listener.memory.bytes_taken)


@pytest.fixture
def hasty(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[HastyNode]:
    monkeypatch.setattr(listener_module, "SWEEP_SECONDS", 0.02)
    settings = {
        "listen": "127.0.0.1:0",
        "data.dir": str(tmp_path),
        "request.memory.bytes.max": str(128 * MIB),
    }
    life = NodeThread(NodeSettings.load(settings), RealFiles())
    life.start()
    try:
        yield HastyNode(life)
    finally:
        life.stop()


def test_a_frame_that_stops_arriving_is_closed(hasty: HastyNode) -> None:
    with RawClient(hasty.bootstrap) as client:
        client.send_bytes(struct.pack(">i", 1000) + b"\0" * 10)
        wait_until(lambda: hasty.buffered_bytes() == 14, "the beginning has arrived")
        hasty.clock.ahead_ms += 31_000
        client.expect_closed()
    assert hasty.connection_count() == 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_size_that_stops_arriving_is_closed(hasty: HastyNode, count: int) -> None:
    with RawClient(hasty.bootstrap) as client:
        client.send_bytes(b"\0" * count)
        wait_until(lambda: hasty.buffered_bytes() == count, "the beginning has arrived")
        hasty.clock.ahead_ms += 31_000
        client.expect_closed()


def arrive(hasty: HastyNode, client: RawClient, data: bytes, total: int) -> None:
    """Send a part of a frame and wait until that many bytes of it are there, or the frame is whole."""
    client.send_bytes(data)
    wait_until(lambda: hasty.buffered_bytes() in (total, 0), f"{total} bytes have arrived")


def test_a_frame_that_trickles_in_without_end_is_closed(hasty: HastyNode) -> None:
    with RawClient(hasty.bootstrap) as client:
        arrive(hasty, client, struct.pack(">i", 100_000_000), 4)
        for count in range(5, 12):
            arrive(hasty, client, b"\0", count)
            hasty.clock.ahead_ms += 5_000
        client.expect_closed()
    assert hasty.connection_count() == 0


def test_a_large_frame_that_arrives_slowly_but_steadily_is_answered(hasty: HastyNode) -> None:
    with RawClient(hasty.bootstrap) as client:
        client.create_topic("slow")
        whole = frame(ApiKey.PRODUCE, 9, produce_body("slow", 0, batch_of(b"x" * 900_000)))
        for start in range(0, len(whole), 150_000):
            arrive(hasty, client, whole[start : start + 150_000], start + 150_000)
            hasty.clock.ahead_ms += 14_000
        answer = client.receive(ApiKey.PRODUCE, 9, 1)
        assert only(only(answer["responses"])["partition_responses"])["error_code"] == 0


def test_an_idle_connection_is_closed_after_its_time_and_not_before(hasty: HastyNode) -> None:
    with RawClient(hasty.bootstrap) as client:
        client.ask(ApiKey.API_VERSIONS, 0, {})
        hasty.clock.ahead_ms += 590_000
        assert client.ask(ApiKey.API_VERSIONS, 0, {})["error_code"] == 0
        hasty.clock.ahead_ms += 601_000
        client.expect_closed()


def test_a_client_that_hung_up_while_it_was_not_read_is_noticed(hasty: HastyNode) -> None:
    """A long poll holds the connection, and what was sent behind it fills the buffer: the end is not seen."""
    with RawClient(hasty.bootstrap) as client:
        client.create_topic("quiet")
        waiting = frame(ApiKey.FETCH, 12, fetch_body("quiet", 0, 0, wait_ms=2**31 - 1))
        client.send_bytes(waiting * 500)
        wait_until(lambda: hasty.buffered_bytes() > 1000, "what follows the first waits")
    hasty.clock.ahead_ms += 31_000
    wait_until(lambda: hasty.connection_count() == 0, "the connection is let go")


def test_a_client_that_waits_long_for_its_answer_is_kept(hasty: HastyNode) -> None:
    with RawClient(hasty.bootstrap) as client, RawClient(hasty.bootstrap) as writer:
        writer.create_topic("quiet")
        waiting = frame(ApiKey.FETCH, 12, fetch_body("quiet", 0, 0, wait_ms=2**31 - 1))
        client.send_bytes(waiting * 500)
        wait_until(lambda: hasty.buffered_bytes() > 1000, "what follows the first waits")
        for _ in range(3):
            hasty.clock.ahead_ms += 300_000
            writer.ask(ApiKey.API_VERSIONS, 0, {})
        writer.produce("quiet", 0, batch_of(b"x"))
        for _ in range(500):
            assert client.receive_frame()[:4] == (1).to_bytes(4, "big")


def test_a_reader_that_takes_nothing_is_closed_after_the_idle_time(hasty: HastyNode) -> None:
    with RawClient(hasty.bootstrap) as client:
        client.create_topic("unread")
        for _ in range(8):
            client.produce("unread", 0, batch_of(b"x" * 1_000_000))
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        push(client, frame(ApiKey.FETCH, 12, fetch_body("unread", 0, 0)) * 100)
        assert hasty.connection_count() == 1
        hasty.clock.ahead_ms += 601_000
        wait_until(lambda: hasty.connection_count() == 0, "it is closed")


def test_large_frames_that_stall_make_way_for_one_that_does_not(hasty: HastyNode) -> None:
    """Stalled frames hold all the memory for requests; another one gets its share when they are closed."""
    sizes = (100_000_000, 34_300_000)
    stalled = [RawClient(hasty.bootstrap) for _ in sizes]
    for each, size in zip(stalled, sizes, strict=True):
        each.send_bytes(struct.pack(">i", size) + bytes(MIB))
    wait_until(lambda: hasty.memory_taken() >= 127 * MIB, "the stalled ones have the memory they need")
    with RawClient(hasty.bootstrap) as client:
        client.create_topic("another")
        writer = threading.Thread(target=client.produce, args=("another", 0, batch_of(b"x" * 900_000)))
        writer.start()
        hasty.clock.ahead_ms += 4_000
        writer.join()
        assert client.end_offset("another") == 1
    for each in stalled:
        each.sock.close()
