"""confluent-kafka (librdkafka) and kafka-python: what is refused is an error of the client at once, not silence."""

import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

ANSWER_S_MAX = 20.0


def first_error(consumer: Consumer) -> KafkaError:
    deadline = time.monotonic() + ANSWER_S_MAX
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            error = message.error()
            assert error is not None
            return error
    raise AssertionError("the consumer polls without an error")


def test_a_consumer_with_the_new_group_protocol_gets_a_fatal_error(bootstrap: str, unique: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": unique, "group.protocol": "consumer"}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([unique])
        error = first_error(consumer)
    assert error.code() == KafkaError._FATAL
    assert "API version not supported" in error.str()


def test_a_transactional_producer_gets_a_fatal_error(bootstrap: str, unique: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
    with pytest.raises(KafkaException, match="no transactions") as raised:
        producer.init_transactions(ANSWER_S_MAX)
    assert raised.value.args[0].fatal()


def test_a_client_with_sasl_is_told_that_there_is_none(bootstrap: str) -> None:
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "error_cb": errors.append,
    }
    producer = Producer(settings)
    deadline = time.monotonic() + ANSWER_S_MAX
    while not errors and time.monotonic() < deadline:
        producer.poll(0.2)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "SASL" in errors[0].str()


def test_kafka_python_learns_why_a_record_was_refused(bootstrap: str, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(unique, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[unique].result(ANSWER_S_MAX)
    with closing(KafkaProducer(bootstrap_servers=bootstrap, linger_ms=2000, retries=0)) as producer:
        sent = [producer.send(unique, key=key, value=b"v") for key in (b"a", None, b"b")]
        producer.flush()
        with pytest.raises(InvalidRecordError, match="no key"):
            sent[1].get(ANSWER_S_MAX)
