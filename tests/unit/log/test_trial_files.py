"""What is done to a trial of a disk is seen there and nowhere else, and ends as it would on the disk."""

from random import Random

import pytest
from log_helpers import FOLDER, Open, fill, open_on, read_all

from anabranch.log.disk.files import Files
from anabranch.log.disk.trial_files import TrialFiles
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.testing.fakes.disk import FakeDisk


def everything(files: Files, folder: str = FOLDER) -> dict[str, bytes]:
    found = {}
    for name in files.list(folder):
        path = f"{folder}/{name}"
        found |= everything(files, path) if files.is_folder(path) else {path: files.read(path)}
    return found


@pytest.mark.parametrize("seed", range(40))
def test_recovery_of_a_damaged_log_ends_on_a_trial_as_on_the_disk(
    open_log: Open, disk: FakeDisk, seed: int
) -> None:
    log = open_log(segment_bytes=600, index_interval_bytes=100)
    fill(log, 40)
    log.close()
    disk.kill()
    rng = Random(seed)
    for name in rng.sample(disk.list(FOLDER), rng.randrange(1, 4)):
        path = f"{FOLDER}/{name}"
        change = rng.randrange(4)
        if change == 0:
            disk.unlink(path)
        elif change == 1:
            disk.write(path, disk.read(path) + rng.randbytes(rng.randrange(1, 100)))
        elif change == 2:
            disk.write(path, disk.read(path)[: -rng.randrange(1, 100)])
        elif disk.size(path):
            disk.flip_bit(path, rng.randrange(disk.size(path)))
    before = everything(disk)
    with TrialFiles(disk) as trial:
        recover(trial)
        tried = everything(trial)
    assert everything(disk) == before
    recover(disk)
    assert everything(disk) == tried


def recover(files: Files) -> None:
    log = Log.open(files, FOLDER, LogConfig(segment_bytes=600), clean=False, keeps_cuts=True)
    log.close()


def test_log_that_is_written_to_on_a_trial_reads_there_and_is_not_on_the_disk(disk: FakeDisk) -> None:
    written = fill(open_on(disk)(), 3)
    before = everything(disk)
    with TrialFiles(disk) as trial:
        log = open_on(trial)(segment_bytes=300)
        written += fill(log, 9)
        log.truncate_to(log.end_offset - 2)
        log.close()
        assert read_all(open_on(trial)(clean=True)) == written[:-2]
    assert everything(disk) == before


def test_trial_refuses_what_the_disk_would(disk: FakeDisk) -> None:
    disk.make_folder("a")
    disk.write("a/old", b"12345")
    with TrialFiles(disk) as trial:
        with pytest.raises(FileExistsError):
            trial.create("a/old")
        with pytest.raises(FileNotFoundError):
            trial.create("b/new")
        trial.rename("a/old", "a/new")
        assert (trial.list("a"), trial.exists("a/old"), disk.list("a")) == (["new"], False, ["old"])
        for use in (trial.read, trial.size, trial.unlink, lambda path: trial.open(path).size()):
            with pytest.raises(FileNotFoundError):
                use("a/old")
        with pytest.raises(FileNotFoundError):
            trial.rename("a/new", "b/new")
        trial.open("a/new").truncate(2)
        trial.open("a/new").truncate(4)
        assert (trial.read("a/new"), trial.open("a/new").pread(9, 1)) == (b"12\0\0", b"2\0\0")
        trial.unlink("a/new")
        trial.make_folder("a/b/c")
        assert (trial.list("a"), trial.list("a/b")) == (["b"], ["c"])
        with pytest.raises(OSError, match="not empty"):
            trial.remove_folder("a/b")
        trial.remove_folder("a/b/c")
        assert trial.list("a/b") == []
        with pytest.raises(FileNotFoundError):
            trial.list("a/b/c")
    assert disk.read("a/old") == b"12345"
