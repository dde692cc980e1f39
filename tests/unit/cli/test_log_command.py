"""`anabranch log` on folders that are whole, damaged, or in use."""

import errno
import fcntl
import json
import os
from random import Random
from uuid import UUID

import pytest
from click.testing import CliRunner

from anabranch.cli.log.offline import LOCK_NAME
from anabranch.cli.main import main
from anabranch.cluster.metadata.entries import topic_entry
from anabranch.cluster.metadata.rows import NO_MOVE, Placement, Topic
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.errors import CorruptDataError
from anabranch.log.disk.checkpoint import write_checkpoint
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.log import Log, begin_with_gap
from anabranch.log.settings import LogConfig
from anabranch.record.builder import BatchBuilder
from anabranch.values import BrokerId

BATCHES = 80


def run(*arguments):
    return CliRunner().invoke(main, ["log", *map(str, arguments)])


def batch_at(offset, key=b"key"):
    builder = BatchBuilder(base_offset=offset, generation=0)
    builder.add(key, b"value %d" % offset, timestamp_ms=1_700_000_000_000 + offset)
    return builder.build()


@pytest.fixture
def data(tmp_path):
    """A data folder with one partition of several segments, closed cleanly."""
    folder = tmp_path / "data" / "demo-0"
    folder.mkdir(parents=True)
    (tmp_path / "data" / ".lock").touch()
    config = LogConfig(segment_bytes=1024, index_interval_bytes=100)
    log = Log.open(RealFiles(), str(folder), config, clean=False)
    for offset in range(BATCHES):
        log.append([(batch_at(offset), offset, offset, 1_700_000_000_000 + offset)], 1_700_000_000_000)
    log.close(clean=True)
    return tmp_path / "data"


def segments(data):
    found = sorted((data / "demo-0").glob("*.log"))
    assert len(found) > 3
    return found


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def findings(data, *arguments):
    result = run("verify", data, "--format", "json", *arguments)
    (report,) = json.loads(result.stdout)
    assert (result.exit_code == 1) is bool(report["findings"])
    return report["findings"]


def kinds(data):
    return [(finding["kind"], finding["file"]) for finding in findings(data)]


def test_whole_folder_is_found_intact(data):
    result = run("verify", data, "--format", "json")
    (report,) = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (report["partition"], report["intact"], report["end_offset"]) == ("demo-0", True, BATCHES)
    assert (report["batches"], report["segments"]) == (BATCHES, len(segments(data)))


def test_text_names_the_partition_and_its_verdict(data):
    result = run("verify", data / "demo-0")
    assert result.exit_code == 0
    assert "demo-0" in result.stdout
    assert "intact" in result.stdout


@pytest.mark.parametrize("number", [0, 1, -1])
def test_flipped_bit_in_a_record_is_found_where_it_is(data, number):
    path = segments(data)[number]
    flip(path, path.stat().st_size - 3)
    found = findings(data)
    assert (found[0]["kind"], found[0]["file"]) == ("data", path.name)
    assert "checksum" in found[0]["problem"]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size", [17, 61, 200])
def test_bytes_zeroed_in_one_place_cost_the_batches_they_touch(data, number, size):
    path = segments(data)[number]
    positions = batch_positions(path)
    with path.open("r+b") as file:
        file.seek(positions[5])
        file.write(bytes(size))
    touched = sum(positions[5] <= position < positions[5] + size for position in positions)
    report = whole_report(data)
    assert (report["batches"], report["damaged_records"]) == (BATCHES - touched, touched)


def whole_report(data):
    (report,) = json.loads(run("verify", data, "--format", "json").stdout)
    return report


def batch_positions(path):
    lines = run("dump", path, "--format", "ndjson").stdout.splitlines()
    return [json.loads(line)["position"] for line in lines]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_every_damaged_stretch_is_listed_with_its_bytes_and_records(data, is_sealed):
    """Two of one segment, one of two batches of another, and the length of a batch in a third."""
    one, two, three = segments(data)[1:4]
    at = {path: [*batch_positions(path), path.stat().st_size] for path in (one, two, three)}
    for path, batch, byte in ((one, 1, 70), (one, 4, 70), (two, 2, 70), (two, 3, 70), (three, 3, 9)):
        flip(path, at[path][batch] + byte)
    if not is_sealed:
        for path in (one, two, three):
            path.with_suffix(".seal").unlink()
    report = whole_report(data)
    assert [
        (found["file"], found["position"], found["end"], found["damaged_records"])
        for found in report["findings"]
    ] == [
        (one.name, at[one][1], at[one][2], 1),
        (one.name, at[one][4], at[one][5], 1),
        (two.name, at[two][2], at[two][4], 2),
        (three.name, at[three][3], at[three][4], 1),
    ]
    assert (report["end_offset"], report["damaged_records"], report["batches"]) == (BATCHES, 5, BATCHES - 5)
    assert report["intact_behind_damage"] == BATCHES - int(one.stem) - 1 - 5
    assert report["missing_offsets"] == 0
    said = run("verify", data).stdout
    assert f"{report['intact_behind_damage']} intact records follow the first damage" in said
    assert f"ends at offset {BATCHES}" in said


