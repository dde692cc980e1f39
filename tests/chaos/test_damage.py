"""A data folder damaged while the node was down: right answers or CORRUPT_MESSAGE, never wrong bytes."""

import random
from pathlib import Path

import pytest

from anabranch.record.batch import batch_spans, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.node_process import NodeProcess
from support.raw_client import RawClient

TOPIC = "damaged"
BATCHES = 60
SETTINGS = {"log.segment.bytes": "4096", "flush": "os"}


def _value(number: int) -> bytes:
    return b"%06d" % number * 60


def _fill(client: RawClient) -> None:
    client.ask(ApiKey.METADATA, 9, {"topics": [{"name": TOPIC}]})
    for number in range(BATCHES):
        builder = BatchBuilder()
        builder.add(None, _value(number), timestamp_ms=1_700_000_000_000 + number)
        body = {
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [
                {"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(builder.build())}]}
            ],
        }
        answer = client.ask(ApiKey.PRODUCE, 9, body)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


def _fetch(client: RawClient, offset: int) -> tuple[int, bytes]:
    body = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "topics": [
            {
                "topic": TOPIC,
                "partitions": [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1}],
            }
        ],
    }
    row = client.ask(ApiKey.FETCH, 11, body)["responses"][0]["partitions"][0]
    return row["error_code"], bytes(row["records"] or b"")


def _read_each(bootstrap: str) -> dict[int, list[bytes] | ErrorCode]:
    """For every offset: the values of the batch it lies in, or the error."""
    found: dict[int, list[bytes] | ErrorCode] = {}
    with RawClient(bootstrap) as client:
        for offset in range(BATCHES):
            code, data = _fetch(client, offset)
            if code:
                found[offset] = ErrorCode(code)
                continue
            for start, end in batch_spans(data):
                assert read_header(data, start).base_offset == offset
                found[offset] = [record.value or b"" for record in records_of(data[start:end])]
                break
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a partition of many small segments, closed cleanly."""
    with NodeProcess(tmp_path, SETTINGS) as node, RawClient(node.bootstrap) as client:
        _fill(client)
    return tmp_path / "data" / f"{TOPIC}-0"


def _sealed_logs(folder: Path) -> list[Path]:
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 3
    return logs[:-1]


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_in_a_sealed_segment_is_never_served(folder: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = rng.choice(_sealed_logs(folder))
    data = bytearray(log.read_bytes())
    position = rng.randrange(len(data))
    data[position] ^= 1 << rng.randrange(8)
    log.write_bytes(data)
    with NodeProcess(tmp_path, SETTINGS) as node:
        found = _read_each(node.bootstrap)
    wrong = {
        offset: value
        for offset, value in found.items()
        if value not in ([_value(offset)], ErrorCode.CORRUPT_MESSAGE)
    }
    assert not wrong
    assert ErrorCode.CORRUPT_MESSAGE in found.values()
    # Whoever is not damaged is served: the damage is in one segment only.
    assert sum(value == [_value(offset)] for offset, value in found.items()) > BATCHES // 2


@pytest.mark.parametrize("damage", ["missing", "short", "garbled", "zeros"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_bad_index_is_rebuilt(folder: Path, tmp_path: Path, suffix: str, damage: str) -> None:
    for path in folder.glob(f"*{suffix}"):
        data = path.read_bytes()
        match damage:
            case "missing":
                path.unlink()
            case "short":
                path.write_bytes(data[: len(data) - 5])
            case "garbled":
                path.write_bytes(random.Random(1).randbytes(len(data) or 24))
            case "zeros":
                path.write_bytes(bytes(4096))
    with NodeProcess(tmp_path, SETTINGS) as node:
        assert _read_each(node.bootstrap) == {offset: [_value(offset)] for offset in range(BATCHES)}
        with RawClient(node.bootstrap) as client:
            for number in (0, 17, BATCHES - 1):
                asked = {"partition_index": 0, "timestamp": 1_700_000_000_000 + number}
                body = {"topics": [{"name": TOPIC, "partitions": [asked]}]}
                row = client.ask(ApiKey.LIST_OFFSETS, 5, body)["topics"][0]["partitions"][0]
                assert row["offset"] == number


def test_a_torn_tail_after_a_crash_is_cut_and_the_rest_is_served(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "clean-shutdown").unlink()
    active = sorted(folder.glob("*.log"))[-1]
    with active.open("ab") as stream:
        stream.write(active.read_bytes()[:40] + bytes(2000))
    with NodeProcess(tmp_path, SETTINGS) as node:
        assert _read_each(node.bootstrap) == {offset: [_value(offset)] for offset in range(BATCHES)}
