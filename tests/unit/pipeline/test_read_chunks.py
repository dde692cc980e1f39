"""Walks over batches, and segment files read with and without their index."""

import os
from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from anabranch.errors import CorruptDataError, SegmentChangedError
from anabranch.pipeline.source.chunks import Chunk, headers_of, offset_after, survey
from anabranch.pipeline.source.plan import SegmentFile
from anabranch.pipeline.source.segment_files import SegmentReader, sealed_files, why_unreachable
from anabranch.record.batch import read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.crc32c import crc32c
from anabranch.record.index_format import OFFSET_ENTRY
from anabranch.record.seal_format import SealFields, pack_seal
from anabranch.values import Offset


def batch_at(offset: int, count: int, value: bytes = b"v", **fields: object) -> bytes:
    builder = BatchBuilder(base_offset=offset, **fields)  # type: ignore[arg-type]
    for _ in range(count):
        builder.add(b"k", value, timestamp_ms=1)
    return bytes(builder.build())


def test_a_survey_stops_before_a_torn_batch_and_says_what_is_missing() -> None:
    whole = batch_at(0, 3) + batch_at(3, 2)
    torn = batch_at(5, 1)
    found = survey(memoryview(whole + torn[:-7]))
    assert (found.whole_bytes, found.next_offset, found.bytes_missing) == (len(whole), 5, 7)


def test_a_survey_of_bytes_that_are_no_batch_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="offset 2"):
        survey(memoryview(batch_at(0, 3) + bytes(100)))


def test_a_survey_stops_before_a_transaction_where_told_to() -> None:
    plain = batch_at(0, 3)
    data = memoryview(
        plain + batch_at(3, 1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    )
    assert survey(data).next_offset == 4
    found = survey(data, stop_at_transactions=True)
    assert (found.whole_bytes, found.is_transactional) == (len(plain), True)


def test_records_are_counted_out_by_headers() -> None:
    headers = [read_header(batch_at(offset, 10)) for offset in (0, 50, 100)]
    assert offset_after(headers, 0, 200, 10) == 10
    assert offset_after(headers, 0, 200, 20) == 60
    assert offset_after(headers, 0, 200, 25) == 105
    assert offset_after(headers, 0, 200, 99) == 200
    assert offset_after(headers, 0, 55, 99) == 55
    assert offset_after(headers, 55, 200, 5) == 60


def test_counting_out_gives_at_least_one_offset() -> None:
    assert offset_after([read_header(batch_at(7, 10))], 9, 200, 1) == 10


def test_headers_of_chunks_come_in_order() -> None:
    chunk = Chunk(memoryview(batch_at(0, 1) + batch_at(4, 2)), 0, 9)
    assert [header.base_offset for header in headers_of([chunk, chunk])] == [0, 4, 0, 4]


# --- files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of three segments; the first two are sealed, and the first has an index."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    entries, position = b"", 0
    for offset in range(0, 100, 10):
        batch = batch_at(offset, 10)
        with (partition / f"{0:020d}.log").open("ab") as log:
            log.write(batch)
        entries += OFFSET_ENTRY.pack(offset + 9, position)
        position += len(batch)
    (partition / f"{0:020d}.index").write_bytes(entries)
    (partition / f"{100:020d}.log").write_bytes(batch_at(100, 10))
    (partition / f"{110:020d}.log").write_bytes(batch_at(110, 10))
    (partition / f"{200:020d}.log.swap").write_bytes(b"")
    return tmp_path


def offsets_read(file: SegmentFile, start: int, end: int) -> list[int]:
    chunks = SegmentReader(file, start, end).chunks()
    return [header.base_offset for header in headers_of(chunks)]


def test_all_files_but_the_newest_are_sealed(folder: Path) -> None:
    files = sealed_files(str(folder), "t-0")
    assert [(file.base_offset, file.end_offset) for file in files] == [(0, 100), (100, 110)]


def test_an_index_spares_what_lies_before_the_start(folder: Path) -> None:
    file = sealed_files(str(folder), "t-0")[0]
    assert offsets_read(file, 0, 100) == list(range(0, 100, 10))
    assert offsets_read(file, 55, 100) == [40, 50, 60, 70, 80, 90]


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 16, b"\xff" * 80, b"abc"], ids=["empty", "zeros", "ones", "short"]
)
def test_a_wrong_index_costs_time_only(folder: Path, damage: bytes) -> None:
    (folder / "t-0" / f"{0:020d}.index").write_bytes(damage)
    file = sealed_files(str(folder), "t-0")[0]
    assert offsets_read(file, 55, 100)[-5:] == [50, 60, 70, 80, 90]


