"""What can happen to a cluster, drawn by seed: each fault begins, lasts a while, and is undone.

`Faults` is told which it may use; those that need the help of the system (packet loss, a full disk) come with
`PacketLoss` and `FullDisk`, which say aloud why they cannot be had.
"""

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from anabranch.testing import ClusterProcesses
from chaos.cluster_load import now_ms

LOSS_PERCENT = 30
DISK_MIB = 256


class Fault(NamedTuple):
    kind: str
    broker: int
    """Whom it is about."""
    other: int | None
    at_ms: int
    led: tuple[int, ...]
    """Partitions that this broker led then."""
    seconds: float


class PacketLoss:
    """Drops some of the packets between brokers, in a network namespace of our own."""

    def __init__(self, ports: list[int], nft: str) -> None:
        self._nft = nft
        self._ports = ",".join(map(str, ports))

    def begin(self) -> None:
        self._run("add", "table", "inet", "chaos")
        self._run("add", "chain", "inet", "chaos", "input", "{ type filter hook input priority 0; }")
        for way in ("dport", "sport"):
            rule = f"tcp {way} {{ {self._ports} }} numgen random mod 100 < {LOSS_PERCENT} drop"
            self._run("add", "rule", "inet", "chaos", "input", *rule.split())

    def end(self) -> None:
        self._run("delete", "table", "inet", "chaos")

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._nft, *arguments], check=True, capture_output=True, text=True)


class FullDisk:
    """One broker's folder on a small disk of its own, which can be filled and emptied."""

    def __init__(self, broker: int, folder: Path) -> None:
        self.broker = broker
        self._folder = folder
        self._filler = folder / "filler"
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)],
            check=True,
            capture_output=True,
            text=True,
        )

    def begin(self) -> None:
        block = bytes(2**16)
        with self._filler.open("wb", buffering=0) as filler:
            try:
                while filler.write(block):
                    pass
            except OSError:
                return  # Full, as it should be.

    def end(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder back, once its broker has stopped; what was on the disk is gone with it."""
        subprocess.run(["umount", str(self._folder)], check=True, capture_output=True, text=True)


@dataclass(slots=True)
class Faults:
    cluster: ClusterProcesses
    topic: str
    partitions: int
    rng: random.Random
    say: Callable[[str], None]
    loss: PacketLoss | None = None
    disk: FullDisk | None = None
    seconds: tuple[float, float] = (1.0, 4.0)
    done: list[Fault] = field(default_factory=list)

    def kinds(self) -> dict[str, Callable[[int], int | None]]:
        """What there is to choose from, and how it begins."""
        kinds: dict[str, Callable[[int], int | None]] = {
            "kill leader": self._kill,
            "pause leader": self._pause,
            "restart": self._restart,
        }
        if len(self.cluster.ids) > 1:
            kinds |= {
                "kill follower": self._kill,
                "kill controller": self._kill,
                "pause follower": self._pause,
                "cut": self._cut,
                "cut one way": self._cut_one_way,
                "isolate leader": self._isolate,
                "isolate": self._isolate,
            }
        if self.loss is not None:
            kinds["packet loss"] = self._lose_packets
        if self.disk is not None:
            kinds["full disk"] = self._fill_disk
        return kinds

    def strike(self, kind: str | None = None) -> Fault:
        """One fault from its beginning to its end, after which every broker is up again."""
        kinds = self.kinds()
        kind = kind or self.rng.choice(list(kinds))
        broker = self._victim(kind)
        led = self._led_by(broker)
        at_ms = now_ms()
        seconds = self.rng.uniform(*self.seconds)
        other = kinds[kind](broker)
        fault = Fault(kind, broker, other, at_ms, led, seconds)
        self.done.append(fault)
        self.say(f"{kind}: broker {broker}{'' if other is None else f' and {other}'} for {seconds:.1f} s")
        time.sleep(seconds)
        self.undo()
        return fault

    def undo(self) -> None:
        if self.loss is not None and self.done and self.done[-1].kind == "packet loss":
            self.loss.end()
        if self.disk is not None:
            self.disk.end()
        self.cluster.recover()

    # --- whom ----------------------------------------------------------------------------------------------------

    def _victim(self, kind: str) -> int:
        """Drawn even where it is not needed, so that the seed decides the rest alike."""
        anybody = self.rng.choice(self.cluster.ids)
        leader = self.cluster.leaders(self.topic).get(self.rng.randrange(self.partitions))
        if kind.endswith(" leader") and leader is not None:
            return leader
        if kind.endswith(" follower") and leader == anybody:
            return self.cluster.ids[(anybody + 1) % len(self.cluster.ids)]
        if kind == "kill controller":
            return self.cluster.controller()
        if kind == "full disk":
            assert self.disk is not None
            return self.disk.broker
        return anybody

    def _led_by(self, broker: int) -> tuple[int, ...]:
        return tuple(
            number for number, leader in self.cluster.leaders(self.topic).items() if leader == broker
        )

    def _other(self, broker: int) -> int:
        return self.rng.choice([other for other in self.cluster.ids if other != broker])

    # --- what ----------------------------------------------------------------------------------------------------

    def _kill(self, broker: int) -> None:
        self.cluster.kill(broker)

    def _pause(self, broker: int) -> None:
        self.cluster.pause(broker)

    def _cut(self, broker: int) -> int:
        other = self._other(broker)
        self.cluster.cut(broker, other)
        return other

    def _cut_one_way(self, broker: int) -> int:
        other = self._other(broker)
        self.cluster.cut(broker, other, one_way=True)
        return other

    def _isolate(self, broker: int) -> None:
        self.cluster.isolate(broker)

    def _restart(self, broker: int) -> None:
        self.cluster.restart(broker)

    def _lose_packets(self, broker: int) -> None:
        assert self.loss is not None
        self.loss.begin()

    def _fill_disk(self, broker: int) -> None:
        assert self.disk is not None
        self.disk.begin()
