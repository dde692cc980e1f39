"""Commands run in this process: what they do to its logging must not outlive the test."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`anabranch up` takes the root logger for itself; a later test that reads the log would find nothing."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
