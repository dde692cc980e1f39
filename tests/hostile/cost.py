"""What a request costs a node: how long others wait meanwhile, and how much memory it takes and keeps."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hostile.probes import ANSWER_SECONDS_MAX, Probes
from support.process_memory import ProcessMemory
from support.raw_client import ClosedByBroker, RawClient

MIB = 2**20

STALL_MS_MAX = 250.0
KEPT_MB_MAX = 64.0
PEAK_MB_MAX = 256.0 + 128.0
"""`request.memory.bytes.max` and `unpack.memory.bytes.max`."""

SETTLE_SECONDS = 0.3
SETTLE_SECONDS_MAX = 20.0
"""How long after an answer a node may still be busy with the request, and keep what it took and freed."""


NO_ANSWER = "no answer"
Frame = bytes | Callable[[bytes], bytes]
"""A request, or how to make it from the answer to the one before."""


class Cost(NamedTuple):
    name: str
    answer: str
    """What became of the requests: `answered`, `closed` or `no answer`."""
    seconds: float
    stall_ms: float
    """The longest wait of somebody else."""
    peak_mb: float
    kept_mb: float

    @property
    def is_within(self) -> bool:
        return self.stall_ms <= STALL_MS_MAX and self.kept_mb <= KEPT_MB_MAX and self.peak_mb <= PEAK_MB_MAX


class Target(ProcessMemory):
    """A node or a broker in a process of its own."""

    def __init__(self, bootstrap: str, http: str, pid: int, broker_id: int = 0) -> None:
        self.bootstrap = bootstrap
        self.http = http
        self.broker_id = broker_id
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid


def cost_of(
    node: Target, probes: Probes, name: str, send: Callable[[], str], settle_seconds: float = SETTLE_SECONDS
) -> Cost:
    """Carry out `send`, which tells what became of it, and measure."""
    before = node.rss_bytes()
    node.forget_peak()
    probes.longest_ms()
    begun = time.perf_counter()
    answer = send()
    seconds = time.perf_counter() - begun
    time.sleep(settle_seconds)
    while (
        node.rss_bytes() - before > KEPT_MB_MAX * MIB
        and time.perf_counter() < begun + seconds + SETTLE_SECONDS_MAX
    ):
        time.sleep(SETTLE_SECONDS)
    stall_ms = max(probes.longest_ms().values())
    peak, kept = node.peak_bytes() - before, node.rss_bytes() - before
    return Cost(name, answer, seconds, stall_ms, peak / MIB, kept / MIB)


def exchange(bootstrap: str, frames: Sequence[Frame]) -> str:
    """Send the frames on one connection, each after the answer to the one before."""
    with RawClient(bootstrap) as client:
        client.sock.settimeout(ANSWER_SECONDS_MAX)
        try:
            last = b""
            for frame in frames:
                client.send_frame(frame if isinstance(frame, bytes) else frame(last))
                last = client.receive_frame()
        except (ClosedByBroker, ConnectionError):
            return "closed"
        except TimeoutError:
            return NO_ANSWER
    return "answered"
