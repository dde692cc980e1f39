"""Fixtures of the log room: a disk in memory, and a short way to open the one log of a test."""

from collections.abc import Iterator

import pytest
from log_helpers import Open, open_on

from anabranch.log.disk.real_files import RealFiles
from anabranch.testing.fakes.disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def open_log(disk: FakeDisk) -> Open:
    return open_on(disk)


@pytest.fixture(params=["fake", "real"])
def both_disks(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[Open]:
    """The same test on the disk in memory and on the machine's."""
    if request.param == "fake":
        yield open_on(FakeDisk())
    else:
        yield open_on(RealFiles(open_files_max=3), f"{tmp_path}/t-0")
