"""`make compat`: franz-go's own test suite against a node, scored by class.

The suite comes as a Go module into the cache that the client tests use, and runs against a node of ours (or
the broker named by ANABRANCH_TEST_BOOTSTRAP). A test counts by its leaves, the subtests that have none of
their own; one that is skipped, fails or never finishes is not a pass. The bar of a class is its number of
leaves on Apache Kafka 4.3.1. The exit code is 1 when a class that was asked for stays below its bar.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from clients.registries import Unavailable, cache_folder, go_environment, go_modules, go_program
from support.node_process import NodeProcess

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.2"
SUITE_S_MAX = 14 * 60
RECORDS = 50_000

TESTS = {
    "basic": [
        "TestAddRemovePartitions",
        "TestClient_Produce",
        "TestClient_ProduceLargeMessages",
        "TestConsumeMaxDecompressBatchBytes",
        "TestConsumeRegex",
        "TestDirectPartitionPurge",
        "TestGroupETL",
        "TestGroupSimple",
        "TestHookPollStart",
        "TestIssue1034",
        "TestIssue325",
        "TestIssue337",
        "TestIssue434",
        "TestIssue523",
        "TestIssue648",
        "TestIssue769",
        "TestIssue810",
        "TestIssue831",
        "TestIssue865",
        "TestIssueFetchLargerThanBrokerMaxReadBytes",
        "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
        "TestPauseIssue489",
        "TestPauseIssueOct2023",
        "TestPing",
        "TestPooling",
    ],
    "txn": ["TestTxnEtl"],
    "848": ["Test848RegexBrokerResolves"],
    "share": [
        "TestConsumeRegexShareSkipsInternal",
        "TestShareGroup",
        "TestShareGroupAckOnClose",
        "TestShareGroupETL",
        "TestShareGroupOffsetsAdmin",
    ],
}
BARS = {"basic": 30, "txn": 3, "848": 8, "share": 5}

# Their subtests carry slashes in their own names, so that every subtest is a leaf.
SLASHED = ("TestGroupETL/", "TestTxnEtl/")


@dataclass
class Score:
    passed: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # "FAIL name", "SKIP name", "UNFINISHED name"


def outcomes(log: Iterable[str]) -> dict[str, str]:
    """Every test and subtest that began, with PASS, FAIL, SKIP, or UNFINISHED."""
    found: dict[str, str] = {}
    for line in log:
        if began := re.search(r"=== RUN\s+(\S+)", line):
            found.setdefault(began[1], "UNFINISHED")
        if ended := re.search(r"--- (PASS|FAIL|SKIP): (\S+) \(", line):
            found[ended[2]] = ended[1]
    return found


def leaves(found: dict[str, str]) -> set[str]:
    """The tests without subtests, and those that failed although none of their subtests did."""
    parents = {name[: cut.start()] for name in found for cut in re.finditer("/", name)} & set(found)
    own_failures = {
        name
        for name in parents
        if found[name] == "FAIL"
        and not any(found[other] == "FAIL" for other in found if other.startswith(name + "/"))
    }
    slashed = {name for name in parents if name.startswith(SLASHED)}
    return (set(found) - parents) | slashed | own_failures


def class_of(name: str) -> str:
    test, *rest = name.split("/")
    if "848" in rest:  # a classic test's variant with the newer group protocol
        return "848"
    return next((kind for kind, tests in TESTS.items() if test in tests), "other")


def scores(log: Iterable[str]) -> dict[str, Score]:
    found = outcomes(log)
    table = {kind: Score() for kind in TESTS}
    for name in sorted(leaves(found)):
        score = table.setdefault(class_of(name), Score())
        if found[name] == "PASS":
            score.passed.append(name)
        else:
            score.missed.append(f"{found[name]} {name}")
    return table


def fetch_suite() -> Path:
    """A writable copy of the module's source: Go will not test inside its own cache."""
    folder = cache_folder() / f"franz-go-{VERSION}"
    source = folder / "src"
    if source.exists():
        return source
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(f"module fetch\n\ngo 1.24\n\nrequire {MODULE} {VERSION}\n")
    go_modules(folder)
    unpacked = folder / "unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    module = Path(go_environment()["GOMODCACHE"]) / f"{MODULE}@{VERSION}"
    shutil.copytree(module, unpacked, copy_function=shutil.copyfile)  # without the cache's read-only modes
    for path in (unpacked, *(path for path in unpacked.rglob("*") if path.is_dir())):
        path.chmod(0o755)
    unpacked.rename(source)
    return source


def run_suite(source: Path, bootstrap: str, classes: list[str], log_path: Path) -> None:
    tests = "|".join(name for kind in classes for name in TESTS[kind])
    command = [go_program(), "test", "-count=1", f"-timeout={SUITE_S_MAX}s", "-v", "-run", f"^({tests})$"]
    if "848" not in classes:
        command += ["-skip", "/848|//848"]
    settings = {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_STABLE_FETCH": "true",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_TEST_MAX_TOPIC_PARTS": "8",
        "GOFLAGS": "-mod=mod",
    }
    with log_path.open("w") as log:
        # Its exit code says less than the log, in which a test that never finished is seen too.
        subprocess.run(
            [*command, "./pkg/kgo/"],
            cwd=source,
            env={**go_environment(), **settings},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )


def report(table: dict[str, Score], classes: list[str]) -> bool:
    """Prints the score and says whether every class asked for reached its bar."""
    for kind in classes:
        score = table[kind]
        print(f"{kind:6} {len(score.passed)}/{BARS[kind]}  missed {len(score.missed)}")  # noqa: T201 (a command)
        for missed in score.missed:
            print(f"       {missed}")  # noqa: T201
    return all(len(table[kind].passed) >= BARS[kind] for kind in classes)


def main() -> int:
    parser = argparse.ArgumentParser(description="franz-go's own test suite against a node, scored by class")
    parser.add_argument("classes", nargs="*", metavar="CLASS", help=f"{', '.join(TESTS)}; basic if none")
    classes = parser.parse_args().classes or ["basic"]
    if unknown := set(classes) - set(TESTS):
        parser.error(f"no such class: {', '.join(sorted(unknown))}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            source = fetch_suite()
        except Unavailable as reason:
            sys.exit(f"franz-go's suite cannot be fetched: {reason}")
        bootstrap = os.environ.get("ANABRANCH_TEST_BOOTSTRAP")
        if not bootstrap:
            bootstrap = stack.enter_context(NodeProcess(folder)).bootstrap
        log_path = cache_folder() / "franz-go-suite.txt"
        run_suite(source, bootstrap, classes, log_path)
    print(f"the suite's own log: {log_path}")  # noqa: T201
    with log_path.open(errors="replace") as log:
        return 0 if report(scores(log), classes) else 1


if __name__ == "__main__":
    sys.exit(main())
