"""A node whose store is away, refuses, or never was: what producers, consumers and whoever starts it are told."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.record.batch import batch_spans
from anabranch.record.records import records_of
from anabranch.testing.store_proxy import StoreProxy, Trouble
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.raw_client import RawClient, batch_of, produce_body
from support.s3_server import CREDENTIALS, S3Server
from support.waiting import wait_until
from support.wire_node import MIB, WireNode

TOPIC = "stored"
START_S_MAX = 60
SETTINGS = {
    "object.timeout.ms": "1000",
    "append.queue.bytes.max": str(MIB),
    "object.gather.bytes": str(MIB // 4),
    "object.cache.disk.bytes": "0",
}


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[StoreProxy]:
    with StoreProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def url(s3_server: S3Server, s3_bucket: str, proxy: StoreProxy) -> str:
    return s3_server.url(s3_bucket, "away", proxy.endpoint)


@pytest.fixture
def node(tmp_path: Path, url: str) -> Iterator[WireNode]:
    """With one record in one topic."""
    with WireNode(tmp_path, {**SETTINGS, "object.store": url}) as node:
        with RawClient(node.bootstrap) as client:
            client.create_topic(TOPIC, anabranch_mode="object")
            assert client.produce(TOPIC, 0, batch_of(b"first"))["base_offset"] == 0
        yield node


def produce(client: RawClient, batch: bytes, timeout_ms: int) -> dict[str, Any]:
    body = {**produce_body(TOPIC, 0, batch), "timeout_ms": timeout_ms}
    answer = client.ask(ApiKey.PRODUCE, 9, body)
    row: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return row


def values_of(row: dict[str, Any]) -> list[bytes]:
    data = bytes(row["records"] or b"")
    spans = batch_spans(data)
    return [bytes(record.value or b"") for first, end in spans for record in records_of(data[first:end])]


def test_a_producer_is_told_when_its_time_is_up_and_finds_its_record_when_it_asks_again(
    node: WireNode, proxy: StoreProxy
) -> None:
    proxy.refuse()
    batch = batch_of(b"second", b"third", producer_id=7, producer_epoch=0, base_sequence=0)
    with RawClient(node.bootstrap) as client:
        assert produce(client, batch, timeout_ms=500)["error_code"] == ErrorCode.REQUEST_TIMED_OUT
        assert client.end_offset(TOPIC) == 1, "nobody sees what nobody has stored"
        proxy.heal()
        row = produce(client, batch, timeout_ms=10_000)
        assert (row["error_code"], row["base_offset"]) == (0, 1)
        assert client.end_offset(TOPIC) == 3, "kept once, though it was sent twice"


def test_an_answer_that_the_store_withheld_does_not_double_a_record(
    node: WireNode, proxy: StoreProxy
) -> None:
    proxy.fail(Trouble.WITHHELD_ANSWER, kind="PUT", times=2)
    with RawClient(node.bootstrap) as client:
        row = produce(client, batch_of(b"second"), timeout_ms=10_000)
        assert (row["error_code"], row["base_offset"]) == (0, 1)
        assert client.end_offset(TOPIC) == 2
        assert values_of(client.fetch(TOPIC, 0, 1)) == [b"second"]


def test_who_sends_more_than_may_wait_is_not_read_and_harms_nobody(node: WireNode, proxy: StoreProxy) -> None:
    """One connection is held back; others, and other topics, are served; and memory is bounded."""
    proxy.refuse()
    node.forget_peak()
    before = node.rss_bytes()
    sent = 0
    with RawClient(node.bootstrap) as greedy:
        greedy.sock.settimeout(2)
        body = {**produce_body(TOPIC, 0, batch_of(bytes(200_000))), "timeout_ms": 60_000}
        with contextlib.suppress(TimeoutError):
            while sent < 200 * MIB:
                greedy.send(ApiKey.PRODUCE, 9, body)
                sent += 200_000
        assert sent < 64 * MIB, "the socket takes no more"
        node.check_served()
        with RawClient(node.bootstrap) as other:
            refused = wait_until(
                lambda: produce(other, batch_of(b"one too many"), timeout_ms=300)["error_code"], "an answer"
            )
            assert refused in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT)
    assert node.peak_bytes() - before < 64 * MIB
    proxy.heal()
    with RawClient(node.bootstrap) as client:
        wait_until(
            lambda: produce(client, batch_of(b"x"), 5000)["error_code"] == 0, "records to be taken again"
        )


def test_a_node_starts_without_its_store_and_serves_everything_else(
    node: WireNode, proxy: StoreProxy
) -> None:
    node.stop()
    proxy.refuse()
    position = node.log_size()
    node.start()
    node.check_served()
    told = "\n".join(node.log_since(position))
    assert "cannot be reached: check the endpoint, and whether it runs" in told
    with RawClient(node.bootstrap) as client:
        row = client.fetch(TOPIC, 0, 0)
        assert (row["error_code"], row["high_watermark"], values_of(row)) == (0, 1, []), "consumers wait"
        batch = batch_of(b"second", producer_id=9, producer_epoch=0, base_sequence=0)
        assert produce(client, batch, timeout_ms=500)["error_code"] != 0
        proxy.heal()
        wait_until(lambda: produce(client, batch, timeout_ms=5000)["error_code"] == 0, "records to be taken")
        wait_until(lambda: values_of(client.fetch(TOPIC, 0, 0))[:1] == [b"first"], "the first record")
        assert client.end_offset(TOPIC) == 2


def start(tmp_path: Path, url: str, *more: str) -> str:
    """What `anabranch up` says instead of starting."""
    command = [
        sys.executable,
        "-m",
        "anabranch",
        "up",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "data"),
    ]
    command += ["--object-store", url, "--format", "json", "--log-level", "debug", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    for secret in CREDENTIALS.values():
        assert secret not in done.stderr
    assert "Traceback" not in done.stderr
    return str(json.loads(done.stderr.splitlines()[-1])["error"])


def test_a_bucket_that_is_not_there_keeps_a_node_from_starting(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    said = start(tmp_path, s3_server.url("no-such-bucket"))
    assert "has no bucket no-such-bucket: create it, or correct object.store." in said


def test_credentials_that_are_not_accepted_keep_a_node_from_starting(
    tmp_path: Path, url: str, proxy: StoreProxy
) -> None:
    proxy.fail(Trouble.DENIED)
    assert "does not accept the credentials, or they may not do this (403 Forbidden)" in start(tmp_path, url)


def test_a_credentials_file_that_others_may_read_keeps_a_node_from_starting(tmp_path: Path, url: str) -> None:
    file = tmp_path / "credentials"
    file.write_text("AWS_ACCESS_KEY_ID=x\n")
    file.chmod(0o644)
    assert "may be read by others" in start(tmp_path, url, "--set", f"object.credentials.file={file}")


def test_a_credentials_file_is_used(
    tmp_path: Path, url: str, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("".join(f"{name}={value}\n" for name, value in CREDENTIALS.items()))
    file.chmod(0o600)
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    settings = {**SETTINGS, "object.store": url, "object.credentials.file": str(file)}
    with WireNode(tmp_path, settings) as node, RawClient(node.bootstrap) as client:
        client.create_topic(TOPIC, anabranch_mode="object")
        assert produce(client, batch_of(b"first"), 10_000)["error_code"] == 0
        told = str(
            client.ask(
                ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 4, "resource_name": "0"}]}
            )
        )
        assert url in told
    for text in (told, node.log_path.read_text()):
        for secret in CREDENTIALS.values():
            assert secret not in text


def test_a_stop_does_not_wait_for_a_store_that_is_away(node: WireNode, proxy: StoreProxy) -> None:
    proxy.fail(Trouble.DEAF)
    with RawClient(node.bootstrap) as client:
        client.send(ApiKey.PRODUCE, 9, {**produce_body(TOPIC, 0, batch_of(b"late")), "timeout_ms": 60_000})
        time.sleep(0.5)
        node.stop()  # Insists on a clean exit, and on an end.
    proxy.heal()
    node.start()
