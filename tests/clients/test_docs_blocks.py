"""Every block of README and docs runs, as a reader would run it: in order, against real nodes.

Commands of a page run in one folder that is thrown away. They meet one node, started for all pages, with an object
store and HTTP; a command that starts a node or a cluster starts it really, on free ports, and what follows in the block
is asked of that one. Addresses, and what else differs from machine to machine, are put in before. `python` blocks run
too; those with test functions under pytest. What cannot run here is in `NOT_RUN`, with the reason, and its names are
checked in tests/unit/test_docs_names.py like all others. `text` blocks are no code.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.config import NodeSettings, broker_tables, settings_of_broker
from anabranch.testing.stub_store import StubStore
from support.doc_pages import PAGES, ROOT, Block, blocks_of, calls_of_program, commands_of
from support.node_process import NodeProcess

PROGRAM = Path(sys.executable).with_name("anabranch")
RUN_S_MAX = 60
START_S_MAX = 30
ALL = [block for page in PAGES for block in blocks_of(page)]
SHELL = [block for block in ALL if block.language in ("console", "sh")]

NOT_RUN = {
    "pip install": "needs a package index; the extra is checked",
    "anabranch pipeline run": "starts Spark: tests/pipeline/test_lake_run.py runs it",
    "python - <<END": "reads the table of the line before it",
    "SPARK_CONF_DIR=conf spark-pipelines run": "starts Spark: tests/pipeline/test_examples.py runs it",
    "python -m examples.demo": "starts Spark: tests/pipeline/test_demo.py runs it",
    "cd examples/declarative": "belongs to the line after it",
    "python examples/hourly_delays.py": "starts Spark: tests/pipeline/test_examples.py runs it",
    "anabranch consume hourly_delays": "reads what the line before it wrote",
    "anabranch cluster ring recover": "needs a ring that lost two disks: tests/clients/test_cli_cluster.py has one",
    "anabranch branch diff": "needs a split that is over: tests/clients/test_cli_branches.py makes one",
    "anabranch consume orders@": "needs a branch: tests/clients/test_cli_branches.py makes one",
    "anabranch up --broker-id": "needs several machines: test_brokers_of_the_page_make_a_cluster runs it on one",
    "anabranch up --config cluster.toml": "the same, with the page's file",
    "anabranch up --data-dir DIR": "follows a restore, which tests/objects/test_restore_s3.py runs",
    "anabranch cluster restore": "needs the bucket of a cluster that is gone: tests/objects/test_restore_s3.py has one",
    "curl -X POST -T records.ndjson": "its address is cut short: tests/gateway/test_records_api.py sends such streams",
    "curl -H 'Content-Type: application/json' -d '[{": "its address is cut short: the same",
}
"""Beginnings of commands that are not run, and why."""
SLOW_TARGETS = "make -n"
"""What `make` would do takes minutes: that it knows the target is checked."""


def why_not(command: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


# --- the shell ----------------------------------------------------------------------------------------------------


class Shell:
    """One page's folder, and the node that its commands meet."""

    def __init__(self, folder: Path, kafka: str, http: str, store: StubStore) -> None:
        self.folder = folder
        self._common = kafka, http
        self._store = store
        self._started: list[subprocess.Popen[str]] = []
        self.kafka = self.http = ""
        self.session = ""
        self.forget_started()

    def forget_started(self) -> None:
        """The next block meets the common node again."""
        for process in self._started:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=START_S_MAX)
        self._started.clear()
        self.kafka, self.http = self._common

    def run(self, command: str) -> str:
        calls = calls_of_program(command)
        if calls and (calls[0][:1] == ["up"] or calls[0][:2] == ["cluster", "up"]):
            self._start(calls[0])
            return ""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.put_in(command)],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=RUN_S_MAX,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def put_in(self, text: str) -> str:
        """What is different on this machine."""
        text = text.replace("127.0.0.1:9092", self.kafka.split(",")[0]).replace("127.0.0.1:8080", self.http)
        text = text.replace("s3://bucket/prefix", f"s3://bucket/prefix?endpoint={self._store.endpoint}")
        text = text.replace("file:///var/lib/anabranch-objects", f"file://{self.folder}/objects")
        text = text.replace("wait_ms=30000", "wait_ms=100")
        text = re.sub(r"^make ", f"{SLOW_TARGETS} -C {ROOT} ", text)
        return text.replace("http-5e0c...", self.session) if self.session else text

    def _environment(self) -> dict[str, str]:
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "ANABRANCH_BOOTSTRAP": self.kafka, **CREDENTIALS}

    def _start(self, call: list[str]) -> None:
        """A node or cluster on free ports; returns once it answers."""
        words = [self.put_in(word).replace(":8080", "127.0.0.1:0") for word in call if word != "..."]
        if words[0] == "up":
            words += ["--listen", "127.0.0.1:0"]
        if "--data-dir" not in words:
            words += ["--data-dir", str(self.folder / f"data-{len(list(self.folder.iterdir()))}")]
        ready = _started([*words, "--format", "json"], self.folder, self._started, self._environment())
        self.kafka = str(ready["bootstrap"])
        self.http = str(ready.get("http") or self.http)


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def store() -> Iterator[StubStore]:
    with StubStore() as store:
        yield store


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess(folder, {"http": "127.0.0.1:0", "object.store": f"file://{folder}/objects"}) as node:
        yield node


