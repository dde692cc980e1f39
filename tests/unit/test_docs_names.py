"""Whatever README and docs name exists: commands, options, settings, metrics, APIs, routes, make targets, files."""

import ast
import inspect
import re
from pathlib import Path
from unittest.mock import MagicMock

import click
import pytest

from anabranch import testing
from anabranch.broker.handlers import HANDLERS
from anabranch.cli.main import main
from anabranch.config.node_settings import NODE_SETTINGS
from anabranch.config.topic_settings import TOPIC_SETTINGS
from anabranch.gateway.api.routes import ROUTES
from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.doc_pages import PAGES, ROOT, blocks_of, calls_of_program, code_of, commands_of, prose_of

NAMES_OF_OTHERS = {
    "--graph": "git's",
    "--list": "of bench, which make calls",
    "--state": "of examples/hourly_delays.py",
    "--folder": "of examples/demo",
    "--port": "of examples/demo",
    "request.timeout.ms": "of Kafka's clients",
    "socket.timeout.ms": "of librdkafka",
    "check.crcs": "of librdkafka",
    "partitioner": "of librdkafka",
    "kafka.bootstrap.servers": "of Spark's connector",
    "anabranch.mode.changing": "a config that only describes",
    "anabranch.dlq.reason": "a header of dead letters",
    "anabranch.v1": "the WebSocket protocol",
}
"""What looks like an option or a setting of ours, and is not."""
FILE_ENDINGS = ("dlq", "json", "md", "orders", "eu", "png", "py", "svg", "toml", "txt")
"""Names of files, topics and tables have dots too."""
FIXTURES = {
    "anabranch_broker",
    "anabranch_topic",
    "anabranch_settings",
    "anabranch_cluster",
    "anabranch_cluster_settings",
}
PARAMETERS = {"anabranch_mode"}
"""Underscores stand for dots in the configs of `create_topic`."""
OTHER_WORDS = {
    "WebSocket", "WebSockets", "JavaScript", "PySpark", "RecordBatch", "ProducerPerformance", "ConsumerPerformance",
    "SparkSession", "OffsetsByTimestamp", "CreateTime", "LogAppendTime", "TimeoutError", "ObjectStore", "ApiKey",
}  # fmt: skip
"""Words in camel case that are no API of Kafka's and no class of `anabranch.testing`."""

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# --- the command line ---------------------------------------------------------------------------------------------


def all_calls(page: Path) -> list[list[str]]:
    shell = [
        command.text
        for block in blocks_of(page)
        if block.language in ("console", "sh")
        for command in commands_of(block)
    ]
    return [call for text in (*shell, *code_of(page)) for call in calls_of_program(text)]


def resolve(call: list[str]) -> tuple[click.Command, list[click.Command], list[str]]:
    """The command, the groups before it, and the words behind its name; `a|b` stands for several."""
    command: click.Command = main
    groups: list[click.Command] = []
    words = list(call)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = re.split(r"\\?\|", words[0])[0]
        found = command.get_command(click.Context(command), name)
        if found is None:
            assert getattr(command, "invoke_without_command", False), f"there is no command {' '.join(call)}"
            break
        groups.append(command)
        command, words = found, words[1:]
    return command, groups, words


@by_page
def test_commands_and_their_options_exist(page: Path) -> None:
    for call in all_calls(page):
        command, groups, words = resolve(call)
        known = {
            option
            for each in (command, *groups)
            for param in each.params
            for option in (*param.opts, *param.secondary_opts)
        }
        used = {
            word.split("=")[0] for word in words if word.startswith("-") and not re.fullmatch(r"-\d*", word)
        }
        assert used - known <= {"--help", "-h"}, f"anabranch {' '.join(call)}"


@by_page
def test_every_command_of_a_list_exists(page: Path) -> None:
    r"""`anabranch cluster up\|status` in a table, `anabranch topic create|list`."""
    for span in code_of(page):
        found = re.match(r"anabranch ((?:\w+ )*)([a-z-]+(?:\\?\|[a-z.-]+)+)", span)
        for name in re.split(r"\\?\|", found[2]) if found else ():
            if name != "...":
                resolve([*found[1].split(), name])


def every_option(command: click.Command) -> set[str]:
    found = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {
        "--help"
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= every_option(inner)
    return found


@by_page
def test_options_named_alone_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert named - every_option(main) - NAMES_OF_OTHERS.keys() == set()


@by_page
def test_make_targets_exist(page: Path) -> None:
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z][a-z-]*)", page.read_text())) <= there


# --- settings, metrics, APIs --------------------------------------------------------------------------------------


@by_page
def test_settings_exist(page: Path) -> None:
    known = NODE_SETTINGS.keys() | TOPIC_SETTINGS.keys() | NAMES_OF_OTHERS.keys()
    for span in code_of(page):
        found = re.fullmatch(r"(?:--set |--config )?([a-z][a-z0-9]*(?:\.[a-z0-9]+)+)(?:=.*)?", span)
        if (
            found
            and found[1].rpartition(".")[2] not in FILE_ENDINGS
            and not found[1].startswith("anabranch.testing")
        ):
            assert found[1] in known, span


