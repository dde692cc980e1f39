"""Nginx: Debian's nginx in front of a node's HTTP port, as an operator would set it up.

    with Nginx(folder, "127.0.0.1:8080") as proxy:
        http.client.HTTPConnection("127.0.0.1", proxy.port)

One worker, no root, everything it writes in `folder`. The `location` is taken out of docs/gateway.md: what is proved
with it is what people are told to write.
"""

import random
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from anabranch.local_cluster.ports import random_block
from clients.registries import program

START_S_MAX = 20.0
DOCS = Path(__file__).parents[2] / "docs" / "gateway.md"
BACKEND = "http://127.0.0.1:8080"
CONFIG = """\
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    log_format upstreams '$upstream_addr $status $request';
    access_log {folder}/access.log upstreams;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $websocket {{ default ''; ~*^websocket$ websocket; }}
    map $websocket $connection_upgrade {{ default ''; websocket upgrade; }}
    upstream anabranch {{ {servers} keepalive 16; }}
    server {{
        listen 127.0.0.1:{port};
{location}
    }}
}}
"""


def documented() -> str:
    """What operators are told to write, but for the node's address."""
    text = DOCS.read_text(encoding="utf-8").split("```nginx\n")[1].split("```")[0]
    assert text.count(BACKEND) == 1, "the example names its node once"
    return text.replace(BACKEND, "http://anabranch")


class Nginx:
    """In front of one node, or of several in turn."""

    def __init__(self, folder: Path, *upstreams: str) -> None:
        self._folder = folder
        self._upstreams = upstreams
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        binary = program("nginx", "nginx-light")
        self.port = random_block("127.0.0.1", 1, random.Random()).start
        config = self._folder / "nginx.conf"
        servers = " ".join(f"server {each};" for each in self._upstreams)
        config.write_text(
            CONFIG.format(folder=self._folder, servers=servers, port=self.port, location=documented())
        )
        with (self._folder / "nginx.log").open("wb") as log:
            command = [binary, "-c", str(config), "-p", str(self._folder), "-e", "stderr"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"nginx did not come up: {self.last_words()}") from None
                time.sleep(0.02)

    def asked(self) -> set[str]:
        """Who has answered requests so far."""
        lines = (self._folder / "access.log").read_text().splitlines()
        return {line.split(" ")[0].rstrip(",") for line in lines}

    def last_words(self) -> str:
        return (self._folder / "nginx.log").read_text(errors="replace")[-2000:]

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