def test_what_lies_behind_a_stretch_of_zeros_is_found_without_a_seal(data):
    path = segments(data)[1]
    path.with_suffix(".seal").unlink()
    at = [*batch_positions(path), path.stat().st_size]
    content = bytearray(path.read_bytes())
    content[at[2] + 30 : at[5] + 30] = bytes(at[5] - at[2])
    path.write_bytes(content)
    (found,) = whole_report(data)["findings"]
    assert (found["position"], found["end"], found["damaged_records"]) == (at[2], at[6], 4)


def test_batch_that_lies_about_its_offset_is_told_from_those_it_contradicts(data):
    """The walk ends at the batch behind it, which holds."""
    path = segments(data)[-1]
    at = batch_positions(path)
    flip(path, at[1] + 6)  # 256 more than it was.
    report = whole_report(data)
    found = [(found["kind"], found["position"], found["end"]) for found in report["findings"]]
    assert found == [("data", at[2], None), ("heads", at[1], at[2])]
    assert (report["end_offset"], report["damaged_records"]) == (BATCHES, 1)
    assert report["intact_behind_damage"] == len(at) - 2


def test_changed_head_behind_damage_is_found_too(data):
    path = segments(data)[1]
    flip(path, 70)
    later = segments(data)[3]
    at = batch_positions(later)
    flip(later, at[2] + 15)
    found = [(found["kind"], found["file"], found["position"]) for found in findings(data)]
    assert found == [("data", path.name, 0), ("heads", later.name, at[2])]
    steps = json.loads(run("repair", data, "--dry-run", "--format", "json").stdout)["steps"]
    assert {step["step"] for step in steps[1:]} == {"move to quarantine/"}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_end_of_a_log_whose_last_batch_is_damaged(data, is_sealed):
    """The seal tells it; without one the last intact record does."""
    path = segments(data)[-1]
    flip(path, path.stat().st_size - 3)
    if not is_sealed:
        path.with_suffix(".seal").unlink()
    report = whole_report(data)
    assert (report["end_offset"], report["damaged_records"]) == (BATCHES if is_sealed else BATCHES - 1, 1)
    assert report["intact_behind_damage"] == 0


def test_changed_generation_which_no_crc_covers_is_found_by_the_seal(data):
    path = segments(data)[0]
    flip(path, 15)
    assert kinds(data) == [("heads", path.name)]


def test_cut_tail_is_found(data):
    path = segments(data)[-1]
    os.truncate(path, path.stat().st_size - 5)
    assert ("data", path.name) in kinds(data)


def test_what_is_left_of_a_cut_tail_counts_as_intact(data):
    path = segments(data)[-1]
    at = batch_positions(path)
    os.truncate(path, at[4] + 5)
    report = whole_report(data)
    found = [(found["position"], found["end"]) for found in report["findings"] if found["kind"] != "index"]
    assert found == [(at[4], at[4] + 5)]
    assert report["end_offset"] == int(path.stem) + 4


def test_missing_segment_is_found(data):
    segments(data)[1].unlink()
    assert ("data", segments(data)[0].name) in kinds(data)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_index_is_found(data, suffix):
    path = segments(data)[1].with_suffix(suffix)
    path.unlink()
    assert kinds(data) == [("index", path.name)]


@pytest.mark.parametrize(
    ("suffix", "position"), [(".index", 3), (".index", 7), (".timeindex", 7), (".timeindex", 11)]
)
def test_index_that_disagrees_with_the_log_is_found(data, suffix, position):
    path = segments(data)[1].with_suffix(suffix)
    flip(path, position)
    assert kinds(data) == [("index", path.name)]


