"""Brokers that do not belong together, as a person at the terminal meets them: real processes, which end with exit code
1 and one sentence, and do the running cluster no harm."""

import asyncio
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from anabranch.config import NodeSettings, host_and_port
from anabranch.errors import PeerUnreachableError
from anabranch.local_cluster.cluster_client import ClusterClient
from anabranch.local_cluster.ports import random_block
from anabranch.node import Node
from anabranch.server.peers import handshake as peer_handshake
from anabranch.server.peers import port as peer_port
from anabranch.server.peers.handshake import Identity, Kind, next_frame
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.node_process import NodeProcess
from support.secret_files import write_secret
from support.waiting import wait_until

HOST = "127.0.0.1"
END_S_MAX = 40.0


class Ended(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def sentence(self) -> str:
        """What it said last; the lines before are JSON logs. A traceback is neither."""
        *logs, last = self.stderr.splitlines()
        assert all(line.startswith("{") for line in logs), self.stderr
        return last


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("strangers")
    for name in ("secret", "other-secret"):
        write_secret(made / name, secrets.token_hex(32))
        (made / name).chmod(0o600)
    return made


def peer_settings(folder: Path, broker_id: int, secret: str = "secret", join: str = "") -> dict[str, str]:
    [port] = random_block(HOST, 1, random.Random())
    settings = {
        "broker.id": str(broker_id),
        "peer.listen": f"{HOST}:{port}",
        "cluster.secret.file": str(folder / secret),
    }
    return {**settings, "peer.join": join} if join else settings


@pytest.fixture(scope="module")
def founder(folder: Path) -> Iterator[NodeProcess]:
    """Broker 0 of a cluster that others want to join."""
    place = folder / "founder"
    place.mkdir()
    with NodeProcess(place, peer_settings(folder, 0), log_level="warning") as node:
        yield node


def command(folder: Path, settings: dict[str, str], data_dir: str) -> list[str]:
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    up = [sys.executable, "-m", "anabranch", "up", "--listen", f"{HOST}:0"]
    return [*up, "--data-dir", str(folder / data_dir), *sets]


def run(folder: Path, settings: dict[str, str], data_dir: str) -> Ended:
    done = subprocess.run(
        command(folder, settings, data_dir), capture_output=True, text=True, timeout=END_S_MAX, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def is_well(node: NodeProcess) -> bool:
    """Whether it still answers, and can agree on something."""
    topic = {"name": secrets.token_hex(8), "num_partitions": 1, "replication_factor": 1}
    with ClusterClient(node.bootstrap) as client:
        answer = client.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 5000})
    return bool(answer["topics"][0]["error_code"] == ErrorCode.NONE)


# --- joining ----------------------------------------------------------------------------------------------------


def test_a_wrong_secret(folder: Path, founder: NodeProcess) -> None:
    join = str(founder.ready["peer"])
    ended = run(folder, peer_settings(folder, 1, "other-secret", join), "wrong-secret")
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.sentence == (
        "Error: the two brokers do not have the same cluster secret: start both with the same --cluster-secret-file."
    )
    assert is_well(founder)


def test_a_folder_of_another_cluster(folder: Path, founder: NodeProcess) -> None:
    place = folder / "elsewhere"
    place.mkdir()
    with NodeProcess(place, peer_settings(folder, 5)) as other:
        ids = other.ready["cluster_id"], founder.ready["cluster_id"]
    ended = run(folder, peer_settings(folder, 5, join=str(founder.ready["peer"])), "elsewhere/data")
    assert ended.exit_code == 1
    assert ended.sentence == (
        f"Error: broker 5 belongs to the cluster '{ids[0]}', broker 0 to '{ids[1]}': connect brokers of one cluster, "
        "or join with an empty data folder."
    )
    assert is_well(founder)


def test_the_id_of_the_broker_that_is_joined(folder: Path, founder: NodeProcess) -> None:
    ended = run(folder, peer_settings(folder, 0, join=str(founder.ready["peer"])), "same-id")
    assert ended.exit_code == 1
    assert ended.sentence == (
        "Error: two brokers call themselves broker 0: give one of them another --broker-id, with a data folder of its "
        "own."
    )


def test_the_id_of_another_broker_that_runs(folder: Path, founder: NodeProcess) -> None:
    place = folder / "first"
    place.mkdir()
    join = str(founder.ready["peer"])
    with NodeProcess(place, peer_settings(folder, 1, join=join)):
        ended = run(folder, peer_settings(folder, 1, join=join), "second")
    assert ended.exit_code == 1
    assert ended.sentence == (
        "Error: a broker 1 with another data folder is connected to broker 0: two brokers run under one id; give one "
        "of them another --broker-id, with a data folder of its own."
    )


