"""A log in a file: the same bytes for the same events, and a damaged file read up to its fault."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
import zstandard

from aibs.errors import ConfigurationError
from aibs.eventstore.events import Event
from aibs.replay.archive import ArchiveReader, ArchiveWriter
from aibs.replay.compression import CHUNK_BYTES
from aibs.replay.entries import Damaged, Oversized, as_line, at_ms_of, read_entry, read_line
from tests.incident_log import PATH, header, items, write

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("log.ndjson", "log.ndjson.gz", "log.ndjson.zst")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_again_and_written_again_to_the_same_bytes(
    tmp_path: Path, name: str
) -> None:
    first = write(tmp_path / name, items())
    reader = ArchiveReader(first)
    found = list(reader.items())
    assert found == items()
    assert reader.fault is None
    (tmp_path / "other").mkdir()
    second = write(tmp_path / "other" / name, found)
    assert first.read_bytes() == second.read_bytes()


def test_the_recorded_file_is_what_this_release_writes(tmp_path: Path) -> None:
    assert write(tmp_path / "again.gz", items()).read_bytes() == PATH.read_bytes()


def test_the_usual_tools_read_the_files(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.ndjson", items()).read_bytes()
    packed = write(tmp_path / "a.gz", items()).read_bytes()
    assert gzip.decompress(packed) == plain
    packed = write(tmp_path / "a.zst", items()).read_bytes()
    stream = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    assert stream.read() == plain
    assert [json.loads(line)["seq"] for line in plain.splitlines()[1:]] == list(range(1, 32))


def test_a_line_is_the_event_as_the_contract_prints_it() -> None:
    for event in items():
        assert json.loads(as_line(event)) == event.as_document()
        assert read_line(as_line(event), 1) == event


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9, 0.999])
def test_a_file_that_was_cut_is_read_up_to_the_cut_and_says_where(
    tmp_path: Path, name: str, part: float
) -> None:
    many = [event for _ in range(40) for event in items()]
    path = write(tmp_path / name, many)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    reader = ArchiveReader(path)
    found = list(reader.items())
    assert found == many[: len(found)]
    if len(found) < len(many):
        assert reader.fault is not None
        assert str(path) in str(reader.fault)
        assert f"after line {len(found) + 1} " in str(reader.fault)
        if found:
            assert reader.fault.after_id == many[len(found) - 1].id
    else:
        assert name.endswith("zst"), "only a zstd file has bytes behind its last line"


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_bit_that_flipped_in_a_packed_file_is_told(tmp_path: Path, name: str) -> None:
    many = [event for _ in range(2000) for event in items()]
    path = write(tmp_path / name, many)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    reader = ArchiveReader(path)
    assert len(list(reader.items())) < len(many)
    assert reader.fault is not None
    assert "damaged" in str(reader.fault)


def test_whole_lines_that_are_missing_at_the_end_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "log.ndjson", items())
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    reader = ArchiveReader(path)
    assert len(list(reader.items())) == 29
    assert "2 of 31 events are missing" in str(reader.fault)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has no header"),
        (b"{}", "before its header"),
        (b"hello\n", "is not an exported log"),
        (b"[1]\n", "is not an exported log"),
        (b'{"schema":"aibs.log/2"}\n', "a later release"),
        (b'{"schema":"aibs.log/1"}\n', "cannot be read: pool_id"),
        (b"\xff\xfe\n", "is not an exported log"),
    ],
)
def test_what_is_no_log_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "log.ndjson"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        ArchiveReader(path)
    assert "\n" not in str(refused.value)


def test_a_name_that_lies_about_its_packing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson.gz"
    path.write_bytes(gzip.decompress(PATH.read_bytes()))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ArchiveReader(path)


def test_a_writing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "log.gz", items())
    before = path.read_bytes()

    def fail() -> None:
        with ArchiveWriter(path) as writer:
            writer.add(items()[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "log.gz"):
        with pytest.raises(ConfigurationError), ArchiveWriter(path):
            pass


def test_damaged_lines_are_named_and_do_not_end_the_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "log.ndjson", items())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"id":"7-7","seq":3,\n'
    lines[4] = b"\xff\xfe\xfd\n"
    lines[5] = json.dumps({"id": "8-8"}).encode() + b"\n"
    lines[6] = lines[6].replace(b'"seq":6', b'"seq":"6"')
    lines[7] = b"[]\n"
    lines[8] = lines[8].replace(b'"at":"2026', b'"at":"x026')
    path.write_bytes(b"".join(lines))
    reader = ArchiveReader(path)
    found = list(reader.items())
    damaged = [item for item in found if isinstance(item, Damaged)]
    assert [item.id for item in damaged] == ["7-7", None, "8-8", items()[5].id, None, items()[7].id]
    assert "has no field fence" in damaged[2].why
    assert "line 5" in damaged[1].why
    assert len(found) == 31
    assert reader.fault is None


def test_a_damaged_entry_keeps_its_bytes_through_a_file(tmp_path: Path) -> None:
    entry = read_entry(b"9-9", {b"type": b"\xff\x00", b"seq": b"1"})
    assert isinstance(entry, Damaged)
    path = write(tmp_path / "log.gz", [*items(), entry])
    last = list(ArchiveReader(path).items())[-1]
    assert last == entry
    assert as_line(last) == as_line(entry)


def test_a_field_of_ten_megabytes_is_read_and_marked(tmp_path: Path) -> None:
    fields = {
        b"type": b"LeaseDenied",
        b"v": b"1",
        b"seq": b"1",
        b"at_ms": b"1",
        b"actor": b"a" * 10_000_000,
        b"fence": b"",
        b"token": b"",
        b"data": b"{}",
    }
    item = read_entry(b"1-1", fields)
    assert isinstance(item, Oversized)
    assert len(as_line(item)) > 30 * CHUNK_BYTES
    path = write(tmp_path / "log.zst", [*items(), item, *items()])
    assert list(ArchiveReader(path).items())[31] == item


@pytest.mark.parametrize("at_ms", [-1, 10**18])
def test_a_time_that_no_calendar_has_is_damage_and_no_crash(at_ms: int) -> None:
    fields = {b"type": b"X", b"v": b"1", b"seq": b"1", b"at_ms": str(at_ms).encode(),
              b"actor": b"", b"fence": b"", b"token": b"", b"data": b"{}"}  # fmt: skip
    item = read_entry(b"1-1", fields)
    assert isinstance(item, Damaged)
    assert "at_ms" in item.why


def test_times_are_read_to_the_millisecond_wherever_they_stand_in_their_minute() -> None:
    for at_ms in (0, 59_999, 1_796_207_899_672, 1_796_207_940_000, 253_402_300_799_999):
        event = Event("1-1", 1, at_ms, "X", 1, "", None, None, {})
        assert at_ms_of(event.as_document()["at"]) == at_ms


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-02T10:38:20",
        "2026-12-02T10:38:20.878+00:00",
        "",
        "x" * 24,
        "2026-12-02T10:38:2x.878Z",
    ],
)
def test_what_is_no_time_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        at_ms_of(text)


def test_the_header_says_what_reading_elsewhere_needs() -> None:
    found = header()
    assert (found.namespace, found.count, found.snapshot) == ("fleet", 31, None)
    assert found.fleet is not None
    assert found.timing.heartbeat_ms == 1000