def metrics() -> set[str]:
    """As they are exposed: a counter's name ends with `_total`."""
    found = set()
    for path in (
        ROOT / "src" / "anabranch" / "server" / "metrics.py",
        ROOT / "src" / "anabranch" / "gateway" / "figures.py",
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and str(first.value).startswith("anabranch_"):
                    found.add(f"{first.value}{'_total' if 'ounter' in node.func.id else ''}")
    assert len(found) > 30, "the names of metrics are written otherwise now"
    return found


@by_page
def test_metrics_exist(page: Path) -> None:
    known = metrics()
    for name in (
        set(re.findall(r"\banabranch_[a-z_]+[a-z](?!\w)(?!\*)", page.read_text())) - FIXTURES - PARAMETERS
    ):
        assert name in known, name
    for prefix in re.findall(r"\b(anabranch_[a-z_]*_)(?:\*|`)", page.read_text()):
        assert any(name.startswith(prefix) for name in known), prefix


@by_page
def test_apis_and_classes_exist(page: Path) -> None:
    served = {"".join(word.capitalize() for word in api.name.split("_")) for api in HANDLERS}
    known = served | set(dir(testing)) | OTHER_WORDS | classes_of_testing()
    named = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", prose_of(page)))
    assert named - known == set()


def classes_of_testing() -> set[str]:
    sources = (ROOT / "src" / "anabranch" / "testing").rglob("*.py")
    return {name for path in sources for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)}


@by_page
def test_error_codes_exist(page: Path) -> None:
    codes = {code.name for code in ErrorCode} | {api.name for api in ApiKey}
    folder = ROOT / "src" / "anabranch" / "gateway"
    gateway = "".join(path.read_text() for kind in ("*.py", "*.js") for path in folder.rglob(kind))
    environment = {"ANABRANCH_BOOTSTRAP", "ANABRANCH_PURE"}
    for name in set(re.findall(r"\b[A-Z]{2,}(?:_[A-Z0-9]+)+\b", prose_of(page))):
        is_known = (
            name in codes | environment
            or name.startswith(("AWS_", "AZURE_", "GOOGLE_"))
            or f'"{name}"' in gateway
            or name in TOLD_ELSEWHERE
        )
        assert is_known, name


TOLD_ELSEWHERE = {
    "JAVA_HOME", "PYSPARK_PYTHON", "SPARK_CONF_DIR", "LOCATION_ALREADY_EXISTS", "SO_SNDBUF",
    "FUZZ_SECONDS", "FUZZ_SEED", "WITHHELD_ANSWER",
}  # fmt: skip
"""Variables and errors of others, options of sockets, and of our own make targets and test helpers."""


# --- Python, HTTP, files ------------------------------------------------------------------------------------------


def test_calls_of_the_test_helpers_exist() -> None:
    """The tables of docs/testing.md: every name, and every parameter that has a default there."""
    text = (ROOT / "docs" / "testing.md").read_text()
    for heading, owner in (
        ("## What a broker can be asked", testing.EmbeddedBroker),
        ("## A cluster to break", ClusterProcesses),
    ):
        section = text.split(heading, 1)[1].split("\n## ", 1)[0]
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        calls = [call for row in rows for call in re.findall(r"`([^`]+)`", row)]
        assert len(calls) > 8
        for call in calls:
            name, _, given = call.partition("(")
            assert hasattr(owner, name) or name in inspect.getsource(owner), call
            if given:
                parameters = inspect.signature(getattr(owner, name)).parameters
                for parameter, default in re.findall(r"(\w+)=([^,)]+)", given):
                    known = str(parameters[parameter].default).removesuffix(".0")
                    assert known == default.strip("\"'"), call


@by_page
def test_routes_exist(page: Path) -> None:
    paths = [str(route.path) for of_file in ROUTES for route in of_file(MagicMock())]
    routes = [re.compile(re.sub(r"\{[^}]*\}", r"[^/]+", path)) for path in paths]
    assert len(routes) > 5
    for route in re.findall(r"(?<![\w.])(/v1(?:/[\w{}.-]+)+)", page.read_text()):
        if not route.endswith("..."):
            assert any(known.fullmatch(route) for known in routes), route


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_errors_name_documents_that_exist() -> None:
    for source in (ROOT / "src" / "anabranch").rglob("*.py"):
        for name in re.findall(r"docs/[\w/-]+\.md", source.read_text()):
            assert (ROOT / name).exists(), f"{source.name}: {name}"


def test_examples_in_refusals_can_be_used() -> None:
    """What a sentence says one could write for --set and --config would be taken."""
    found = []
    for source in (ROOT / "src" / "anabranch" / "cli").rglob("*.py"):
        found += re.findall(r'pairs_of\([^"]*"(--set|--config)",\s*"([^"=]+)=', source.read_text())
    assert {flag for flag, _ in found} == {"--set", "--config"}
    for flag, name in found:
        assert name in (NODE_SETTINGS if flag == "--set" else TOPIC_SETTINGS), (flag, name)


def test_decision_on_defaults_agrees_with_the_settings() -> None:
    page = (ROOT / "docs" / "decisions" / "0004-defaults-that-differ-from-kafka.md").read_text()
    rows = re.findall(r"^\| `([a-z.]+)` \| [^|]+ \| ([^|]+) \|", page, re.MULTILINE)
    assert len(rows) > 3
    for name, told in rows:
        setting = NODE_SETTINGS[name]
        if setting.default is None:
            assert told.strip() in setting.doc.partition("unset: ")[2], name
        else:
            number = re.sub(r"(\d+) MiB", lambda found: str(int(found[1]) * 2**20), told.strip(" `"))
            assert number == str(setting.default), name
