"""Lines of a Wikidata dump by units: each line once, whatever the packing and the size of units; cut-off and damaged
files give what lies before the damage and name file and byte."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from data_tools.wikidata import dump
from data_tools.wikidata.dump import Unit, feed, identity, lines, packing_of, plan
from erica_dist.errors import DamagedInputError, UserError

Pack = Callable[[bytes], bytes]


def zst(data: bytes) -> bytes:
    """As the `zstd` command packs: with a checksum."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def cut_in(data: bytes, pack: Pack, size: int = 1500) -> bytes:
    """Streams, members or frames that end anywhere."""
    return b"".join(pack(data[start : start + size]) for start in range(0, len(data), size))


def skippable(data: bytes) -> bytes:
    """As `pzstd` packs: what is to be skipped before each frame."""
    return b"\x50\x2a\x4d\x18\4\0\0\0" + len(data).to_bytes(4, "little") + zst(data)


def bz2_1(data: bytes) -> bytes:
    return bz2.compress(data, 1)


PACKINGS: dict[str, Pack] = {
    "plain": lambda data: data,
    "bz2": bz2_1,
    "bz2 of many streams": lambda data: cut_in(data, bz2_1),
    "bz2 of tiny streams": lambda data: cut_in(data, bz2_1, 37),
    "gz": lambda data: gzip.compress(data, mtime=0),
    "gz of many members": lambda data: cut_in(data, lambda part: gzip.compress(part, mtime=0)) + b"\0" * 100,
    "zst": zst,
    "zst of many frames": lambda data: cut_in(data, zst),
    "zst of many frames, as pzstd writes": lambda data: cut_in(data, skippable),
}
IN_ORDER = [name for name in PACKINGS if name.startswith(("gz", "zst"))]
RANDOM = random.Random(5)
ENTITIES = [
    json.dumps({"id": f"Q{number}", "x": RANDOM.randbytes(RANDOM.choice([0, 1, 5, 30, 400])).hex()})
    for number in range(90)
]
FORMS = {
    "array": "[\n" + ",\n".join(ENTITIES) + "\n]\n",
    "array without final newline": "[\n" + ",\n".join(ENTITIES) + "\n]",
    "array with blank lines after it": "[\n" + ",\n".join(ENTITIES) + "\n]\n\n\r\n\n",
    "array with a byte-order mark and CRLF": "\ufeff[\r\n" + ",\r\n".join(ENTITIES) + "\r\n]\r\n",
    "lines": "\n".join(ENTITIES) + "\n",
    "lines without final newline": "\n".join(ENTITIES),
    "lines with a byte-order mark, CRLF and blank lines": "\ufeff" + "\r\n\r\n".join(ENTITIES) + "\r\n\n",
}


