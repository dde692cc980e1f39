"""The audit as a Spark job and as a command, on the folder of a node that is running."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anabranch.pipeline.jobs.audit import audit_folders, partition_folders
from support.topics import make_topic, send

RECORDS = 3000


@pytest.fixture
def filled(node, unique):
    """A topic of two partitions and several segments each; answers the folders of its partitions."""
    make_topic(node.bootstrap, unique, 2, segment_bytes="65536")
    small = {"batch.size": 8192}
    for number in range(2):
        records = ((b"%d" % i, bytes(100)) for i in range(RECORDS))
        send(node.bootstrap, unique, records, partition=number, **small)
    return [str(node.data_folder / f"{unique}-{number}") for number in range(2)]


def test_running_node_is_audited_one_task_per_segment(spark, filled):
    reports = audit_folders(spark, filled)
    assert [(report.findings, report.records, report.end_offset) for report in reports] == [
        ([], RECORDS, RECORDS)
    ] * 2
    assert all(report.segments > 3 for report in reports)


def test_every_partition_of_the_node_is_found_and_whole(spark, node, filled):
    folders = partition_folders(str(node.data_folder))
    assert set(filled) < set(folders)
    reports = audit_folders(spark, filled)
    assert sum(len(report.findings) for report in reports) == 0


def test_topic_that_is_being_written_has_no_findings(spark, node, filled, unique):
    over = threading.Event()

    def write():
        while not over.is_set():
            send(node.bootstrap, unique, ((None, bytes(1000)) for _ in range(200)), partition=0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reports = [report for _ in range(3) for report in audit_folders(spark, filled)]
    finally:
        over.set()
        writer.join()
    assert [report.findings for report in reports] == [[]] * 6
    assert reports[-2].records > RECORDS


def test_damage_is_named_by_file_and_position(spark, filled, tmp_path):
    copies = [shutil.copytree(folder, tmp_path / folder.rpartition("/")[2]) for folder in filled]
    damaged = sorted(copies[1].glob("*.log"))[2]
    with damaged.open("r+b") as file:
        file.seek(-3, 2)
        byte = file.read(1)
        file.seek(-3, 2)
        file.write(bytes([byte[0] ^ 1]))
    whole, broken = audit_folders(spark, map(str, copies))
    assert whole.findings == []
    assert [finding.file for finding in broken.findings] == [damaged.name]
    assert 0 < broken.findings[0].position < damaged.stat().st_size


def test_command_reports_counts_and_says_nothing_else(node, filled):
    command = [Path(sys.executable).with_name("anabranch"), "pipeline", "audit", filled[0]]
    result = subprocess.run(
        [*command, "--master", "local[2]", "--format", "json"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["records"], report["problems"]) == (RECORDS, 0)
    assert report["partitions"][0]["intact"] is True
