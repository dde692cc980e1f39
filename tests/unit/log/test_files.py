"""The machine's disk: descriptors within their budget, writes in full, one owner of a folder."""

import os
import threading
from collections import OrderedDict
from pathlib import Path

import pytest
from log_helpers import NOW_MS, fill, make_batch, open_on, read_all

from anabranch.broker.topics.topic_folders import remove_tree
from anabranch.errors import DataFolderInUseError, StorageError
from anabranch.log.disk.files import require_no_strays, write_fully
from anabranch.log.disk.real_files import IOV_MAX, LOOKS_MAX, RealFiles, boot_id


def test_many_logs_share_few_descriptors(tmp_path: Path) -> None:
    files = RealFiles(open_files_max=8)
    logs = [open_on(files, f"{tmp_path}/t-{number}")(segment_bytes=300) for number in range(40)]
    written = [fill(log, 6) for log in logs]
    assert files.open_files <= 8
    for log, batches in zip(logs, written, strict=True):
        assert read_all(log) == batches
    assert files.open_files <= 8
    for log in logs:
        log.sync()
        log.close()
    assert files.open_files == 0
    assert not [fd for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(str(tmp_path))]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def test_few_files_are_looked_at_where_all_of_them_wait_for_a_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = RealFiles(open_files_max=10 * LOOKS_MAX)
    written = [files.create(f"{tmp_path}/{number}") for number in range(12 * LOOKS_MAX)]
    for file in written:
        file.pwritev([b"x"], 0)
    assert files.open_files == 10 * LOOKS_MAX
    assert not any(file.unsynced for file in written if file.descriptor < 0)
    looks = 0

    class Counting(OrderedDict):
        def move_to_end(self, *args: object) -> None:
            nonlocal looks
            looks += 1
            super().move_to_end(*args)

    files._open = Counting(files._open)
    closed = [file for file in written if file.descriptor < 0][:10]
    for file in closed:
        file.pread(1, 0)
    assert looks <= 10 * (LOOKS_MAX + 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    for file in written:
        file.close()


def test_a_pinned_file_keeps_its_descriptor_even_when_it_is_unlinked_and_closed(tmp_path: Path) -> None:
    files = RealFiles(open_files_max=1)
    pinned = files.create(f"{tmp_path}/pinned")
    pinned.pwritev([b"still here"], 0)
    pinned.pin()
    descriptor = pinned.fileno()
    assert descriptor is not None
    others = [files.create(f"{tmp_path}/{number}") for number in range(3)]
    for other in others:
        other.pwritev([b"x"], 0)
    files.unlink(pinned.path)
    pinned.close()
    assert pinned.fileno() == descriptor
    assert os.pread(descriptor, 100, 0) == b"still here"
    pinned.unpin()
    assert pinned.fileno() is None
    with pytest.raises(FileNotFoundError):
        pinned.pread(1, 0)
    for other in others:
        other.close()


def test_a_renamed_file_is_found_again_after_it_lost_its_descriptor(tmp_path: Path) -> None:
    files = RealFiles(open_files_max=1)
    file, other = files.create(f"{tmp_path}/a"), files.create(f"{tmp_path}/b")
    file.pwritev([b"moved"], 0)
    file.rename(f"{tmp_path}/c")
    other.pwritev([b"x"], 0)
    assert file.fileno() is None
    assert file.pread(5, 0) == b"moved"
    file.close()
    other.close()


def test_more_buffers_than_one_call_takes_are_written_in_order(tmp_path: Path) -> None:
    files = RealFiles()
    file = files.create(f"{tmp_path}/a")
    buffers = [b"%05d" % number for number in range(2 * IOV_MAX + 7)]
    assert write_fully(file, buffers, 3) == 5 * len(buffers)
    assert files.read(file.path) == b"\0\0\0" + b"".join(buffers)
    file.close()


def test_a_second_process_is_told_who_holds_the_data_folder(tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"
    held = RealFiles().lock(path)
    with pytest.raises(DataFolderInUseError, match=f"process {os.getpid()}"):
        RealFiles().lock(path)
    held.release()
    RealFiles().lock(path).release()


def test_a_folder_is_made_with_its_parents_and_may_be_there_already(tmp_path: Path) -> None:
    files = RealFiles()
    for _ in range(2):
        files.make_folder(f"{tmp_path}/a/b/c")
    assert files.list(f"{tmp_path}/a") == ["b"]
    assert files.free_bytes(str(tmp_path)) > 0


def test_a_write_ends_the_file_where_the_data_ends(tmp_path: Path) -> None:
    files = RealFiles()
    path = f"{tmp_path}/a"
    files.write(path, b"a long content", sync=True)
    files.write(path, b"x", 2)
    assert files.read(path) == b"a x"


def test_this_boot_has_a_name() -> None:
    assert boot_id() == boot_id() != ""


def test_a_worker_syncs_while_the_writer_appends_and_rolls(tmp_path: Path) -> None:
    log = open_on(RealFiles(open_files_max=4), f"{tmp_path}/t-0")(segment_bytes=2000)
    stop = threading.Event()
    synced: list[int] = []

    def work() -> None:
        while not stop.is_set():
            synced.append(log.sync())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(600):
            log.append([make_batch(log.end_offset)], NOW_MS)
    finally:
        stop.set()
        worker.join()
    assert synced == sorted(synced)
    assert log.sync() == 600 == log.synced_offset
    assert all(segment.synced_bytes == segment.published_bytes for segment in log.segments)
    log.close()


# --- links and modes ---------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody else's folder with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_bytes(b"precious")
    return folder


def test_no_file_operation_follows_a_link(tmp_path: Path, outside: Path) -> None:
    files = RealFiles()
    link = tmp_path / "00000000000000000000.timeindex"
    link.symlink_to(outside / "precious")
    path = str(link)
    file = files.open(path)
    for use in (
        lambda: files.write(path, b"spoiled"),
        lambda: files.read(path),
        lambda: files.size(path),
        lambda: files.modified_ms(path),
        lambda: files.lock(path),
        lambda: file.pwritev([b"spoiled"], 0),
        lambda: file.pread(1, 0),
        lambda: file.truncate(0),
    ):
        with pytest.raises((OSError, StorageError), match="symbolic link"):
            use()
    with pytest.raises(FileExistsError):
        files.create(path)
    assert files.exists(path)
    files.unlink(path)
    assert (outside / "precious").read_bytes() == b"precious"
    assert not files.exists(path)


def test_a_deletion_removes_a_link_and_not_what_it_points_to(tmp_path: Path, outside: Path) -> None:
    files = RealFiles()
    deleted = tmp_path / "t-0.deleted"
    deleted.mkdir()
    (deleted / "inner").symlink_to(outside)
    (tmp_path / "t-1.deleted").symlink_to(outside)
    for name in ("t-0.deleted", "t-1.deleted"):
        assert files.is_folder(f"{tmp_path}/{name}") == (name == "t-0.deleted")
        remove_tree(files, f"{tmp_path}/{name}")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["outside"]
    assert (outside / "precious").exists()


def test_a_link_is_found_at_any_depth(tmp_path: Path, outside: Path) -> None:
    files = RealFiles()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert files.find_stray(str(tmp_path)) is None
    (tmp_path / "a" / "b" / "c").symlink_to(outside)
    assert files.find_stray(str(tmp_path)) == (f"{tmp_path}/a/b/c", "a symbolic link")


@pytest.mark.parametrize("has_writer", [False, True])
def test_a_named_pipe_is_refused_and_nobody_waits_for_it(tmp_path: Path, has_writer: bool) -> None:
    files, path = RealFiles(), f"{tmp_path}/00000000000000000000.index"
    os.mkfifo(path)
    other = os.open(path, os.O_RDWR | os.O_NONBLOCK) if has_writer else None
    file = files.open(path)
    for use in (
        lambda: files.write(path, b"spoiled"),
        lambda: files.read(path),
        lambda: files.size(path),
        lambda: files.lock(path),
        lambda: file.pwritev([b"spoiled"], 0),
        lambda: file.pread(1, 0),
        file.size,
    ):
        with pytest.raises((OSError, StorageError), match="a named pipe"):
            use()
    assert files.open_files == 0
    assert files.find_stray(str(tmp_path)) == (path, "a named pipe")
    with pytest.raises(StorageError, match=r"\.index is a named pipe, and .* remove it \(rm /"):
        require_no_strays(files, str(tmp_path))
    files.unlink(path)
    assert files.find_stray(str(tmp_path)) is None
    if other is not None:
        os.close(other)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    files = RealFiles()
    for use in (lambda: files.read(str(tmp_path)), lambda: files.open(str(tmp_path)).pread(1, 0)):
        with pytest.raises(IsADirectoryError):
            use()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".seal"])
def test_a_log_with_a_named_pipe_for_a_derived_file_is_read(tmp_path: Path, suffix: str) -> None:
    log = open_on(RealFiles(), f"{tmp_path}/t-0")(segment_bytes=400)
    written = fill(log, 20)
    log.close()
    path = log.segments[1].paths()[0].replace(".log", suffix)
    os.unlink(path)
    os.mkfifo(path)
    for clean in (True, False):
        log = open_on(RealFiles(), f"{tmp_path}/t-0")(clean=clean, segment_bytes=400)
        assert read_all(log) == written
        log.sync()


def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    files = RealFiles()
    before = os.umask(0o022)
    try:
        files.make_folder(f"{tmp_path}/data/t-0")
        files.create(f"{tmp_path}/data/t-0/created").close()
        files.write(f"{tmp_path}/data/t-0/written", b"x")
        files.lock(f"{tmp_path}/data/.lock").release()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*")}
    assert modes == {"t-0": 0o700, "created": 0o600, "written": 0o600, ".lock": 0o600}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
