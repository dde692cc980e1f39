"""One Spark session and one node for all tests of the pipeline; whoever stops or kills a node starts its own."""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.node_process import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from anabranch.pipeline.session import spark_session

    session = spark_session(
        master="local[2]",
        app="tests",
        config={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic, table and group: tests share one node."""
    test = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return f"{test[:60]}_{uuid.uuid4().hex[:8]}"
