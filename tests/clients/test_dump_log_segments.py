"""Kafka's own DumpLogSegments reads a node's data folder: records, indexes and all, and finds nothing amiss.

The node writes several small segments with every codec, stops, and leaves its files to the tool, which walks
every record of every `.log` and compares every entry of every index with the log beside it.
"""

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import SETTINGS, NodeProcess

from .registries import kafka_jars, or_skip, program
from .samples import CODECS, SAMPLES

pytestmark = pytest.mark.interop

TOOL = "org.apache.kafka.tools.DumpLogSegments"
RUN_S_MAX = 120.0
ROUNDS = 40
SEGMENT_BYTES = 300_000  # Some ten rounds; Kafka itself allows no less than 1 MB.
COMPLAINTS = re.compile(r"mismatch|corrupt|invalid|exception|not found|is followed by", re.IGNORECASE)
# The tool expects every file to begin at offset 0, and says so of Kafka's own later segments too.
NO_COMPLAINT = re.compile(r"Non-consecutive offsets in \S+\s+-1 is followed by \d+")


@pytest.fixture(scope="module")
def dump_command() -> list[str]:
    java = or_skip(lambda: program("java", "default-jdk-headless"))
    jars = or_skip(lambda: kafka_jars("kafka-tools"))
    return [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars, TOOL]


def _fill(bootstrap: str, topic: str) -> None:
    """One round of samples after the other, with another codec each time and a batch per round."""
    producers = [
        Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": codec == "lz4"}
        )
        for codec in CODECS
    ]
    for number in range(ROUNDS):
        producer = producers[number % len(producers)]
        for key, value, headers, timestamp_ms in SAMPLES:
            producer.produce(
                topic, value, key, 0, timestamp=timestamp_ms + 1_000 * number, headers=list(headers)
            )
        assert producer.flush(15) == 0


@pytest.fixture(scope="module")
def partition_folder(dump_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one partition, as a stopped node left it."""
    node = NodeProcess(tmp_path_factory.mktemp("dumped"), {**SETTINGS, "log.index.interval.bytes": "4096"})
    topic = "dumped"
    with node:
        config = {"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "4096"}
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(15)
        _fill(node.bootstrap, topic)
    (folder,) = node.data_folder.rglob(f"{topic}-0")
    return folder


def _dump(dump_command: list[str], files: list[Path], *options: str) -> str:
    command = [*dump_command, *options, "--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not COMPLAINTS.search(NO_COMPLAINT.sub("", done.stderr)), done.stderr[-3000:]
    return done.stdout


def _files(folder: Path, suffix: str) -> list[Path]:
    files = sorted(folder.glob(f"*{suffix}"))
    assert len(files) >= 3, f"the topic should have several segments, not {[file.name for file in files]}"
    return files


def test_every_record_of_every_segment_is_read(dump_command: list[str], partition_folder: Path) -> None:
    files = _files(partition_folder, ".log")
    printed = _dump(dump_command, files, "--deep-iteration", "--print-data-log")
    batches = [line for line in printed.splitlines() if line.startswith("baseOffset:")]
    assert all("isvalid: true" in line for line in batches)
    codecs = {match[1] for line in batches if (match := re.search(r"compresscodec: (\w+)", line))}
    assert codecs == set(CODECS)
    offsets = [int(match[1]) for match in re.finditer(r"^\| offset: (\d+)", printed, re.MULTILINE)]
    assert offsets == list(range(ROUNDS * len(SAMPLES)))
    assert not COMPLAINTS.search(printed)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_passes_the_sanity_check(dump_command: list[str], partition_folder: Path, suffix: str) -> None:
    files = _files(partition_folder, suffix)
    printed = _dump(dump_command, files, "--index-sanity-check")
    assert [line for line in printed.splitlines() if "passed sanity check" in line] == [
        f"{file} passed sanity check." for file in files
    ]
    assert not COMPLAINTS.search(printed)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_agrees_with_its_log(dump_command: list[str], partition_folder: Path, suffix: str) -> None:
    """Without the sanity option the tool looks up every entry in the log and reports those that disagree."""
    printed = _dump(dump_command, _files(partition_folder, suffix), "--deep-iteration", "--verify-index-only")
    assert not COMPLAINTS.search(printed)
