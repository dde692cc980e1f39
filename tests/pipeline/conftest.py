"""One Spark session and one node for all tests of the pipeline; whoever stops or kills a node starts its own.

Side by side (`-n 3`), one process has all tests that use the session: support/sharing_out.py.
"""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.node_process import SETTINGS, NodeProcess
from support.quick_java import quick_java
from support.sharing_out import OWN_SPARKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    assert isinstance(item, pytest.Function)
    assert item.path.name not in OWN_SPARKS or "spark" not in item.fixturenames, (
        f"{item.nodeid} uses the shared session: {item.path.name} does not belong to OWN_SPARKS"
    )


@pytest.fixture(scope="package", autouse=True)
def quick_jvms() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quick_java().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="package")
def spark() -> "Iterator[SparkSession]":
    from anabranch.pipeline.spark.session import spark_session

    session = spark_session(
        master="local[2]",
        app="tests",
        config={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    # Many records of these tests are years old, and retention comes round while they are read.
    kept = {**SETTINGS, "log.retention.ms": "-1"}
    with NodeProcess(tmp_path_factory.mktemp("node"), kept) as node:
        yield node


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic, table and group: tests share one node."""
    test = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return f"{test[:60]}_{uuid.uuid4().hex[:8]}"
