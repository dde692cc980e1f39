"""One Spark session and one node for all tests of the pipeline; whoever stops or kills a node starts its own.

Side by side (`-n 2`), one process has all tests that use the session, and those that start Sparks of their own run next
to them, file by file.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.node_process import SETTINGS, NodeProcess
from support.quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Their tests start Sparks of their own and wait for most of their time.
OWN_SPARKS = frozenset(
    {"test_demo.py", "test_exactly_once.py", "test_examples.py", "test_jobs_java.py", "test_two_workers.py"}
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            path = config.rootpath / file
            is_ours = path.parent == Path(__file__).parent and path.name not in OWN_SPARKS
            return "the session" if is_ours else file

    return OneSession(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    assert isinstance(item, pytest.Function)
    assert item.path.name not in OWN_SPARKS or "spark" not in item.fixturenames, (
        f"{item.nodeid} uses the shared session: {item.path.name} does not belong to OWN_SPARKS"
    )


@pytest.fixture(scope="session", autouse=True)
def quick_jvms() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quick_java().items():
            patch.setenv(name, value)
        yield


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
    # Many records of these tests are years old, and retention comes round while they are read.
    kept = {**SETTINGS, "log.retention.ms": "-1"}
    with NodeProcess(tmp_path_factory.mktemp("node"), kept) as node:
        yield node


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic, table and group: tests share one node."""
    test = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return f"{test[:60]}_{uuid.uuid4().hex[:8]}"
