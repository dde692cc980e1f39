"""A second S3-speaking server, by others and in another language: it checks signatures, and moto does not."""

import random
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from anabranch.local_cluster.ports import random_block
from clients.registries import go_tool, or_skip
from support.s3_server import CREDENTIALS, REGION
from support.waiting import wait_until

VERSITY = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
START_S_MAX = 30.0


class VersityServer(NamedTuple):
    endpoint: str
    folder: Path

    def make_bucket(self) -> str:
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        (self.folder / bucket).mkdir()
        return bucket

    def url(self, bucket: str) -> str:
        return f"s3://{bucket}/tests?endpoint={self.endpoint}&region={REGION}"


@pytest.fixture(scope="session")
def versity_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VersityServer]:
    """Built from its source through Go; what is missing is said."""
    program = or_skip(lambda: go_tool(*VERSITY))
    folder = tmp_path_factory.mktemp("versity")
    buckets = folder / "buckets"
    buckets.mkdir()
    port = random_block("127.0.0.1", 1, random.Random())[0]
    address = f"127.0.0.1:{port}"
    keys = ["--access", CREDENTIALS["AWS_ACCESS_KEY_ID"], "--secret", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
    command = [
        str(program),
        *keys,
        "--region",
        REGION,
        "--port",
        address,
        "--keep-alive",
        "--quiet",
        "posix",
        str(buckets),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port, process, folder / "log"), "versitygw", START_S_MAX)
        yield VersityServer(f"http://{address}", buckets)
    finally:
        process.kill()
        process.wait()


def answers(port: int, process: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def versity_url(versity_server: VersityServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket there, and its credentials in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return versity_server.url(versity_server.make_bucket())
