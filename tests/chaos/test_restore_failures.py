"""Real processes that lose every disk while their store fails: the bucket alone has everything, and a restore gets
through a store that refuses one request of five, also after it was interrupted."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.testing.store_proxy import StoreProxy, Trouble
from chaos.restore_load import PARTITIONS, TOPIC, Load, check, make_topic, read_all, restore, send
from chaos.test_restore_from_bucket import settings_for
from support.node_process import NodeProcess
from support.s3_server import REGION, S3Server
from support.waiting import wait_until

WAIT_SECONDS_MAX = 60.0
INTERRUPTED = 130


def alter_mode(bootstrap: str, mode: str) -> None:
    """Ask for it, and wait until it is reported."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entry = ConfigEntry("anabranch.mode", mode, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)

    def is_reported() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, TOPIC)
        configs = admin.describe_configs([asked])[asked].result(30)
        return configs["anabranch.mode"].value == mode and "anabranch.mode.changing" not in configs

    wait_until(is_reported, f"{TOPIC} in mode {mode}", WAIT_SECONDS_MAX)


def told(bootstrap: str, count: int) -> dict[tuple[int, int], bytes]:
    """Send records; where each is, as their producer was told."""
    places: dict[tuple[int, int], bytes] = {}

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        places[message.partition(), message.offset()] = message.value()

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(count):
        value = b"%d %d x" % (time.monotonic_ns(), number)
        producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return places


def start_restore(url: str, data_folder: Path) -> "subprocess.Popen[str]":
    program = Path(sys.executable).with_name("anabranch")
    command = [str(program), "cluster", "restore", "--object-store", url, "--data-dir", str(data_folder)]
    return subprocess.Popen(
        [*command, "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_mode_change_is_in_the_bucket_though_no_snapshot_could_be_written(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    with StoreProxy(s3_server.endpoint) as proxy:
        url = f"s3://{s3_bucket}/tests?endpoint={proxy.endpoint}&region={REGION}"
        settings = {"object.store": url, "object.snapshot.ms": "1000", "object.gather.ms": "20"}
        with ClusterProcesses(tmp_path / "old", settings=settings) as old:
            admin = AdminClient({"bootstrap.servers": old.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, config={"anabranch.mode": "ring"})])[
                TOPIC
            ].result(30)
            before = told(old.bootstrap, 150)
            wait_until(lambda: proxy.requests["PUT"], "a first snapshot", WAIT_SECONDS_MAX)
            proxy.fail(Trouble.OVERLOAD, kind="PUT", path="/metadata/")
            alter_mode(old.bootstrap, "object")
            after = told(old.bootstrap, 90)
            for broker in old.ids:
                old.kill(broker)
        proxy.heal()

        proxy.fail(Trouble.OVERLOAD, share=0.2)
        proxy.delay("GET", 300)
        first = start_restore(url, tmp_path / "new")
        gets = proxy.requests["GET"]
        wait_until(lambda: proxy.requests["GET"] > gets, "the restore to read", WAIT_SECONDS_MAX)
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=WAIT_SECONDS_MAX)
        assert first.returncode == INTERRUPTED, said
        assert "Run the same command again" in said
        assert not (tmp_path / "new").exists()

        proxy.delay("GET", 0)
        second = start_restore(url, tmp_path / "new")
        out, said = second.communicate(timeout=WAIT_SECONDS_MAX)
        assert second.returncode == 0, said
        report: dict[str, Any] = json.loads(out)
        assert (report["topics"], report["losses"]) == ([TOPIC], [])
        proxy.heal()
        with NodeProcess(tmp_path, settings, data_folder=tmp_path / "new") as node:
            found = read_all(node.bootstrap)
            assert {place: found.get(place) for place in before} == before, "copied records have moved"
            assert set(after.values()) <= set(found.values())
            assert all(found.get(place, value) == value for place, value in after.items())


def test_a_damaged_snapshot_costs_nothing_and_two_are_named(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    settings = {
        **settings_for(bucket),
        "object.snapshot.ms": "60000",
    }  # Collection asks for those that it needs.
    old = NodeProcess(tmp_path, settings, data_folder=tmp_path / "old").start()
    make_topic(old.bootstrap)
    load = Load(old.bootstrap)
    load.start()
    first = wait_until(lambda: segments(bucket), "objects", WAIT_SECONDS_MAX)
    wait_until(lambda: not first & segments(bucket), "a collection", WAIT_SECONDS_MAX)
    load.stop_group()
    old.kill()
    load.stop()
    load.forget()
    for damaged in (1, 2):
        copy = tmp_path / f"bucket-{damaged}"
        shutil.copytree(bucket, copy)
        damage_snapshots(copy, damaged)
        folder = tmp_path / f"new-{damaged}"
        report = restore(copy, folder, *(["--accept-loss"] if damaged > 1 else []))
        assert len(report["passed_over"]) == damaged
        assert bool(report["losses"]) == (damaged > 1)
        with NodeProcess(tmp_path, settings_for(copy), data_folder=folder) as new:
            check(load.acknowledged, read_all(new.bootstrap), report)
            assert send(new.bootstrap, 10) <= set(read_all(new.bootstrap).values())


def damage_snapshots(bucket: Path, count: int) -> None:
    """The newest ones."""
    newest = sorted((bucket / "metadata").iterdir(), key=lambda path: int(path.name.rpartition("-")[2]))
    for path in newest[-count:]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def segments(bucket: Path) -> set[str]:
    return {path.name for path in (bucket / "segments").glob("*")}
