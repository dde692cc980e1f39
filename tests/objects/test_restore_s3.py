"""A cluster comes back from a bucket of an S3-speaking server."""

import asyncio
import uuid
from pathlib import Path

from anabranch.broker.restore.restore_report import RestoreReport
from anabranch.broker.restore.restoring import RestoreWish, Restoring
from anabranch.broker.workers import ThreadWorkers
from anabranch.clock import RealClock
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.stores import open_store
from support.old_cluster import OldCluster


async def restored(url: str, old: OldCluster, folder: Path) -> tuple[RestoreReport, RestoreReport]:
    """From a copy of its bucket, and then what a second restore would find there."""
    files, clock = RealFiles(), RealClock()
    workers = ThreadWorkers(asyncio.get_running_loop(), 2, 2)
    store = open_store(url, files=files, workers=workers, clock=clock)
    try:
        for name in old.store.names:
            await store.put(name, [old.store.content(name)])
        restoring = Restoring(store, files, clock, "boot", uuid.uuid4)
        report = await restoring.run(RestoreWish(str(folder)))
        return report, await restoring.run(RestoreWish("", is_dry_run=True))
    finally:
        await store.close()
        workers.close()


def test_a_cluster_comes_back_from_s3(s3_url: str, tmp_path: Path) -> None:
    old = OldCluster()
    key = old.topic("orders"), 0
    old.write(0, key, b"a")
    old.snapshot()
    for number in range(40):
        old.write(number % 2, key, b"%d" % number)
    first, second = asyncio.run(restored(s3_url, old, tmp_path / "new"))
    assert (first.appended[0].start, first.appended[0].end) == (41, 81)
    assert (second.incarnation, second.records_appended) == (first.successor, 0)
    assert (tmp_path / "new" / "node").exists()