def test_gap_is_damage_unless_the_topic_was_compacted(tmp_path):
    folder = tmp_path / "demo-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(bytes(batch_at(0) + batch_at(5)))
    assert "4 offsets are missing" in findings(tmp_path)[0]["problem"]
    assert findings(tmp_path, "--gaps-allowed") == []


def test_a_gap_is_none_where_a_topic_came_out_of_branches(tmp_path):
    folder = tmp_path / "demo-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(bytes(batch_at(0) + batch_at(5)))
    (tmp_path / LOCK_NAME).touch()
    table = MetadataTable()
    table.apply(topic_entry(Topic("demo", UUID(int=1), 1, {}, (Placement((BrokerId(1),)),))), 1)
    row = table.snapshot()
    for left, count in ((NO_MOVE, 1), (7, 0)):
        row["topics"][0]["places"][0][-1] = left
        write_checkpoint(RealFiles(), f"{tmp_path}/metadata-snapshot", {"table": row, "offset": 2})
        assert len(findings(tmp_path)) == count


def compacted(tmp_path, *batches):
    """A partition of a compacted topic with these batches in one segment, and where each of them begins."""
    folder = tmp_path / "demo-0"
    folder.mkdir()
    path = folder / f"{0:020d}.log"
    path.write_bytes(b"".join(map(bytes, batches)))
    return path, [sum(map(len, batches[:number])) for number in range(len(batches) + 1)]


def thinned(*offsets):
    """A batch of which the cleaner has left these records."""
    builder = BatchBuilder(base_offset=offsets[0])
    for offset in offsets:
        builder.add(b"key", b"value", timestamp_ms=1_700_000_000_000, offset=offset)
    return builder.build()


def counts(tmp_path):
    """Damaged records by `verify` and by `repair`."""
    (report,) = json.loads(run("verify", tmp_path, "--gaps-allowed", "--format", "json").stdout)
    planned = run("repair", tmp_path, "--gaps-allowed", "--dry-run", "--format", "json")
    steps = json.loads(planned.stdout)["steps"]
    return report["damaged_records"], sum(step["damaged_records"] for step in steps)


def test_offsets_that_compaction_left_empty_are_not_counted_as_damaged_records(tmp_path):
    path, at = compacted(
        tmp_path, batch_at(0), thinned(10, 14, 19), batch_at(500), batch_at(1_000_000), batch_at(1_000_001)
    )
    flip(path, at[1] + 70)
    assert counts(tmp_path) == (3, 3)
    flip(path, at[2] + 70)
    assert counts(tmp_path) == (4, 4)


def test_offsets_between_a_damaged_batch_and_the_next_segment_are_not_counted_either(tmp_path):
    path, at = compacted(tmp_path, batch_at(0), thinned(10, 14, 19))
    path.with_name(f"{1_000_000:020d}.log").write_bytes(batch_at(1_000_000))
    flip(path, at[1] + 70)
    assert counts(tmp_path) == (3, 3)


@pytest.mark.parametrize(
    ("position", "records"), [(9, 3), (16, 1), (57, 1)], ids=["its length", "its magic", "its record count"]
)
def test_damaged_head_is_believed_where_it_can_be_and_else_counts_as_one_record(tmp_path, position, records):
    path, at = compacted(tmp_path, batch_at(0), thinned(10, 14, 19), batch_at(1_000_000))
    flip(path, at[1] + position)
    assert counts(tmp_path) == (records, records)


def test_offsets_that_no_damaged_batch_had_are_missing(tmp_path):
    """The finding names --gaps-allowed, for a folder that does not tell whether it was compacted."""
    path, at = compacted(tmp_path, batch_at(0), batch_at(1), batch_at(1_000))
    flip(path, at[1] + 70)
    found = findings(tmp_path)
    assert [each["damaged_records"] for each in found] == [1, 0]
    assert "998 offsets are missing" in found[1]["problem"]
    assert len(findings(tmp_path, "--gaps-allowed")) == 1


def test_damaged_record_count_is_not_believed_in_a_log_without_gaps(tmp_path):
    path, at = compacted(tmp_path, batch_at(0), thinned(1, 2, 3), batch_at(4))
    flip(path, at[1] + 60)  # 2 instead of 3.
    (found,) = findings(tmp_path)
    assert found["damaged_records"] == 3


# --- dump --------------------------------------------------------------------------------------------------


