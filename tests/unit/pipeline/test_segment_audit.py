"""The audit of one segment: what is whole is said to be, what is damaged is named by file and position."""

import os
import threading

import pytest

from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.pipeline.jobs import segment_audit
from anabranch.pipeline.jobs.audit import gathered, partition_folders, segment_tasks
from anabranch.pipeline.jobs.segment_audit import audit_segment
from anabranch.record.builder import BatchBuilder

BATCHES = 80
START_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(segment_audit, "SECONDS_BETWEEN_LOOKS", 0.05)


def batch_at(offset, records=1):
    builder = BatchBuilder(base_offset=offset, generation=0)
    for number in range(records):
        builder.add(b"key", b"value %d" % number, timestamp_ms=START_MS + offset + number)
    return builder.build()


def open_log(folder):
    config = LogConfig(segment_bytes=1024, index_interval_bytes=100)
    return Log.open(RealFiles(), str(folder), config, clean=False)


def append(log, offsets):
    for offset in offsets:
        log.append([(batch_at(offset), offset, offset, START_MS + offset)], START_MS)


@pytest.fixture
def folder(tmp_path):
    """A data folder with one partition of several segments, closed cleanly."""
    partition = tmp_path / "demo-0"
    partition.mkdir()
    log = open_log(partition)
    append(log, range(BATCHES))
    log.close(clean=True)
    return tmp_path


def segments(folder):
    found = sorted((folder / "demo-0").glob("*.log"))
    assert len(found) > 3
    return found


def report_of(folder, gaps_allowed=()):
    tasks = segment_tasks(partition_folders(str(folder)), gaps_allowed)
    (report,) = gathered(map(audit_segment, tasks))
    return report


def findings(folder, gaps_allowed=()):
    return [(finding.file, finding.position) for finding in report_of(folder, gaps_allowed).findings]


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_whole_folder_has_no_findings_and_true_counts(folder):
    report = report_of(folder)
    assert report.findings == []
    assert (report.batches, report.records, report.end_offset) == (BATCHES, BATCHES, BATCHES)
    assert report.segments == len(segments(folder))
    assert report.bytes_read == sum(path.stat().st_size for path in segments(folder))
    assert (report.missing_offsets, report.torn_bytes, report.segments_gone) == (0, 0, 0)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_flipped_bit_in_a_record_is_named_by_file_and_position_of_its_batch(folder, number):
    path = segments(folder)[number]
    size = len(batch_at(0))
    flip(path, path.stat().st_size - 3)
    assert findings(folder)[0] == (path.name, path.stat().st_size - size)


def test_changed_generation_which_no_crc_covers_is_found_by_the_seal(folder):
    path = segments(folder)[0]
    flip(path, 15)
    assert findings(folder) == [(path.name, 0)]


def test_batch_that_reaches_beyond_its_segment_is_found(folder):
    path = segments(folder)[1]
    content = bytearray(path.read_bytes())
    content[0:8] = (10_000).to_bytes(8)
    path.write_bytes(content)
    assert findings(folder)[0] == (path.name, 0)


def test_sealed_segment_that_was_cut_is_found(folder):
    path = segments(folder)[1]
    whole = path.stat().st_size - len(batch_at(0))
    os.truncate(path, path.stat().st_size - 5)
    assert (path.name, whole) in findings(folder)
    assert (path.name, None) in findings(folder)


def test_missing_segment_is_found(folder):
    segments(folder)[1].unlink()
    assert (segments(folder)[0].name, None) in findings(folder)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_index_is_found(folder, suffix):
    path = segments(folder)[1].with_suffix(suffix)
    path.unlink()
    assert findings(folder) == [(path.name, None)]


@pytest.mark.parametrize(
    ("suffix", "position"),
    [(".index", 3), (".index", 7), (".timeindex", 7), (".timeindex", 11), (".seal", 20)],
)
def test_sidecar_that_disagrees_with_the_log_is_found(folder, suffix, position):
    path = segments(folder)[1].with_suffix(suffix)
    flip(path, position)
    assert [file for file, _ in findings(folder)] == [path.name]