@pytest.fixture(scope="module")
def shells(
    tmp_path_factory: pytest.TempPathFactory, node: NodeProcess, store: StubStore, brokers_of_the_page: str
) -> Iterator[dict[Path, Shell]]:
    made = {}
    for page in PAGES:
        kafka = brokers_of_the_page if page.name in OF_CLUSTERS else node.bootstrap
        made[page] = Shell(tmp_path_factory.mktemp(page.stem), kafka, str(node.ready["http"]), store)
    yield made
    for shell in made.values():
        shell.forget_started()


@pytest.fixture
def shell(request: pytest.FixtureRequest, shells: dict[Path, Shell]) -> Iterator[Shell]:
    block: Block = request.node.callspec.params["block"]
    yield shells[block.page]
    shells[block.page].forget_started()


OF_CLUSTERS = {"branch-mode.md"}
"""Pages whose commands need three brokers."""
RUN_ALREADY: set[str] = set()
"""Two pages may begin with the same line: a cluster need not start twice for that."""


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_commands_of_a_block_run(block: Block, shell: Shell) -> None:
    if shutil.which("curl") is None and "curl" in block.text:
        pytest.skip("there is no curl")
    commands = commands_of(block)
    assert commands
    if len(commands) == 1 and commands[0].text in RUN_ALREADY:
        return
    for command in commands:
        if why_not(command.text) is not None:
            continue
        _make_room(shell, command.text)
        printed = shell.run(command.text)
        RUN_ALREADY.add(command.text)
        if found := re.search(r'"session":"(http-[^"]+)"', printed):
            shell.session = found[1]
        if _is_literal(command.shown):
            assert printed == command.shown, command.text


def _make_room(shell: Shell, command: str) -> None:
    """A topic that the page makes, or changes, may be left from an earlier block: then it begins anew."""
    for call in calls_of_program(command):
        if call[:2] in (["topic", "create"], ["topic", "alter"]):
            _topic(shell, "delete", call[2], "--yes")
        if call[:2] == ["topic", "alter"]:
            _topic(shell, "create", call[2])


def _topic(shell: Shell, *words: str) -> None:
    command = [str(PROGRAM), "topic", *words, "--bootstrap", shell.kafka]
    subprocess.run(command, capture_output=True, timeout=RUN_S_MAX, check=False)


def _is_literal(shown: str) -> bool:
    """Whether an answer would be the same on every machine: no numbers, nothing left out."""
    return bool(shown) and not re.search(r"\d|\.\.\.", shown)


