"""The memory of a process, as /proc tells it."""

from abc import ABC, abstractmethod
from pathlib import Path


class ProcessMemory(ABC):
    """Mix-in for what knows the id of its process."""

    @property
    @abstractmethod
    def pid(self) -> int: ...

    def rss_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The largest resident size since `forget_peak`."""
        return self._status_bytes("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} in /proc: has the process died?")
