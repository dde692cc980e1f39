"""A cluster that is killed under load, loses all of its disks and comes back from its bucket: nothing that was
acknowledged is lost, no offset names another record, and what may be there twice is listed."""

import shutil
from pathlib import Path

from anabranch.testing.cluster_processes import ClusterProcesses
from chaos.restore_load import (
    Load,
    check,
    check_groups,
    make_topic,
    read_all,
    restore,
    send,
    until_newer,
    until_refused,
)
from support.node_process import NodeProcess

NEWER = 500
"""Records that are acknowledged after the last snapshot before everything is killed."""


def settings_for(bucket: Path) -> dict[str, str]:
    """Objects are merged and deleted all the time."""
    return {
        "object.store": f"file://{bucket}",
        "object.snapshot.ms": "2000",
        "object.gather.ms": "20",
        "object.merge.bytes": "65536",
        "object.collect.ms": "1000",
    }


def test_a_node_comes_back_and_its_producers_go_on(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    old = NodeProcess(tmp_path, settings_for(bucket), data_folder=tmp_path / "old").start()
    make_topic(old.bootstrap)
    load = Load(old.bootstrap)
    load.start()
    until_newer(load, bucket, NEWER)
    load.stop_group()
    old.kill()
    before = dict(load.acknowledged)
    shutil.rmtree(tmp_path / "old")

    report = restore(bucket, tmp_path / "new")
    assert report["records_appended"] > 0
    new = NodeProcess(tmp_path, settings_for(bucket), data_folder=tmp_path / "new", listen=old.bootstrap)
    with new:
        check(before, read_all(new.bootstrap), report)
        load.stop()
        assert load.flush() == 0, "producers that outlive the cluster cannot go on"
        found = read_all(new.bootstrap)
        check(load.acknowledged, found, report)
        assert len(set(found.values())) == len(found), "a producer's repeat was not recognised"
        check_groups(load, new.bootstrap, found, report)


def test_a_cluster_of_three_comes_back_and_others_join_it(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with ClusterProcesses(tmp_path / "old", settings=settings_for(bucket)) as old:
        make_topic(old.bootstrap)
        load = Load(old.bootstrap)
        load.start()
        until_newer(load, bucket, NEWER)
        load.stop_group()
        for broker in old.ids:
            old.kill(broker)
        load.stop()
        load.forget()
    shutil.rmtree(tmp_path / "old")

    new = ClusterProcesses(tmp_path / "new", settings=settings_for(bucket))
    report = restore(bucket, new.layout.places[0].folder)
    assert report["records_appended"] > 0
    with new:
        for place in new.layout.places:
            found = read_all(place.kafka)
            check(load.acknowledged, found, report)
        check_groups(load, new.bootstrap, found, report)
        more = Load(new.bootstrap)
        more.start()
        until_newer(more, bucket, NEWER)
        more.stop()
        assert more.flush() == 0
        assert set(more.acknowledged.values()) <= set(read_all(new.bootstrap).values())


def test_an_old_node_that_starts_again_takes_no_writes_and_spoils_nothing(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    settings = settings_for(bucket)
    old = NodeProcess(tmp_path, settings, data_folder=tmp_path / "old").start()
    make_topic(old.bootstrap)
    sent = send(old.bootstrap, 50)
    old.kill()
    report = restore(bucket, tmp_path / "new")
    with NodeProcess(tmp_path, settings, data_folder=tmp_path / "new") as new:
        with NodeProcess(tmp_path, settings, data_folder=tmp_path / "old") as again:
            until_refused(again.bootstrap)
        sent |= send(new.bootstrap, 50)
    with NodeProcess(tmp_path, settings, data_folder=tmp_path / "new") as new:
        found = read_all(new.bootstrap)
        assert sent == set(found.values())
    assert report["records_appended"] + 50 <= len(found)