def test_dump_shows_every_batch_in_order(data):
    lines = [json.loads(line) for line in run("dump", data, "--format", "ndjson").stdout.splitlines()]
    assert [line["base_offset"] for line in lines] == list(range(BATCHES))
    assert all(line["crc_holds"] and line["records"] == 1 for line in lines)


def test_dump_begins_and_ends_where_it_is_told(data):
    result = run("dump", data, "--from", 17, "--max", 2, "--format", "json")
    assert [batch["base_offset"] for batch in json.loads(result.stdout)] == [17, 18]


def test_dump_shows_records(data):
    (batch,) = json.loads(run("dump", data, "--from", 3, "--max", 1, "--records", "--format", "json").stdout)
    assert batch["records"] == [
        {"offset": 3, "timestamp": 1_700_000_000_003, "key": "key", "value": "value 3", "headers": []}
    ]
    assert "3 1700000000003\tkey\tvalue 3\n" in run("dump", data, "--records").stdout


def test_dump_reads_one_file(data):
    result = run("dump", segments(data)[1], "--format", "ndjson")
    assert json.loads(result.stdout.splitlines()[0])["base_offset"] == int(segments(data)[1].stem)


def test_dump_of_nothing_is_an_empty_array(data):
    assert json.loads(run("dump", data, "--from", 10_000, "--format", "json").stdout) == []


def test_dump_marks_a_batch_whose_checksum_does_not_hold_and_shows_none_of_its_records(data):
    flip(segments(data)[0], 70)
    first = run("dump", data, "--records", "--max", 1).stdout
    assert "CRC-DOES-NOT-HOLD" in first
    assert first.count("\n") == 1


# --- repair ------------------------------------------------------------------------------------------------


def damage(data):
    path = segments(data)[2]
    flip(path, path.stat().st_size - 3)
    return path


def content(data):
    return {path.name: path.read_bytes() for path in (data / "demo-0").iterdir() if path.is_file()}


def test_dry_run_says_what_would_be_done_and_does_nothing(data):
    path = damage(data)
    before = content(data)
    result = run("repair", data, "--dry-run", "--format", "json")
    steps = json.loads(result.stdout)["steps"]
    assert steps[0]["file"] == path.name
    assert steps[0]["step"].startswith("cut ")
    assert [step["step"] for step in steps[1:4]] == ["move to quarantine/"] * 3
    assert content(data) == before
    later = int(segments(data)[3].stem)
    assert (steps[0]["damaged_records"], steps[0]["intact_records"]) == (1, 0)
    assert sum(step["intact_records"] for step in steps) == BATCHES - later


@pytest.mark.parametrize("position", [0, 9, 70], ids=["an offset", "a length", "a record"])
def test_dry_run_counts_the_intact_records_behind_the_damage(data, position):
    path = segments(data)[2]
    flip(path, position)
    steps = json.loads(run("repair", data, "--dry-run", "--format", "json").stdout)["steps"]
    assert sum(step["damaged_records"] for step in steps) == 1
    assert sum(step["intact_records"] for step in steps) == BATCHES - int(path.stem) - 1
    said = run("repair", data, "--dry-run").stdout
    assert f"1 damaged and {BATCHES - int(path.stem) - 1} intact records would leave the log" in said


def test_repair_keeps_a_copy_of_a_damaged_last_batch(data):
    path = segments(data)[-1]
    whole = path.read_bytes()
    flip(path, len(whole) - 3)
    bad = path.read_bytes()
    steps = json.loads(run("repair", data, "--yes", "--format", "json").stdout)["steps"]
    assert (steps[0]["damaged_records"], steps[0]["intact_records"]) == (1, 0)
    cut = path.read_bytes()
    (kept,) = (data / "demo-0" / "quarantine").glob(f"{path.name}*")
    assert cut + kept.read_bytes() == bad
    assert findings(data) == []


def test_repair_does_not_vouch_for_a_changed_head_that_it_leaves(data):
    path = segments(data)[-1]
    flip(path, 15)
    for _ in range(2):
        run("repair", data, "--yes")
        assert kinds(data) == [("heads", path.name)]
    log = Log.open(RealFiles(), str(path.parent), LogConfig(), clean=True)
    with pytest.raises(CorruptDataError):
        log.slice(int(path.stem), 1, log.end_offset).read()
    log.close()


def test_repair_needs_a_yes(data):
    damage(data)
    before = content(data)
    result = run("repair", data)
    assert result.exit_code == 2
    assert content(data) == before


