"""An S3-speaking server as a real process: moto's, from the same environment as the tests.

One serves a whole test session; each test gets a bucket of its own, gone after it. It checks no signatures, so any
credentials will do, but there must be some.
"""

import os
import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from support.waiting import wait_until

START_S_MAX = 60.0
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIATESTKEYID", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests"}
# It ends with the tests, however they end.
PROGRAM = """
import sys
from anabranch.local_cluster.exit_with_parent import exit_with_parent
exit_with_parent(int(sys.argv[1]))
from moto.server import main
main(["-H", "127.0.0.1", "-p", "0"])
"""


class S3Server:
    """Usable as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "s3-server.log"
        self.endpoint = ""

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stderr=log,
                stdout=log,
            )
        self.endpoint = wait_until(self._announced, "the S3 server", START_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _announced(self) -> str:
        said = self._log.read_text(errors="replace")
        assert self._process.poll() is None, said
        found = re.search(r"Running on (http://[0-9.:]+)", said)
        return found[1] if found else ""

    def make_bucket(self) -> str:
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        self._ask("PUT", f"/{bucket}")
        return bucket

    def remove_bucket(self, bucket: str) -> None:
        while keys := re.findall(r"<Key>([^<]+)</Key>", self._ask("GET", f"/{bucket}?list-type=2")):
            listed = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
            self._ask("POST", f"/{bucket}?delete", f"<Delete>{listed}</Delete>".encode())
        self._ask("DELETE", f"/{bucket}")

    def url(self, bucket: str, prefix: str = "", endpoint: str = "") -> str:
        """Of that bucket; at another endpoint if there is a proxy in front."""
        return f"s3://{bucket}/{prefix}?endpoint={endpoint or self.endpoint}&region={REGION}"

    def _ask(self, method: str, path: str, body: bytes | None = None) -> str:
        headers = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request",
            "Content-Type": "application/xml",
        }
        request = urllib.request.Request(self.endpoint + path, body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=START_S_MAX) as answer:
            return str(answer.read().decode())


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket, and credentials in the environment of this process and of those it starts."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.make_bucket()
    yield bucket
    s3_server.remove_bucket(bucket)


@pytest.fixture
def s3_url(s3_server: S3Server, s3_bucket: str) -> str:
    """What to give as `--object-store`."""
    return s3_server.url(s3_bucket, "tests")
