"""Network: hosts on one wire that can be cut into sides, made of the kernel's own network namespaces.

    with Network(7) as network:
        subprocess.Popen([*network.enter(0), "python", ...])     # runs on host 0, at network.address(0)
        network.split([[0, 1, 5], [2, 3, 4, 6]])                 # what one side sends never arrives at the other
        network.heal()

Packets are dropped, as a broken switch does: nobody is told. Needs root, and the program `ip` (Debian: iproute2).
Nothing of it can be seen from outside, and all of it is gone in the end.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

HOSTS_MAX = 250
SIDES_MAX = 4


class CannotSplitError(Exception):
    """This machine lets nobody make networks; says what is missing."""


class Network:
    def __init__(self, hosts: int) -> None:
        assert hosts <= HOSTS_MAX
        self.hosts = hosts
        self._name = f"anb{os.getpid()}"
        self._made: list[str] = []

    @property
    def _switch(self) -> str:
        return f"{self._name}-switch"

    def _host(self, number: int) -> str:
        return f"{self._name}-{number}"

    def address(self, host: int) -> str:
        return f"10.0.0.{host + 1}"

    def enter(self, host: int) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self._host(host)]

    # --- life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            raise CannotSplitError("the program ip is missing (Debian: iproute2)")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.__exit__(None, None, None)
            raise CannotSplitError(f"`{' '.join(error.cmd)}`: {error.stderr.strip()}") from error
        return self

    def _make(self) -> None:
        self._add(self._switch)
        for side in range(SIDES_MAX):
            self._ip("-n", self._switch, "link", "add", f"side{side}", "type", "bridge")
            self._ip("-n", self._switch, "link", "set", f"side{side}", "up")
        for number in range(self.hosts):
            self._make_host(number)

    def _make_host(self, number: int) -> None:
        host, port = self._host(number), f"port{number}"
        self._add(host)
        self._ip(
            *("link", "add", "wire", "netns", host, "type", "veth"),
            *("peer", "name", port, "netns", self._switch),
        )
        self._ip("-n", self._switch, "link", "set", port, "master", "side0")
        self._ip("-n", self._switch, "link", "set", port, "up")
        self._ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", "wire")
        for link in ("wire", "lo"):
            self._ip("-n", host, "link", "set", link, "up")

    def _add(self, namespace: str) -> None:
        self._ip("netns", "add", namespace)
        self._made.append(namespace)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False, capture_output=True)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    # --- splits ------------------------------------------------------------------------------------------------

    def split(self, sides: Sequence[Sequence[int]]) -> None:
        """Every host belongs to one side."""
        assert sorted(host for side in sides for host in side) == list(range(self.hosts)), sides
        assert len(sides) <= SIDES_MAX
        for side, hosts in enumerate(sides):
            for host in hosts:
                self._ip("-n", self._switch, "link", "set", f"port{host}", "master", f"side{side}")

    def heal(self) -> None:
        self.split([range(self.hosts)])