def test_repair_keeps_everything_before_the_damage_and_deletes_nothing_after_it(data):
    path = damage(data)
    later = {one.name for one in segments(data)[3:]}
    result = run("repair", data, "--yes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert findings(data) == []
    kept = [
        json.loads(line)["base_offset"]
        for line in run("dump", data, "--format", "ndjson").stdout.splitlines()
    ]
    assert kept == list(range(len(kept)))
    assert len(kept) > int(path.stem)
    assert later <= {one.name for one in (data / "demo-0" / "quarantine").iterdir()}


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".seal"])
def test_repair_makes_derived_files_anew_without_touching_records(data, suffix):
    path = segments(data)[1].with_suffix(suffix)
    records = {one.name: one.read_bytes() for one in segments(data)}
    flip(path, 7)
    assert kinds(data) == [("index", path.name)]
    assert run("repair", data, "--yes").exit_code == 0
    assert findings(data) == []
    assert {one.name: one.read_bytes() for one in segments(data)} == records


def test_repair_of_an_intact_folder_changes_nothing(data):
    before = content(data)
    result = run("repair", data, "--yes")
    assert "Nothing is damaged." in result.stdout
    assert content(data) == before


def batches_of(data):
    """The bytes of each batch as the fixture wrote it, by its file and position."""
    found = {}
    for path in segments(data):
        whole, starts = path.read_bytes(), batch_positions(path)
        ends = [*starts[1:], len(whole)]
        found |= {(path.name, at): whole[at:end] for at, end in zip(starts, ends, strict=True)}
    return found


def intact_of(data, written):
    """Which of these batches are still where they were; each has one record."""
    found = {path.name: path.read_bytes() for path in (data / "demo-0").glob("*.log")}
    return {
        (name, position)
        for (name, position), whole in written.items()
        if found.get(name, b"")[position : position + len(whole)] == whole
    }


def spoil(data, rng, written):
    """Damage one place, as a disk, a crash or a person might."""
    path = rng.choice(segments(data))
    whole = path.read_bytes()
    at = rng.choice([position for name, position in written if name == path.name])
    kind = rng.choice(["record", "head", "garbage", "zeros behind", "cut", "zeros", "sidecar", "segment"])
    if kind in ("record", "head"):
        changed = at + (rng.randrange(17) if kind == "head" else rng.randrange(17, 80))
        if changed < len(whole):
            flipped = whole[changed] ^ 1 << rng.randrange(8)
            path.write_bytes(whole[:changed] + bytes([flipped]) + whole[changed + 1 :])
    elif kind in ("garbage", "zeros behind"):
        size = rng.choice([1, 7, 12, 61, 300])
        path.write_bytes(whole + (rng.randbytes(size) if kind == "garbage" else bytes(size)))
    elif kind == "cut":
        os.truncate(path, rng.randrange(len(whole) + 1))
    elif kind == "zeros":
        size = min(rng.choice([5, 100, 400]), max(0, len(whole) - at))
        path.write_bytes(whole[:at] + bytes(size) + whole[at + size :])
    elif kind == "sidecar":
        path.with_suffix(rng.choice([".seal", ".index", ".timeindex"])).unlink(missing_ok=True)
    elif path != segments(data)[0]:
        path.unlink()
    return kind


@pytest.mark.parametrize("seed", range(60))
def test_repair_of_any_damage_does_what_its_plan_says_and_no_more(data, seed):
    rng, written = Random(seed), batches_of(data)
    kinds_of = [spoil(data, rng, written) for _ in range(rng.choice([1, 1, 2, 3]))]
    before = {path.name: path.stat().st_size for path in segments(data)}
    intact = intact_of(data, written)
    planned = json.loads(run("repair", data, "--dry-run", "--format", "json").stdout)
    assert {path.name: path.stat().st_size for path in segments(data)} == before
    result = run("repair", data, "--yes", "--format", "json")
    done = json.loads(result.stdout)
    assert (done["steps"], done["left"]) == (planned["steps"], planned["left"])
    assert result.exit_code == (1 if planned["left"] else 0)
    assert bool(findings(data)) is bool(planned["left"])

    moved = {step["file"] for step in done["steps"] if step["step"].startswith("move")}
    cuts = {step["file"]: step["step"].split() for step in done["steps"] if step["step"].startswith("cut")}
    after = {path.name: path.stat().st_size for path in (data / "demo-0").glob("*.log")}
    assert {name for name in before.keys() - after.keys() if before[name]} == moved
    assert {name: size for name, size in after.items() if size != before[name]} == {
        name: int(words[4].rstrip(",")) for name, words in cuts.items()
    }
    assert all(before[name] - after[name] == int(words[1]) for name, words in cuts.items())
    for name in before:
        gone = sum(file == name for file, _ in intact - intact_of(data, written))
        counted = [step for step in done["steps"] if step["file"] == name]
        assert gone <= sum(step["intact_records"] + step["damaged_records"] for step in counted)
        if not {"head", "sidecar", "zeros"} & set(kinds_of):
            assert gone == sum(step["intact_records"] for step in counted)

    again = json.loads(run("repair", data, "--yes", "--format", "json").stdout)
    assert all(step["step"].startswith("leave") for step in again["steps"])
    assert intact_of(data, written) >= intact - {
        place for place in intact if place[0] in moved or place[0] in cuts
    }