def test_every_exception_is_of_a_command_that_is_there() -> None:
    commands = [command.text for block in SHELL for command in commands_of(block)]
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in commands), start
    installed = {extra for text in commands for extra in re.findall(r"anabranch\[(\w+)\]", text)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert installed <= extras.keys()


def test_brokers_of_the_page_make_a_cluster(brokers_of_the_page: str) -> None:
    status = subprocess.run(
        [str(PROGRAM), "cluster", "status", "--bootstrap", brokers_of_the_page, "--format", "json"],
        capture_output=True, text=True, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert [row["id"] for row in json.loads(status.stdout)["brokers"]] == [1, 2, 3]


@pytest.fixture(scope="module")
def brokers_of_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """docs/cluster.md, "On several machines", started as the page says it: 10.0.0.N become ports of this one."""
    folder = tmp_path_factory.mktemp("machines")
    (block,) = [block for block in ALL if block.page.name == "cluster.md" and "one$" in block.text]
    commands = [command.text for command in commands_of(block)]
    subprocess.run(["bash", "-euc", commands[0]], cwd=folder, check=True, timeout=RUN_S_MAX)
    peers = _free_ports(3)
    processes: list[subprocess.Popen[str]] = []
    addresses = []
    try:
        for number, command in enumerate(commands[1:]):
            (words,) = calls_of_program(command)
            text = " ".join(words)
            for other, port in enumerate(peers, start=1):
                text = text.replace(f"10.0.0.{other}:9192", f"127.0.0.1:{port}")
                text = text.replace(f"10.0.0.{other}:9092", "127.0.0.1:0")
            more = ["--data-dir", f"data-{number}", "--format", "json"]
            addresses.append(str(_started([*text.split(), *more], folder, processes)["bootstrap"]))
        yield ",".join(addresses)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _started(
    words: list[str], folder: Path, processes: list[subprocess.Popen[str]], environment: Any = None
) -> dict[str, Any]:
    """What a node, or a cluster, says once it answers."""
    process = subprocess.Popen(
        [str(PROGRAM), *words], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    processes.append(process)
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S_MAX)
    line = process.stdout.readline() if readable else ""
    if not line:
        process.kill()
        raise AssertionError(f"anabranch {' '.join(words)} did not start: {process.communicate()[1]}")
    ready: dict[str, Any] = json.loads(line)
    return ready


def _free_ports(count: int) -> list[int]:
    from anabranch.local_cluster.ports import free_block

    return list(free_block("127.0.0.1", count, 21_000))


# --- Python -------------------------------------------------------------------------------------------------------

PYTHON = [block for block in ALL if block.language == "python"]
IN_TESTS = [block for block in PYTHON if re.search(r"^(def test_|@pytest)", block.text, re.MULTILINE)]
OF_SPARK = [block for block in PYTHON if "spark_session" in block.text]
ALONE = [block for block in PYTHON if block not in IN_TESTS and block not in OF_SPARK]

OF_THE_READER = '''
"""What the pages take for granted: a service of the reader's, that is tested."""
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic


def run_my_service(bootstrap, source=None, target=None):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name in {target or "orders"} - set(admin.list_topics(timeout=10).topics):
        admin.create_topics([NewTopic(name, 1)])[name].result(10)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(target or "orders", "a receipt", "customer-1")
    assert producer.flush(10) == 0


def announce_order(bootstrap, topic):
    run_my_service(bootstrap, target=topic)


'''


def test_test_functions_of_the_pages_pass(tmp_path: Path) -> None:
    """Each in a file of its own, since a page may show settings for a whole session."""
    for number, block in enumerate(IN_TESTS):
        (tmp_path / f"test_{number}.py").write_text(OF_THE_READER + block.text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=3 * RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    named = sum(block.text.count("def test_") for block in IN_TESTS)
    assert f"{named} passed" in done.stdout


@pytest.mark.parametrize("block", ALONE, ids=lambda block: block.name)
def test_python_of_a_block_runs(block: Block, node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    text = block.text.replace("127.0.0.1:9092", node.bootstrap)
    names: dict[str, Any] = {}
    if block.text.startswith("broker."):  # Goes on with the broker of the block before it.
        from anabranch.testing import EmbeddedBroker

        with EmbeddedBroker() as broker:
            broker.create_topic("orders")
            exec(compile(text, block.name, "exec"), {"broker": broker})
        return
    exec(compile(text, block.name, "exec"), names)


@pytest.mark.parametrize("block", OF_SPARK, ids=lambda block: block.name)
def test_python_for_spark_is_python(block: Block) -> None:
    """tests/pipeline/test_stream.py runs the same."""
    compile(block.text, block.name, "exec")


# --- the rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.language == "json"], ids=lambda block: block.name
)
def test_json_is_json(block: Block) -> None:
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.language == "toml"], ids=lambda block: block.name
)
def test_settings_files_are_taken(block: Block, tmp_path: Path) -> None:
    from anabranch.config import read_settings_file

    path = tmp_path / "settings.toml"
    secret = tmp_path / "secret"
    secret.write_text("x" * 64)
    secret.chmod(0o600)
    path.write_text(block.text.replace("/etc/anabranch/secret", str(secret)))
    settings = read_settings_file(path)
    for broker in broker_tables(settings) or {0: {}}:
        assert NodeSettings.load(settings_of_broker(settings, str(broker))).broker_id == broker


def test_every_block_is_of_a_known_kind() -> None:
    """`html` is run by tests/gateway/test_gateway_browser.py, `nginx` by tests/gateway/test_gateway_proxy.py."""
    kinds = {block.language for block in ALL}
    assert kinds <= {"console", "sh", "python", "json", "toml", "html", "nginx", "text"}
