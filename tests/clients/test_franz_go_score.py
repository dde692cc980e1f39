"""How `make compat` reads the log of a Go test run: by leaves, and never kinder than the run was."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "franz_go_suite.py"


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOL.parents[1] / "tests"))
        spec = importlib.util.spec_from_file_location("franz_go_suite", TOOL)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def test_a_parent_is_not_counted_beside_its_subtests(suite: ModuleType) -> None:
    log = ["=== RUN   TestHookPollStart", "=== RUN   TestHookPollStart/PollRecords"]
    log += ["--- PASS: TestHookPollStart (0.1s)", "    --- PASS: TestHookPollStart/PollRecords (0.1s)"]
    assert suite.scores(log)["basic"].passed == ["TestHookPollStart/PollRecords"]


def test_a_parent_that_fails_by_itself_is_a_miss(suite: ModuleType) -> None:
    log = ["--- FAIL: TestHookPollStart (0.1s)", "    --- PASS: TestHookPollStart/PollRecords (0.1s)"]
    assert suite.scores(log)["basic"].missed == ["FAIL TestHookPollStart"]


def test_a_test_that_never_ends_is_a_miss(suite: ModuleType) -> None:
    assert suite.scores(["=== RUN   TestPing"])["basic"].missed == ["UNFINISHED TestPing"]


def test_a_skipped_test_is_a_miss(suite: ModuleType) -> None:
    assert suite.scores(["--- SKIP: TestPing (0.00s)"])["basic"].missed == ["SKIP TestPing"]


def test_subtests_with_slashes_in_their_names_all_count(suite: ModuleType) -> None:
    log = ["--- PASS: TestGroupETL/sticky (1s)", "--- PASS: TestGroupETL/sticky/static (1s)"]
    assert suite.scores(log)["basic"].passed == ["TestGroupETL/sticky", "TestGroupETL/sticky/static"]


def test_variants_with_the_newer_group_protocol_have_their_own_class(suite: ModuleType) -> None:
    assert suite.scores(["--- PASS: TestGroupSimple/848 (1s)"])["848"].passed == ["TestGroupSimple/848"]