def test_repair_cuts_a_batch_that_reaches_into_the_next_segment(data):
    """One batch per segment: only the next segment's base tells that its offsets were changed."""
    for is_sealed in (True, False):
        folder = data / f"wide-{int(is_sealed)}"
        log = Log.open(RealFiles(), str(folder), LogConfig(segment_bytes=500), clean=False)
        for base in range(0, 128, 16):
            builder = BatchBuilder(base_offset=base)
            for offset in range(base, base + 16):
                builder.add(b"key", b"%0100d" % offset, timestamp_ms=1_700_000_000_000 + offset)
            log.append([(builder.build(), base, base + 15, 1_700_000_000_015 + base)], 1_700_000_000_000)
        log.close(clean=True)
        path = folder / f"{64:020d}.log"
        flip(path, 7)
        if not is_sealed:
            path.with_suffix(".seal").unlink()
        result = run("repair", folder, "--yes", "--format", "json")
        steps = json.loads(result.stdout)["steps"]
        assert result.exit_code == 0
        assert [
            (step["step"].split()[0], step["damaged_records"], step["intact_records"]) for step in steps
        ] == [
            ("cut", 16, 0),
            *[("move", 0, 16)] * 3,
        ]
        assert path.stat().st_size == 0
        (report,) = json.loads(run("verify", folder, "--format", "json").stdout)
        assert (report["intact"], report["end_offset"]) == (True, 64)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_garbage_behind_the_last_batch_of_a_middle_segment_costs_no_record(data, is_sealed):
    path = segments(data)[2]
    written = batches_of(data)
    if not is_sealed:
        path.with_suffix(".seal").unlink()
    path.write_bytes(path.read_bytes() + b"garbage")
    assert whole_report(data)["damaged_records"] == 0
    dry = run("repair", data, "--dry-run").stdout
    assert "cut 7 bytes at" in dry
    assert "quarantine/." not in dry
    (step,) = json.loads(run("repair", data, "--yes", "--format", "json").stdout)["steps"]
    assert (step["file"], step["damaged_records"], step["intact_records"]) == (path.name, 0, 0)
    assert findings(data) == []
    assert intact_of(data, written) == set(written)


@pytest.mark.parametrize("rest", [bytes(100), b"garbage", b"no batch" * 20])
def test_what_never_was_a_record_at_the_end_of_a_log_is_not_counted_as_one(data, rest):
    path = segments(data)[-1]
    path.write_bytes(path.read_bytes() + rest)
    report = whole_report(data)
    assert (report["damaged_records"], report["end_offset"]) == (0, BATCHES)
    said = run("repair", data, "--yes").stdout
    assert f"cut {len(rest)} bytes at" in said
    assert "leave" not in said
    assert findings(data) == []


def test_batch_that_was_cut_short_behind_the_last_stop_counts_as_a_record(data):
    path = segments(data)[-1]
    for size in (20, 70):
        whole = path.read_bytes()
        path.write_bytes(whole + batch_at(BATCHES)[:size])
        assert whole_report(data)["damaged_records"] == 1
        path.write_bytes(whole)


def test_gap_is_left_by_a_repair_which_says_so(data):
    path = segments(data)[-1]
    path.with_suffix(".seal").unlink()
    path.write_bytes(batch_at(int(path.stem) + 1))
    for _ in range(2):
        result = run("repair", data, "--yes")
        assert result.exit_code == 1
        assert "leave, the gap stays" in result.stdout
        assert "keep a copy" not in result.stdout
        assert "1 offset is missing" in result.stdout
        assert "readers pass over the missing offsets" in result.stderr