def test_a_batch_larger_than_a_read_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.pipeline.source.segment_files.CHUNK_BYTES", 100)
    (tmp_path / "t-0").mkdir()
    for offset, value in ((0, b"v" * 1000), (1, b""), (2, b"v" * 500), (3, b"")):
        with (tmp_path / "t-0" / f"{0:020d}.log").open("ab") as log:
            log.write(batch_at(offset, 1, value))
    (tmp_path / "t-0" / f"{4:020d}.log").touch()
    (file,) = sealed_files(str(tmp_path), "t-0")
    assert offsets_read(file, 0, 4) == [0, 1, 2, 3]


def test_a_file_is_read_up_to_the_first_transaction(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    transaction = batch_at(3, 2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(batch_at(0, 3) + transaction + batch_at(5, 1))
    (tmp_path / "t-0" / f"{6:020d}.log").touch()
    (file,) = sealed_files(str(tmp_path), "t-0")
    reader = SegmentReader(file, 0, 6)
    assert [header.base_offset for header in headers_of(reader.chunks())] == [0]
    assert reader.next_offset == 3


def test_a_file_that_ends_in_the_middle_of_a_batch_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(batch_at(0, 3) + batch_at(3, 2)[:-1])
    (tmp_path / "t-0" / f"{5:020d}.log").touch()
    (file,) = sealed_files(str(tmp_path), "t-0")
    with pytest.raises(CorruptDataError, match="ends in the middle of a batch"):
        offsets_read(file, 0, 5)


def test_a_folder_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert sealed_files(str(tmp_path), "t-0") == []


def test_a_replaced_file_is_noticed(folder: Path) -> None:
    file = sealed_files(str(folder), "t-0")[0]
    other = folder / "other"
    other.write_bytes(Path(file.path).read_bytes())
    os.replace(other, file.path)
    with pytest.raises(SegmentChangedError, match="is not the file it was"):
        offsets_read(file, 0, 100)


def test_a_removed_file_is_noticed(folder: Path) -> None:
    file = sealed_files(str(folder), "t-0")[0]
    os.unlink(file.path)
    with pytest.raises(SegmentChangedError, match="cannot be opened"):
        offsets_read(file, 0, 100)


def test_a_file_that_goes_away_while_it_is_read_is_read_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.pipeline.source.segment_files.CHUNK_BYTES", 200)
    file = sealed_files(str(folder), "t-0")[0]
    found = headers_of(SegmentReader(file, 0, 100).chunks())
    first = next(found).base_offset
    os.unlink(file.path)
    assert [first, *(header.base_offset for header in found)] == list(range(0, 100, 10))


def test_chunks_of_a_file_follow_one_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.pipeline.source.segment_files.CHUNK_BYTES", 200)
    file = sealed_files(str(folder), "t-0")[0]
    chunks = list(SegmentReader(file, 15, 100).chunks())
    assert len(chunks) > 2
    assert chunks[0].start == 15
    assert all(earlier.start <= later.start for earlier, later in pairwise(chunks))
    assert {chunk.end for chunk in chunks} == {100}


def test_a_folder_of_another_cluster_is_not_read(folder: Path) -> None:
    (folder / "node").write_text('anabranch 1 00000000\n{"cluster_id":"mine","broker_id":1}')
    assert why_unreachable(str(folder), "t-0", "mine") is None
    assert "belongs to another cluster, mine" in str(why_unreachable(str(folder), "t-0", "theirs"))
    assert "cannot be read here" in str(why_unreachable(str(folder), "t-1", "mine"))
    assert "cannot be read here" in str(why_unreachable("/nowhere", "t-0", "mine"))
    (folder / "node").write_text("garbled")
    assert "does not say whose folder" in str(why_unreachable(str(folder), "t-0", "mine"))


@pytest.mark.parametrize("sealed", [False, True], ids=["no seal", "a seal"])
def test_what_does_not_hold_is_left_to_the_broker(folder: Path, sealed: bool) -> None:
    """Also a changed offset or generation, if there is a seal: a batch's own checksum leaves them out."""
    path = folder / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    if sealed:
        heads = b"".join(whole[at : at + 17] for at in range(0, len(whole), len(whole) // 10))
        numbers = array("I", [0, len(whole), crc32c(heads)])
        path.with_suffix(".seal").write_bytes(
            pack_seal(SealFields(True, Offset(100), len(whole), 1, numbers))
        )
    assert offsets_read(sealed_files(str(folder), "t-0")[0], 0, 100) == list(range(0, 100, 10))
    for position in range(0, len(whole), 1 if sealed else 29):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        file = sealed_files(str(folder), "t-0")[0]
        if sealed or position % (len(whole) // 10) >= 17:
            with pytest.raises(SegmentChangedError, match="damaged"):
                offsets_read(file, 0, 100)