def test_an_address_where_nobody_is_can_be_given_up(folder: Path) -> None:
    [port] = random_block(HOST, 1, random.Random())
    up = command(folder, peer_settings(folder, 1, join=f"{HOST}:{port}"), "dead-address")
    with subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=END_S_MAX)
    assert f"no broker of the cluster answers yet, trying on: {HOST}:{port}: it cannot be reached " in line
    assert "(Connection refused): is the broker running, and is the address right?" in line
    assert (process.returncode, *rest) == (0, "", "")


def test_an_address_where_nobody_is_ends_the_start_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_port, "JOIN_SECONDS_MAX", 0.3)
    [port] = random_block(HOST, 1, random.Random())
    settings = {**peer_settings(folder, 1, join=f"{HOST}:{port}"), "data.dir": str(folder / "gave-up")}
    node = Node(NodeSettings.load({**settings, "listen": f"{HOST}:0"}))
    with pytest.raises(PeerUnreachableError) as caught:
        asyncio.run(node.start())
    assert str(caught.value) == (
        f"No broker of the cluster has answered for 0 s: check --join, or start one of those brokers first. "
        f"{HOST}:{port}: it cannot be reached (Connection refused): is the broker running, and is the address right?"
    )


# --- strangers at the peer port -----------------------------------------------------------------------------------


def old_hello() -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_handshake, "PROTOCOL_VERSION", 0)
        return next(peer_handshake.dial(Identity("", 7, "folder"), None, b"", bytes(32), lambda them: None))


@contextmanager
def old_broker() -> Iterator[str]:
    """A broker of an older release, as far as its first words go."""
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(old_hello())
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"{HOST}:{server.getsockname()[1]}"
        thread.join()


def test_a_broker_of_an_older_release_is_not_joined(folder: Path) -> None:
    with old_broker() as join:
        ended = run(folder, peer_settings(folder, 1, join=join), "old-release")
    assert ended.exit_code == 1
    assert ended.sentence == (
        "Error: one broker speaks version 0 of the peer protocol, the other 2: run one release of anabranch on all "
        "brokers."
    )


def said_to(address: str, data: bytes) -> bytes:
    """What somebody gets who sends this."""
    with socket.create_connection(host_and_port(address), END_S_MAX) as connection:
        connection.sendall(data)
        received = b""
        while more := connection.recv(4096):
            received += more
    return received


def test_a_broker_of_an_older_release_is_told_why_it_is_not_let_in(founder: NodeProcess) -> None:
    found = next_frame(said_to(str(founder.ready["peer"]), old_hello()))
    assert found is not None
    assert found[0].kind is Kind.REFUSAL
    assert b"run one release of anabranch on all brokers" in found[0].body
    assert is_well(founder)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\xff" * 1000, random.Random(6).randbytes(1000)],
    ids=["HTTP", "large numbers", "noise"],
)
def test_garbage_at_the_peer_port_gets_no_answer_and_does_no_harm(
    founder: NodeProcess, garbage: bytes
) -> None:
    with suppress(ConnectionResetError):  # If it did not even read all of it.
        assert said_to(str(founder.ready["peer"]), garbage) == b""
    wait_until(
        lambda: "what came is not the peer protocol of anabranch" in founder.last_words(), "a word of it"
    )
    assert is_well(founder)


# --- leaving ------------------------------------------------------------------------------------------------------


def test_a_broker_that_keeps_the_only_copy_is_not_removed(folder: Path, founder: NodeProcess) -> None:
    place = folder / "keeper"
    place.mkdir()
    with NodeProcess(place, peer_settings(folder, 2, join=str(founder.ready["peer"]))) as keeper:
        only_here = {"name": "only-here", "num_partitions": -1, "replication_factor": -1}
        only_here["assignments"] = [{"partition_index": 0, "broker_ids": [2]}]
        with ClusterClient(keeper.bootstrap) as client:
            made = client.ask(ApiKey.CREATE_TOPICS, {"topics": [only_here], "timeout_ms": 5000})
            assert made["topics"][0]["error_code"] == ErrorCode.NONE
            answer = client.ask(ApiKey.UNREGISTER_BROKER, {"broker_id": 2})
        assert answer["error_code"] == ErrorCode.INVALID_REQUEST
        assert (
            "1 of them as the only copy: move them away first with `anabranch cluster drain 2`."
            in (answer["error_message"])
        )
        remove = [sys.executable, "-m", "anabranch", "cluster", "remove", "2", "--yes"]
        done = subprocess.run(
            [*remove, "--bootstrap", founder.bootstrap],
            capture_output=True,
            text=True,
            timeout=END_S_MAX,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: Broker 2 holds the only copy of only-here-0: move them away first with `anabranch cluster drain 2`.\n"
    )