def test_one_damaged_record_leaves_the_log(data):
    path = segments(data)[-1]
    flip(path, path.stat().st_size - 3)
    assert "\n1 damaged record leaves the log for quarantine/." in run("repair", data, "--yes").stdout


@pytest.mark.parametrize("byte", [6, 15], ids=["offset", "generation"])
def test_repair_does_not_vouch_for_a_changed_head_before_the_place_where_it_cuts(data, byte):
    """The sum that tells it covers what is cut too."""
    path = segments(data)[-1]
    at = batch_positions(path)
    flip(path, at[1] + byte)
    flip(path, at[2] + 70)
    done = json.loads(run("repair", data, "--yes", "--format", "json").stdout)
    (cut,) = [step for step in done["steps"] if step["step"].startswith("cut ")]
    assert f"at {at[1]}," in cut["step"]
    assert (cut["damaged_records"], cut["intact_records"]) == (2, len(at) - 3)
    assert (findings(data), whole_report(data)["end_offset"]) == ([], int(path.stem) + 1)


# --- the folder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["verify", "dump", "repair"])
def test_folder_of_a_running_node_is_refused(data, name):
    with open(data / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run(name, data / "demo-0")
    assert result.exit_code == 1
    assert "is in use" in result.stderr


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "mount it read-write, or copy the folder elsewhere and check the copy."),
        (errno.EACCES, "run this as the owner of the folder, or change its owner."),
        (errno.ENOSPC, "make room on the disk."),
        (errno.EIO, "check the disk."),
    ],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_advice_about_a_lock_follows_from_the_error(data, monkeypatch, number, advice, is_named):
    """A write to the lock file fails without its name."""
    lock, why = str(data / LOCK_NAME), os.strerror(number)

    def refuse(files, path):
        raise OSError(number, why, path) if is_named else OSError(number, why)

    monkeypatch.setattr(RealFiles, "lock", refuse)
    result = run("verify", data)
    assert (result.exit_code, result.stderr) == (1, f"Error: {lock} cannot be locked ({why}): {advice}\n")


@pytest.mark.parametrize("name", ["verify", "dump", "repair"])
def test_place_without_partitions_is_refused(tmp_path, name):
    assert "holds no partition" in run(name, tmp_path).stderr
    assert "There is nothing at" in run(name, tmp_path / "none").stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_partition_is_refused_with_how_they_are_named(data):
    assert (
        "holds no partition demo-7; it does hold demo-0, for example"
        in run("verify", data, "--partition", "demo-7").stderr
    )


def test_lanes_of_a_branch_are_checked_one_by_one_and_may_have_gaps(data):
    for lane, offsets in ((0, (0, 1)), (1024, (1024 << 32, (1024 << 32) + 5))):
        folder = data / "split-0" / f"lane-{lane:010d}"
        folder.mkdir(parents=True)
        log = Log.open(RealFiles(), str(folder), LogConfig(), clean=False, start_offset=lane << 32)
        for offset in offsets:
            log.append([(batch_at(offset), offset, offset, 1_700_000_000_000)], 1_700_000_000_000)
        log.close(clean=True)
    answer = run("verify", data, "--partition", "split-0", "--format", "json")
    assert answer.exit_code == 0, answer.output
    lanes = [report["partition"] for report in json.loads(answer.stdout)]
    assert lanes == ["split-0/lane-0000000000", "split-0/lane-0000001024"]
    only = run("dump", data, "--partition", "split-0/lane-0000001024", "--format", "json")
    assert [batch["base_offset"] for batch in json.loads(only.stdout)] == [1024 << 32, (1024 << 32) + 5]
    assert run("verify", data).exit_code == 0