def test_index_that_does_not_grow_is_found(folder):
    path = segments(folder)[1].with_suffix(".index")
    path.write_bytes(path.read_bytes()[:8] * 2)
    assert "do not grow" in report_of(folder).findings[0].problem


def test_gap_is_damage_unless_the_topic_was_compacted(tmp_path):
    partition = tmp_path / "demo-0"
    partition.mkdir()
    (partition / f"{0:020d}.log").write_bytes(bytes(batch_at(0) + batch_at(5)))
    assert "4 offsets are missing" in report_of(tmp_path).findings[0].problem
    report = report_of(tmp_path, gaps_allowed={"demo-0"})
    assert (report.findings, report.missing_offsets) == ([], 4)


def test_torn_end_that_nobody_goes_on_writing_is_found(folder):
    path = segments(folder)[-1]
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(batch_at(BATCHES)[:-5])
    assert findings(folder) == [(path.name, whole)]


def test_torn_end_is_no_finding_while_its_batch_is_being_written(folder):
    path = segments(folder)[-1]
    batch = batch_at(BATCHES)
    with path.open("ab", buffering=0) as file:
        file.write(batch[:-5])
        writer = threading.Timer(0.02, file.write, [batch[-5:]])
        writer.start()
        report = report_of(folder)
        writer.join()
    assert (report.findings, report.torn_bytes, report.end_offset) == ([], 0, BATCHES + 1)


def test_segment_that_retention_took_meanwhile_is_counted_and_no_finding(folder):
    tasks = segment_tasks(partition_folders(str(folder)), ())
    for path in (folder / "demo-0").glob(f"{segments(folder)[0].stem}.*"):
        path.unlink()
    (report,) = gathered(map(audit_segment, tasks))
    assert (report.findings, report.segments_gone) == ([], 1)


def test_segment_that_is_replaced_under_the_audit_is_looked_at_again(folder):
    path = segments(folder)[1]
    whole = path.read_bytes()
    flip(path, len(whole) - 3)
    fresh = path.with_name("fresh")
    fresh.write_bytes(whole)
    swap = threading.Timer(0.02, os.replace, [fresh, path])
    swap.start()
    task = segment_tasks(partition_folders(str(folder)), ())[1]
    report = audit_segment(task)
    swap.join()
    assert report.findings == []


def test_log_that_a_writer_holds_open_is_audited_up_to_what_it_holds(folder):
    log = open_log(folder / "demo-0")
    append(log, range(BATCHES, BATCHES + 50))
    report = report_of(folder)
    log.close(clean=True)
    assert (report.findings, report.end_offset) == ([], BATCHES + 50)


def test_lanes_of_a_branch_topic_are_told_apart_and_may_have_gaps(tmp_path):
    for partition in ("demo-0", "demo-1"):
        lane = tmp_path / "node" / partition / "lane-0000001024"
        lane.mkdir(parents=True)
        log = open_log(lane)
        append(log, [0, 1, 5])
        log.close(clean=True)
    reports = gathered(map(audit_segment, segment_tasks(partition_folders(str(tmp_path)), ())))
    assert [(report.partition, report.records, report.findings) for report in reports] == [
        ("demo-0/lane-0000001024", 3, []),
        ("demo-1/lane-0000001024", 3, []),
    ]


def test_gaps_between_lanes_are_no_damage_and_a_missing_file_between_them_is(tmp_path):
    partition = tmp_path / "demo-0"
    partition.mkdir()
    log = open_log(partition)
    append(log, [0, 1, 5 << 32, (5 << 32) + 4, 9 << 32])
    log.close(clean=True)
    report = report_of(tmp_path)
    assert (report.findings, report.missing_offsets, report.records) == ([], 3, 5)
    (partition / f"{5 << 32:020d}.log").unlink()
    assert findings(tmp_path) != []
