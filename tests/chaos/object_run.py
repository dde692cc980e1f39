"""ObjectRun: brokers on an S3-speaking server behind a proxy, under load, while the store fails.

    with ObjectRun(folder, s3_server, bucket, brokers=3) as run:
        run.suffer(Trouble.ERROR, seconds=3)        # all requests; then heals, and waits until records are taken again
        ...
        result = run.finish()                       # stops the load, reads everything, checks the history

Whatever the store does, a record that was sent after a fault had begun must not be acknowledged before it ends: nobody
can know that the store has it.
"""

import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.testing import ClusterProcesses
from anabranch.testing.store_proxy import StoreProxy, Trouble
from chaos.cluster_load import QUIET, ClusterLoad, final_reads, now_ms
from chaos.history import Violation, check, report
from support.s3_server import S3Server
from support.waiting import wait_until

TOPIC, PARTITIONS = "stored", 4
RECOVER_S_MAX = 60.0
SETTINGS: dict[str, object] = {"object.timeout.ms": 2000, "object.gather.ms": 50}


class Result(NamedTuple):
    violations: list[Violation]
    acknowledged: int
    read_at_the_end: int
    too_early: dict[str, int]
    """By fault: acknowledged while nobody could know that they were stored."""
    errors: dict[str, int]
    requests: dict[str, int]

    @property
    def summary(self) -> str:
        return f"{report(self.violations)}; {self._replace(violations=[])}"


class ObjectRun:
    def __init__(
        self,
        folder: Path,
        server: S3Server,
        bucket: str,
        *,
        brokers: int = 1,
        settings: dict[str, object] | None = None,
        producers: int = 3,
        per_second: int = 100,
        seed: int = 0,
    ) -> None:
        self.proxy = StoreProxy(server.endpoint, seed=seed)
        self._server, self._bucket = server, bucket
        self._folder, self._brokers = folder, brokers
        self._settings = {**SETTINGS, **(settings or {})}
        self._producers, self._per_second = producers, per_second
        self.too_early: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        url = self._server.url(self._bucket, "chaos", self.proxy.endpoint)
        self.cluster = ClusterProcesses(
            self._folder, brokers=self._brokers, settings={**self._settings, "object.store": url}
        )
        try:
            self.cluster.start()
            make_topic(self.cluster.bootstrap)
            self.load = ClusterLoad(
                self.cluster.bootstrap,
                TOPIC,
                PARTITIONS,
                producers=self._producers,
                consumers=1,
                per_second=self._per_second,
            )
            self.load.start()
            self.wait_for_acknowledgements()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.proxy.heal()
        self.cluster.stop()
        self.proxy.__exit__(None, None, None)

    # --- what happens ------------------------------------------------------------------------------------------

    def suffer(self, trouble: Trouble | None, *, seconds: float) -> None:
        """Every request of all brokers fails so (None: is refused), for so long."""
        if trouble is None:
            self.proxy.refuse()
        else:
            self.proxy.fail(trouble)
        begin_ms = now_ms()
        time.sleep(seconds)
        name = "refused" if trouble is None else trouble.value
        if trouble is not Trouble.SLOW:
            self.too_early[name] = self.load.acknowledged_within(begin_ms, now_ms())
        self.proxy.heal()
        self.wait_for_acknowledgements()

    def kill_after_put(self, broker: int) -> None:
        """kill -9, when the store has objects of which no broker has been told; then it starts again."""
        before = self.proxy.struck[Trouble.WITHHELD_ANSWER]
        self.proxy.fail(Trouble.WITHHELD_ANSWER, kind="PUT")
        # One for every broker at least, as producers write to all of them.
        wait_until(
            lambda: self.proxy.struck[Trouble.WITHHELD_ANSWER] >= before + 2 * self._brokers,
            "objects to be put",
        )
        self.cluster.kill(broker)
        self.proxy.heal()
        self.cluster.restart(broker)
        self.wait_for_acknowledgements()

    def wait_for_acknowledgements(self) -> None:
        """Until what is sent from now on is acknowledged, in every partition."""
        since_ms = now_ms()
        wait_until(
            lambda: all(
                self.load.silence_ms(partition, since_ms) is not None for partition in range(PARTITIONS)
            ),
            f"records to be taken again; clients were told {self.load.errors()}",
            RECOVER_S_MAX,
        )

    def finish(self) -> Result:
        self.load.stop()
        final = final_reads(self.cluster.bootstrap, TOPIC, PARTITIONS)
        result = Result(
            check(self.load.history(final)),
            self.load.acknowledged_count,
            len(final),
            self.too_early,
            self.load.errors(),
            dict(self.proxy.requests),
        )
        print(result.summary)  # noqa: T201 - With `pytest -s` the figures are told.
        return result


def make_topic(bootstrap: str, config: dict[str, Any] | None = None) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, PARTITIONS, config={"anabranch.mode": "object", **(config or {})})
    for future in admin.create_topics([topic]).values():
        future.result(30)
