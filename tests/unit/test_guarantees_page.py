"""docs/guarantees.md names a test for every promise: each of them is there, and each number is used and explained."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert named
    for path, name in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{path} has no {name}"


def test_every_number_is_used_and_explained() -> None:
    used = set(re.findall(r"\[(\d+)\]", PAGE))
    explained = set(re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE))
    assert used == explained
