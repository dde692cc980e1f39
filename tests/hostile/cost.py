"""What a request costs a node: how long others wait meanwhile, and how much memory it takes and keeps.

`Probe` asks for ApiVersions on a connection of its own, one request after the other, and remembers the longest wait.
"""

import threading
import time
from typing import NamedTuple, Self

from anabranch.wire.api_keys import ApiKey
from support.process_memory import ProcessMemory
from support.raw_client import ClosedByBroker, RawClient

MIB = 2**20

PAUSE_SECONDS = 0.002
SETTLE_SECONDS = 0.3
"""How long after an answer a node may still be busy with the request, or free what it took."""
ANSWER_SECONDS_MAX = 120.0


class Cost(NamedTuple):
    name: str
    answer: str
    """What became of the requests: `answered`, `closed` or `no answer`."""
    seconds: float
    stall_ms: float
    """The longest wait of somebody else."""
    peak_mb: float
    kept_mb: float


class Probe:
    def __init__(self, bootstrap: str) -> None:
        self._client = RawClient(bootstrap)
        self._client.sock.settimeout(ANSWER_SECONDS_MAX)
        self._is_ended = threading.Event()
        self._worst_seconds = 0.0
        self._begun: float | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()
        self._client.sock.close()

    def _run(self) -> None:
        while not self._is_ended.is_set():
            self._begun = begun = time.perf_counter()
            self._client.ask(ApiKey.API_VERSIONS, 0, {})
            self._begun = None
            self._worst_seconds = max(self._worst_seconds, time.perf_counter() - begun)
            time.sleep(PAUSE_SECONDS)

    def reset(self) -> None:
        self._worst_seconds = 0.0

    @property
    def worst_ms(self) -> float:
        begun = self._begun
        waiting = time.perf_counter() - begun if begun is not None else 0.0
        return 1000 * max(self._worst_seconds, waiting)


class Target(ProcessMemory):
    """A node or a broker in a process of its own."""

    def __init__(self, bootstrap: str, pid: int) -> None:
        self.bootstrap = bootstrap
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid


def cost_of(node: Target, probe: Probe, name: str, frames: list[bytes]) -> Cost:
    """Send the frames on one connection, each after the answer to the one before, and measure."""
    before = node.rss_bytes()
    node.forget_peak()
    probe.reset()
    begun = time.perf_counter()
    answer = "answered"
    with RawClient(node.bootstrap) as client:
        client.sock.settimeout(ANSWER_SECONDS_MAX)
        try:
            for frame in frames:
                client.send_frame(frame)
                client.receive_frame()
        except (ClosedByBroker, ConnectionError):
            answer = "closed"
        except TimeoutError:
            answer = "no answer"
    seconds = time.perf_counter() - begun
    time.sleep(SETTLE_SECONDS)
    peak, kept = node.peak_bytes() - before, node.rss_bytes() - before
    return Cost(name, answer, seconds, probe.worst_ms, peak / MIB, kept / MIB)
