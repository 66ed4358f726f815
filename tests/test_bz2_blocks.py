"""bz2 files read block by block from any byte: the same text as the standard library gives, each block once."""

import bz2
import random
from pathlib import Path

import pytest

from data_tools.bz2_blocks import blocks
from erica_dist.errors import DamagedInputError, UserError


def text(size: int, seed: int = 0) -> bytes:
    words = [f"word{number}" for number in range(3000)]
    pick = random.Random(seed)
    return " ".join(pick.choice(words) for _ in range(size // 8)).encode()[:size]


@pytest.fixture
def single(tmp_path: Path) -> tuple[Path, bytes]:
    """One stream of many blocks: level 1 makes blocks of 100 kB."""
    content = text(1_300_000)
    path = tmp_path / "single.bz2"
    path.write_bytes(bz2.compress(content, 1))
    return path, content


@pytest.fixture
def multistream(tmp_path: Path) -> tuple[Path, bytes]:
    parts = [text(1 + 37_123 * number, number) for number in range(12)] + [b""]
    path = tmp_path / "multi.bz2"
    path.write_bytes(b"".join(bz2.compress(part, 1) for part in parts))
    return path, b"".join(parts)


@pytest.mark.parametrize("kind", ["single", "multistream"])
def test_all_blocks_are_the_text(kind: str, request: pytest.FixtureRequest) -> None:
    path, content = request.getfixturevalue(kind)
    found = list(blocks(path))
    assert len(found) > 10
    assert b"".join(block.data for block in found) == content
    assert [block.position for block in found] == sorted(block.position for block in found)


@pytest.mark.parametrize("kind", ["single", "multistream"])
@pytest.mark.parametrize("size", [1_000, 7_777, 33_333, 10**9])
def test_ranges_share_the_blocks_out(kind: str, size: int, request: pytest.FixtureRequest) -> None:
    path, content = request.getfixturevalue(kind)
    length = path.stat().st_size
    parts = [list(blocks(path, start, start + size)) for start in range(0, length, size)]
    for start, part in zip(range(0, length, size), parts, strict=True):
        assert all(start <= block.position < start + size for block in part)
    assert b"".join(block.data for part in parts for block in part) == content


def test_every_alignment_of_a_mark_is_found(tmp_path: Path) -> None:
    path = tmp_path / "many.bz2"
    content = text(3_000_000, 5)
    path.write_bytes(bz2.compress(content, 1))
    from data_tools.bz2_blocks import _marks

    with path.open("rb") as file:
        marks = list(_marks(file, 0))
    assert {mark.bit % 8 for mark in marks} == set(range(8))
    assert b"".join(block.data for block in blocks(path)) == content


def test_a_mark_on_a_window_border_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_tools.bz2_blocks._WINDOW", 101)
    path = tmp_path / "borders.bz2"
    content = text(1_000_000, 6)
    path.write_bytes(bz2.compress(content, 1))
    assert b"".join(block.data for block in blocks(path)) == content


def test_a_mark_by_chance_within_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data_tools import bz2_blocks

    path = tmp_path / "chance.bz2"
    content = text(500_000, 7)
    path.write_bytes(bz2.compress(content, 1))
    real = bz2_blocks._marks

    def with_chance(file, start):  # type: ignore[no-untyped-def]
        marks = list(real(file, start))
        return iter(sorted([*marks, bz2_blocks._Mark(marks[1].bit + 12_345, True)]))

    monkeypatch.setattr(bz2_blocks, "_marks", with_chance)
    assert b"".join(block.data for block in blocks(path)) == content


def test_a_file_that_is_cut_off(single: tuple[Path, bytes]) -> None:
    path, content = single
    whole = path.read_bytes()
    for left in (len(whole) - 1, len(whole) - 9, len(whole) // 2, 30):
        path.write_bytes(whole[:left])
        found: list[bytes] = []  # extend keeps what came before the error
        with pytest.raises(DamagedInputError, match=rf"single.bz2: .* cut off at byte {left} .*fetch it again"):
            found.extend(block.data for block in blocks(path))
        assert content.startswith(b"".join(found))


def test_a_flipped_bit_names_the_block(single: tuple[Path, bytes]) -> None:
    path, content = single
    positions = [block.position for block in blocks(path)]
    damaged = bytearray(path.read_bytes())
    damaged[(positions[4] + positions[5]) // 2] ^= 4
    path.write_bytes(damaged)
    found: list[bytes] = []  # extend keeps what came before the error
    with pytest.raises(DamagedInputError, match=rf"damaged bz2 data in the block at byte {positions[4]};"):
        found.extend(block.data for block in blocks(path))
    assert len(found) == 4
    assert content.startswith(b"".join(found))
    # what follows the damage can be read from there
    assert content.endswith(b"".join(block.data for block in blocks(path, positions[5])))


def test_what_is_no_bz2_file(tmp_path: Path) -> None:
    path = tmp_path / "plain.bz2"
    path.write_bytes(b"BZ? no")
    with pytest.raises(UserError, match=r"plain\.bz2 is no bz2 file"):
        list(blocks(path))
    with pytest.raises(UserError, match="cannot read"):
        list(blocks(tmp_path / "absent.bz2"))


def small_streams() -> tuple[list[bytes], bytes]:
    """Streams of one block, of none and of several, and their text."""
    parts = [text(300, 1), b"", text(150_000, 2)[:120_000].replace(b"word", b"w"), text(40, 3)]
    return [bz2.compress(part, 1) for part in parts], b"".join(parts)


def test_wherever_a_file_of_many_streams_is_cut(tmp_path: Path) -> None:
    """Between streams it is a whole file; anywhere else it is refused, and what was given is right."""
    streams, content = small_streams()
    packed = b"".join(streams)
    whole_at = {sum(map(len, streams[:number])) for number in range(1, len(streams) + 1)}
    middle = sum(map(len, streams[:2]))
    path = tmp_path / "cut.bz2"
    for left in [
        *range(4, middle + 200),
        *range(middle + 200, len(packed) - 200, 997),
        *range(len(packed) - 200, len(packed) + 1),
    ]:
        path.write_bytes(packed[:left])
        found: list[bytes] = []
        if left in whole_at:
            found.extend(block.data for block in blocks(path))
        else:
            with pytest.raises(DamagedInputError, match=f"cut off at byte {left} "):
                found.extend(block.data for block in blocks(path))
        assert content.startswith(b"".join(found))


def test_any_flipped_bit_is_found_or_does_no_harm(tmp_path: Path) -> None:
    """Also one in a mark: a block that is not seen must be missed."""
    streams, content = small_streams()
    packed = b"".join(streams)
    second = sum(map(len, streams[:2]))
    path = tmp_path / "flipped.bz2"
    places = [*range(3, second + 40), *range(second + 40, len(packed), 1009), *range(len(packed) - 120, len(packed))]
    harmless = 0
    for place in places:
        damaged = bytearray(packed)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found: list[bytes] = []
        said = ""
        try:
            found.extend(block.data for block in blocks(path))
        except DamagedInputError as error:
            said = str(error)
        if said:
            assert str(path) in said
            assert " byte " in said
            assert content.startswith(b"".join(found))
        else:
            assert b"".join(found) == content
            harmless += 1
    # the heads of streams and their second checksums, which say nothing of the text
    assert 0 < harmless < 8 * len(streams) + 1


def test_other_bytes_after_the_last_stream_are_ignored(tmp_path: Path) -> None:
    streams, content = small_streams()
    path = tmp_path / "padded.bz2"
    for padding in (b"\0" * 512, b"garbage"):
        path.write_bytes(b"".join(streams) + padding)
        assert b"".join(block.data for block in blocks(path)) == content