@pytest.fixture(autouse=True)
def bytes_for_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units and chunks of a few bytes."""
    monkeypatch.setattr(dump, "MB", 1)
    monkeypatch.setattr(dump, "BZ2_RATIO", 1)
    monkeypatch.setattr(dump, "_CHUNK", 700)
    monkeypatch.setattr(dump, "_PACKED_CHUNK", 300)
    monkeypatch.setattr(dump, "_GIVEN", 500)


def units_of(path: Path, size: int, done: set[int] | None = None) -> Iterator[Unit]:
    units = plan(path, size)
    if units is not None:
        yield from units
        return
    folder = path.parent / "pieces"
    folder.mkdir(exist_ok=True)
    for _, unit in feed(path, size, folder, done or set()):
        if unit is not None:
            yield unit


def read(path: Path, size: int) -> list[str]:
    return [line.content.decode() for unit in units_of(path, size) for line in lines(unit)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_units_together_give_each_line_once(tmp_path: Path, packing: str, form: str) -> None:
    path = tmp_path / "dump"
    path.write_bytes(PACKINGS[packing](FORMS[form].encode()))
    total = path.stat().st_size
    sizes = [1, 2, 3, 7, 64, 699, 700, 701, 5000, total - 1, total, 10**9]
    for size in [size for size in sizes if 100 * size > total or packing == "plain"]:
        assert read(path, size) == ENTITIES, size


def test_every_size_of_units(tmp_path: Path) -> None:
    """So that each byte of the file, line ends and the bracket too, begins a unit once."""
    few = ENTITIES[:6]
    for number, text in enumerate(["[\n" + ",\n".join(few) + "\n]\n", "\n".join(few) + "\n\n"]):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        for size in range(1, len(text) + 1):
            assert read(path, size) == few, (number, size)


def test_a_line_longer_than_units_and_chunks(tmp_path: Path) -> None:
    huge = [ENTITIES[0], json.dumps({"id": "Q1000", "x": "z" * 50_000}), ENTITIES[1]]
    for packing, pack in PACKINGS.items():
        path = tmp_path / packing
        path.write_bytes(pack(("[\n" + ",\n".join(huge) + "\n]\n").encode()))
        for size in (600, 5000):
            assert read(path, size) == huge, packing


def test_a_unit_within_a_line_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text('[\n{"id":"Q1"},\n' + json.dumps({"x": "y" * 2000}) + "\n]\n")
    units = plan(path, 500)
    assert units is not None
    assert [len(list(lines(unit))) for unit in units] == [2, 0, 0, 0, 0]


def test_places_lead_to_the_line(tmp_path: Path) -> None:
    text = FORMS["array"].encode()
    path = tmp_path / "dump.json"
    path.write_bytes(text)
    for unit in plan(path, 3000) or []:
        for place, content in lines(unit):
            at = int(re.fullmatch(r"after byte (\d+)", place).group(1))  # type: ignore[union-attr]
            assert 0 <= text.index(content) - at < 1500
    path.write_bytes(gzip.compress(text))
    for unit in units_of(path, 3000):
        for place, content in lines(unit):
            at = int(re.fullmatch(r"after byte (\d+) of the unpacked text", place).group(1))  # type: ignore[union-attr]
            assert 0 <= text.index(content) - at < 1500
    path.write_bytes(cut_in(text, bz2_1))
    for unit in plan(path, 3000) or []:
        for place, content in lines(unit):
            at = int(re.fullmatch(r"in the block at byte (\d+)", place).group(1))  # type: ignore[union-attr]
            rest = bz2.decompress(path.read_bytes()[at - 4 :])
            assert content in rest[:3000]


@pytest.mark.parametrize("packing", ["gz", "gz of many members", "zst of many frames"])
def test_pieces_that_are_done_are_not_written(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "dump"
    path.write_bytes(PACKINGS[packing](FORMS["array"].encode()))
    found: dict[int, list[str]] = {}
    for number, unit in feed(path, 2000, tmp_path, set()):
        assert unit is not None
        found[number] = [line.content.decode() for line in lines(unit)]
    assert sorted(found) == list(range(len(found)))
    assert len(found) > 3
    done = {0, 2, max(found)}
    for file in tmp_path.glob("piece-*"):
        file.unlink()
    for number, unit in feed(path, 2000, tmp_path, done):
        assert (unit is None) == (number in done)
        if unit is not None:
            assert [line.content.decode() for line in lines(unit)] == found[number]
    assert {int(file.stem[-6:]) for file in tmp_path.glob("piece-*")} == set(found) - done


# ------------------------------------------------------------------------------------------------ damages


def read_damaged(path: Path, size: int) -> tuple[list[str], list[str]]:
    """The lines that can be read and what is said of the damages."""
    found, said = [], []
    for unit in units_of(path, size):
        said += [unit.damage] if unit.damage else []
        try:
            for line in lines(unit):
                found.append(line.content.decode(errors="replace"))
        except DamagedInputError as error:
            said.append(str(error))
    return found, said


def given(found: list[str]) -> list[str]:
    """The whole lines of `found`: the rest of a line that is cut may be given, too."""
    return [line for line in found if line.endswith("}")]


@pytest.mark.parametrize("packing", PACKINGS)
def test_an_array_that_is_cut_off_names_file_and_byte(tmp_path: Path, packing: str) -> None:
    """Cut in the middle of a stream, at a stream border, within the head of a stream."""
    packed = PACKINGS[packing](FORMS["array"].encode())
    path = tmp_path / "dump"
    bracket = 4 if packing == "plain" else 0  # without the line end the dump is whole, and so without zeros after it
    padding = 101 if packing == "gz of many members" else 0
    lefts = [len(packed) - 1 - bracket - padding, len(packed) - 60 - padding, len(packed) // 2, len(packed) // 3]
    for left in [*lefts, *range(len(packed) // 2, len(packed) // 2 + 300, 13)]:
        path.write_bytes(packed[:left])
        for size in (800, 10**9):
            found, said = read_damaged(path, size)
            whole = given(found)
            assert whole == ENTITIES[: len(whole)], (left, size)
            assert all(str(path) in text for text in said)
            assert "fetch it again" in said[-1]
            places = [int(place) for place in re.findall(r"byte (\d+)", said[-1])]
            assert (left in places) or ("unpacked" in said[-1] and max(places) <= len(FORMS["array"])), (said, left)


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_lies_before_the_cut_is_given(tmp_path: Path, packing: str) -> None:
    """All but a part: a block of bz2 or zst, or a chunk (300 packed bytes here)."""
    packed = PACKINGS[packing](FORMS["array"].encode())
    path = tmp_path / "dump"
    left = len(packed) * 2 // 3
    path.write_bytes(packed[:left])
    whole = given(read_damaged(path, 900)[0])
    if packing in ("bz2", "zst"):
        assert whole == []  # all is one block
    else:
        assert len("\n".join(whole)) > len(FORMS["array"]) * 2 // 3 - 2500


@pytest.mark.parametrize("packing", PACKINGS)
def test_json_lines_that_are_cut_off(tmp_path: Path, packing: str) -> None:
    """Between two lines of a plain file nothing can be seen."""
    packed = PACKINGS[packing](FORMS["lines"].encode())
    path = tmp_path / "dump"
    cut = packed.rindex(b"\n", 0, len(packed) // 2) + 1 if packing == "plain" else len(packed) // 2
    path.write_bytes(packed[:cut])
    found, said = read_damaged(path, 800)
    assert found == ENTITIES[: len(found)]
    assert bool(said) == (packing != "plain")


@pytest.mark.parametrize("packing", [name for name in PACKINGS if "many" in name or "tiny" in name])
def test_a_cut_at_a_stream_border(tmp_path: Path, packing: str) -> None:
    """The packed file looks whole there: only the bracket is missing. Also where a unit or a piece ends just there."""
    text = FORMS["array"].encode()
    lines_end = text.index(b"\n", 6000) + 1
    pack = PACKINGS[packing.split()[0]]
    path = tmp_path / "dump"
    path.write_bytes(pack(text[:3000]) + pack(text[3000:lines_end]))
    count = text[:lines_end].count(b"\n") - 1
    for size in (1, 700, 3000, lines_end, 10**9) if path.stat().st_size < 5000 else (700,):
        found, said = read_damaged(path, size)
        assert found == ENTITIES[:count], size
        assert len(set(said)) == 1
        assert str(path) in said[0]
        assert "its closing line `]` is missing" in said[0]
    assert re.search(rf"byte {path.stat().st_size},|byte {lines_end} of the unpacked text", said[0])


def test_a_bracket_at_the_end_of_a_cut_line_is_no_closing_one(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text('[\n{"id":"Q1"},\n{"id":"Q2","claims":[]')
    found, said = read_damaged(path, 10**9)
    assert found == ['{"id":"Q1"}', '{"id":"Q2","claims":[]']
    assert f"{path}: the dump is cut off at byte {path.stat().st_size}" in said[0]


@pytest.mark.parametrize("packing", PACKINGS)
def test_flipped_bits(tmp_path: Path, packing: str) -> None:
    """Either nothing is lost or it is said; what is given before is right. (In a plain file only the JSON can tell.)"""
    packed = PACKINGS[packing](FORMS["array"].encode())
    path = tmp_path / "dump"
    told = 0
    for place in range(4, len(packed), max(1, len(packed) // 40)):
        damaged = bytearray(packed)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        found, said = read_damaged(path, 2500)
        told += bool(said)
        assert said or packing == "plain" or given(found) == ENTITIES, place
        assert all(str(path) in text and "byte " in text for text in said)
        if packing.startswith("bz2"):  # each block has a checksum: what is given is right
            assert set(given(found)) <= set(ENTITIES)
    assert told > 20 or packing == "plain"


def test_a_damage_in_the_middle_leaves_later_units_of_bz2(tmp_path: Path) -> None:
    packed = bytearray(PACKINGS["bz2 of many streams"](FORMS["array"].encode()))
    path = tmp_path / "dump.bz2"
    packed[len(packed) // 2] ^= 4
    path.write_bytes(packed)
    found, said = read_damaged(path, 150)
    assert len(set(said)) == 1
    assert "damaged bz2 data in the block at byte" in said[0]
    assert len(given(found)) > 50
    assert set(given(found)) <= set(ENTITIES)


def test_a_damaged_first_block_is_said_by_its_unit(tmp_path: Path) -> None:
    packed = bytearray(PACKINGS["bz2 of many streams"](FORMS["array"].encode()))
    path = tmp_path / "dump.bz2"
    packed[30] ^= 4
    path.write_bytes(packed)
    assert plan(path, 150)
    found, said = read_damaged(path, 150)
    assert "damaged bz2 data in the block at byte 4" in said[0]
    assert len(given(found)) > 40


@pytest.mark.parametrize("packing", IN_ORDER)
def test_a_piece_cut_short_is_read_again_though_it_was_done(tmp_path: Path, packing: str) -> None:
    packed = PACKINGS[packing](FORMS["array"].encode())
    path = tmp_path / "dump"
    path.write_bytes(packed[: len(packed) // 2])
    pieces = list(feed(path, 2000, tmp_path, set(range(1000))))
    assert all(unit is None for _, unit in pieces[:-1])
    last = pieces[-1][1]
    assert last is not None
    assert "cut off or damaged" in last.damage
    assert f"byte {len(packed) // 2} " in last.damage


# ------------------------------------------------------------------------------------------------ what is no dump


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"is empty|starts with b''"),
        (b"hello", "no Wikidata JSON dump .*starts with b'hello'"),
        (b"<mediawiki>", "no Wikidata JSON dump .*an array or JSON lines"),
        ('[\n{"id":"Q1"}\n]'.encode("utf-16"), "UTF-16 at byte 0; .*iconv"),
        ('[\n{"id":"Q1"}\n]'.encode("utf-16-le"), "UTF-16"),
        ('{"id":"Q1"}'.encode("utf-16-be"), "UTF-16"),
        ("\ufeffplain".encode(), "no Wikidata JSON dump"),
        (b"\n \n", "no Wikidata JSON dump"),
    ],
)
@pytest.mark.parametrize("packing", ["plain", "bz2", "gz", "zst"])
def test_what_is_no_dump_is_refused(tmp_path: Path, packing: str, content: bytes, reason: str) -> None:
    path = tmp_path / "dump"
    path.write_bytes(PACKINGS[packing](content))
    with pytest.raises(UserError, match=reason) as error:
        read(path, 100)
    assert str(path) in str(error.value)


def test_other_packings_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump.json.xz"
    path.write_bytes(b"\xfd7zXZ\0\0")
    with pytest.raises(UserError, match=r"\.gz, \.bz2 or \.zst"):
        packing_of(path)
    with pytest.raises(UserError, match="cannot read the dump"):
        packing_of(tmp_path / "none")


def test_packings_are_told_by_content(tmp_path: Path) -> None:
    for packing, pack in PACKINGS.items():
        path = tmp_path / "dump.misnamed"
        path.write_bytes(pack(b'\xef\xbb\xbf\n{"id":"Q1"}'))
        assert packing_of(path) == packing.split()[0]
        assert read(path, 10) == ['{"id":"Q1"}']


def test_identity_tells_dumps_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_PROBE", 10)
    path = tmp_path / "dump.json"
    path.write_bytes(b"[" * 5000)
    first = identity(path)
    assert first["bytes"] == 5000
    assert first["path"] == "dump.json"
    assert identity(path) == first
    for place in (0, 4999):
        changed = bytearray(b"[" * 5000)
        changed[place] = 0
        path.write_bytes(changed)
        assert identity(path)["sha256 of probes"] != first["sha256 of probes"]
    path.write_bytes(b"[" * 5001)
    assert identity(path)["sha256 of probes"] != first["sha256 of probes"]
