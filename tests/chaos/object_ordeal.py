"""ObjectOrdeal: by a seed, a store that fails and brokers that are killed, stopped, paused and cut off, all under load.

Small merges and early collection run meanwhile, so that objects come and go under those who read them. After each fault
records must be taken again; how long that took is noted.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from anabranch.testing.store_proxy import Trouble
from chaos.object_run import ObjectRun

SETTINGS: dict[str, object] = {
    "object.merge.bytes": 200_000,
    "object.collect.ms": 20_000,
    "object.snapshot.ms": 5_000,
}
TROUBLES = [trouble for trouble in Trouble if trouble not in (Trouble.NOT_IMPLEMENTED, Trouble.DENIED)]
"""One that refuses our credentials would keep a broker from starting again."""


class ObjectOrdeal:
    def __init__(self, run: ObjectRun, seed: int, say: Callable[[str], None]) -> None:
        self._run, self._rng, self._say = run, Random(seed), say
        self.recoveries: list[tuple[str, float]] = []
        """What happened, and after how many seconds records were taken again."""

    def last(self, seconds: float) -> None:
        faults = [self._store, self._store, self._kill, self._kill_after_put, self._stop, self._pause]
        faults += [self._isolate, self._store_and_kill]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault, broker = self._rng.choice(faults), self._rng.choice(self._run.cluster.ids)
            name = fault.__name__.strip("_").replace("_", " ")
            fault(broker)
            begun = time.monotonic()
            self._run.wait_for_acknowledgements()
            self.recoveries.append((name, time.monotonic() - begun))
            self._say(
                f"{end - time.monotonic():5.0f} s left: {name} {broker}, {self.recoveries[-1][1]:.1f} s"
            )

    def _sleep(self, seconds_max: float) -> None:
        time.sleep(self._rng.uniform(0, seconds_max))

    def _fail_some(self) -> None:
        for trouble in self._rng.sample(TROUBLES, 3):
            self._run.proxy.fail(trouble, share=self._rng.choice((0.1, 0.3, 0.6)))

    def _store(self, broker: int) -> None:
        self._fail_some()
        self._sleep(5)
        self._run.proxy.heal()

    def _kill(self, broker: int) -> None:
        self._run.cluster.kill(broker)
        self._sleep(3)
        self._run.cluster.restart(broker)

    def _kill_after_put(self, broker: int) -> None:
        self._run.kill_after_put(broker)

    def _stop(self, broker: int) -> None:
        self._run.cluster.restart(broker)

    def _pause(self, broker: int) -> None:
        self._run.cluster.pause(broker)
        self._sleep(8)
        self._run.cluster.resume(broker)

    def _isolate(self, broker: int) -> None:
        self._run.cluster.isolate(broker)
        self._sleep(8)
        self._run.cluster.heal()

    def _store_and_kill(self, broker: int) -> None:
        self._fail_some()
        self._sleep(2)
        self._kill(broker)
        self._sleep(2)
        self._run.proxy.heal()


def defects(run: ObjectRun) -> list[str]:
    """Lines in the brokers' logs that nothing from outside may cause."""
    lines: list[str] = []
    for place in run.cluster.layout.places:
        with suppress(FileNotFoundError):
            lines += [
                line
                for line in place.log.read_text(errors="replace").splitlines()
                if '"level": "error"' in line or not line.startswith("{")
            ]
    return lines