def test_gaps_between_lanes_are_no_damage_and_a_missing_file_between_them_is(tmp_path):
    folder = tmp_path / "left-0"
    folder.mkdir()
    log = Log.open(RealFiles(), str(folder), LogConfig(), clean=False)
    for offset in (0, 1, 5 << 32, (5 << 32) + 4, 9 << 32):
        log.append([(batch_at(offset), offset, offset, 1_700_000_000_000 + offset)], 1_700_000_000_000)
    log.close(clean=True)
    result = run("verify", tmp_path, "--format", "json")
    (report,) = json.loads(result.stdout)
    assert (report["findings"], report["missing_offsets"], report["segments"]) == ([], 3, 3)
    (folder / f"{5 << 32:020d}.log").unlink()
    assert "is missing" in " ".join(found["problem"] for found in findings(tmp_path))


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_links_in_a_folder_are_refused_and_not_followed(tmp_path, command):
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    folder = tmp_path / "data" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"")
    (folder / f"{0:020d}.timeindex").symlink_to(outside)
    result = run(command, tmp_path / "data")
    assert result.exit_code == 1
    assert ".timeindex is a symbolic link" in result.output
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".index", "index"), (".timeindex", "index"), (".seal", "index"), (".log", "data")]
)
def test_folder_with_the_name_of_a_file_is_a_problem_with_that_name(data, suffix, kind):
    path = segments(data)[1].with_suffix(suffix)
    path.unlink()
    path.mkdir()
    (found, *_) = findings(data)
    assert (found["kind"], found["file"], found["problem"]) == (
        kind,
        path.name,
        "cannot be read: Is a directory",
    )
    text = run("repair", data, "--yes").output
    assert (
        "Some damage cannot be repaired" if kind == "index" else "cannot be opened: Is a directory"
    ) in text


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_named_pipes_in_a_folder_are_refused_and_not_waited_for(data, command):
    path = segments(data)[1].with_suffix(".index")
    path.unlink()
    os.mkfifo(path)
    result = run(command, data)
    assert result.exit_code == 1
    assert ".index is a named pipe" in result.output


@pytest.mark.parametrize("command", ["verify", "dump", "repair"])
@pytest.mark.parametrize("below", ["", "t-0"])
@pytest.mark.parametrize("is_dangling", [False, True])
def test_lock_that_is_a_link_is_refused_by_its_own_name(tmp_path, command, below, is_dangling):
    outside = tmp_path / "outside"
    if not is_dangling:
        outside.write_bytes(b"precious")
    (tmp_path / "data" / "t-0").mkdir(parents=True)
    (tmp_path / "data" / "t-0" / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / "data" / ".lock").symlink_to(outside)
    result = run(command, tmp_path / "data" / below)
    assert result.exit_code == 1
    assert "/data/.lock is a symbolic link" in result.output
    assert outside.exists() != is_dangling
    assert is_dangling or outside.read_bytes() == b"precious"


def test_segment_without_records_before_a_gap_needs_no_index(tmp_path):
    """What is left of a topic that was in the object store, then in branches, and is in neither now."""
    folder = tmp_path / "left-0"
    folder.mkdir()
    first = 5 << 32
    log = Log.open(RealFiles(), str(folder), LogConfig(), clean=False, start_offset=first)
    log.append([(batch_at(first), first, first, 1_700_000_000_000)], 1_700_000_000_000)
    log.close(clean=True)
    begin_with_gap(RealFiles(), str(folder), 40, first)
    assert findings(tmp_path) == []


def test_copy_of_the_beginning_of_a_log_behind_a_segment_counts_nothing_twice(data):
    path = segments(data)[0]
    whole, size = path.read_bytes(), batch_positions(path)[2]
    path.write_bytes(whole + whole[:size])
    report = whole_report(data)
    assert (report["batches"], report["missing_offsets"]) == (BATCHES, 0)
    assert report["intact_behind_damage"] == BATCHES - int(segments(data)[1].stem)
    (cut,) = json.loads(run("repair", data, "--dry-run", "--format", "json").stdout)["steps"]
    assert (cut["damaged_records"], cut["intact_records"]) == (0, 0)


@pytest.mark.parametrize("loss", ["segment", "batch"])
def test_end_of_a_log_that_a_seal_misses_is_found(data, loss):
    *_, before, last = segments(data)
    if loss == "batch":
        os.truncate(last, batch_positions(last)[-1])
        for suffix in (".index", ".timeindex"):
            last.with_suffix(suffix).unlink(missing_ok=True)
        before = last
    else:
        last.unlink()
    assert kinds(data) == [("data", before.name)]
    steps = json.loads(run("repair", data, "--yes", "--format", "json").stdout)["steps"]
    assert [(step["step"], step["file"]) for step in steps] == [("end the log after it", before.name)]
    assert findings(data) == []


def test_folder_without_any_segment_is_found_and_left_alone(data):
    for path in segments(data):
        path.unlink()
    assert [finding["problem"] for finding in findings(data)] == ["every .log file is missing"]
    left = content(data)
    result = run("repair", data, "--yes")
    assert (result.exit_code, content(data)) == (1, left)
