"""Nearly equal documents: sketches that never change, the first one stays, and nothing of how a build is cut counts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_tools.assembly import first_of_equal, gather
from data_tools.build import build_corpus
from data_tools.near_duplicates import SKETCH, first_of_similar, read_sketches, sketches, write_sketches
from erica_dist.config import CorpusJob, FilterConfig
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from tests.corpora import corpus_job

TEXT = "The quick brown fox jumps over the lazy dog, and 12 more do so in Köln. " * 2


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"w{draw.randrange(10**6)}" for _ in range(count)]


def changed(text: list[str], share: float, seed: int) -> list[str]:
    """`text` with so many words at its end changed that its sets of five words are that similar (Jaccard)."""
    parts = len(text) - 4
    common = round(2 * parts * share / (1 + share))
    return [*text[: common + 4], *words(len(text) - common - 4, seed)]


def similarity(one: list[str], other: list[str]) -> float:
    sets = [{tuple(text[start : start + 5]) for start in range(len(text) - 4)} for text in (one, other)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_sketches_are_these_bytes_on_every_machine() -> None:
    found = sketches([TEXT, "short", ""])
    assert found.shape == (3, SKETCH)
    assert found.dtype == np.uint8
    assert found[0, :8].tolist() == [28, 24, 63, 236, 213, 24, 140, 158]
    assert found[0, 128:136].tolist() == [17, 92, 0, 162, 215, 11, 223, 45]
    digest = "ff4350d6bdac9ed25b16df76d77018d718fb5b4ca4f4dab6824aca55e6f2345a"
    assert hashlib.sha256(found.tobytes()).hexdigest() == digest
    code = "from tests.test_near_duplicates import *; print(sketches([TEXT, 'short', '']).tobytes().hex())"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == found.tobytes().hex()
    assert sketches([]).shape == (0, SKETCH)


def test_case_punctuation_and_white_space_do_not_count() -> None:
    one, other = sketches([TEXT, TEXT.upper().replace(",", " -\n").replace(".", "")])
    assert (one == other).all()
    assert (sketches([TEXT])[0] != sketches([TEXT.replace("fox", "dog")])[0]).any()


def test_files_of_sketches(tmp_path: Path) -> None:
    path = tmp_path / "unit.npy"
    assert write_sketches(path, [TEXT, "b"]) == path.stat().st_size
    assert (read_sketches(path) == sketches([TEXT, "b"])).all()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"unit\.npy is damaged"):
        read_sketches(path)


def test_the_estimate_is_right_on_both_sides_of_the_threshold() -> None:
    dropped = {}
    for share in (0.4, 0.6, 0.7, 0.9, 0.95):
        texts = []
        for seed in range(60):
            text = words(300, seed)
            texts += [text, changed(text, share, 1000 + seed)]
            assert similarity(*texts[-2:]) == pytest.approx(share, abs=0.01)
        kept = first_of_similar(sketches([" ".join(text) for text in texts]), 0.8)
        assert kept[::2].all()
        dropped[share] = int((~kept[1::2]).sum())
    assert dropped[0.4] == dropped[0.6] == 0
    assert dropped[0.7] <= 1
    assert dropped[0.9] >= 59
    assert dropped[0.95] == 60


def test_the_bands_find_what_the_lowest_threshold_asks_for() -> None:
    texts = []
    for seed in range(100):
        text = words(300, seed)
        texts += [" ".join(text), " ".join(changed(text, 0.65, 1000 + seed))]
    kept = first_of_similar(sketches(texts), 0.5)
    assert kept[::2].all()
    assert (~kept[1::2]).sum() >= 97


def test_a_document_goes_only_for_one_that_stays() -> None:
    """a ~ b ~ c, but a and c are not similar: b goes for a, so c stays."""
    a = words(300, 0)
    b = [*a[30:], *words(30, 1)]
    c = [*b[30:], *words(30, 2)]
    assert similarity(a, b) > 0.75
    assert similarity(b, c) > 0.75
    assert similarity(a, c) < 0.68
    found = sketches([" ".join(text) for text in (a, b, c)])
    assert first_of_similar(found, 0.72).tolist() == [True, False, True]
    assert first_of_similar(found[[1, 0, 2]], 0.72).tolist() == [True, False, False]
    assert first_of_similar(found[[2, 1, 0]], 0.72).tolist() == [True, False, True]


def naive(found: np.ndarray, least: float) -> list[bool]:
    """Each with each, by the definition."""
    kept: list[int] = []
    hashes, values = found[:, :128].reshape(-1, 32, 4), found[:, 128:]
    for one in range(len(found)):
        for other in kept:
            banded = (hashes[one] == hashes[other]).all(axis=1).any()
            if banded and ((values[one] == values[other]).mean() - 1 / 256) / (1 - 1 / 256) >= least:
                break
        else:
            kept.append(one)
    return [one in kept for one in range(len(found))]


@pytest.mark.parametrize("least", [0.5, 0.8, 1.0])
def test_equal_to_comparing_each_with_each(least: float) -> None:
    draw = random.Random(5)
    texts = [words(80, seed) for seed in range(12)]
    for _ in range(150):
        text = list(draw.choice(texts))
        for _ in range(draw.randrange(6)):
            text[draw.randrange(80)] = f"x{draw.randrange(9)}"
        texts.append(text)
    found = sketches([" ".join(text) for text in texts])
    kept = first_of_similar(found, least)
    assert kept.tolist() == naive(found, least)
    assert 12 <= kept.sum() < 162


def test_all_that_stay_of_a_band_are_compared() -> None:
    """The third is like the first, not like the second, and shares its only band with both."""
    found = np.random.default_rng(0).integers(0, 256, (4, SKETCH), dtype=np.uint8)
    found[:3, :4] = found[0, :4]
    found[2:, 128:] = found[0, 128:]
    # the fourth is like the first as well, but shares no band with it
    assert first_of_similar(found, 0.8).tolist() == [True, True, False, True]


def test_no_document_and_all_the_same() -> None:
    assert first_of_similar(sketches([]), 0.8).tolist() == []
    assert first_of_similar(sketches([TEXT] * 5), 0.8).tolist() == [True, False, False, False, False]


def test_the_first_of_equal_digests() -> None:
    digests = [bytes([n]) * 8 + bytes([m]) * 8 for n, m in ((2, 1), (1, 2), (2, 1), (1, 1), (2, 2), (1, 2), (2, 1))]
    assert first_of_equal(b"".join(digests)).tolist() == [True, True, False, True, True, False, False]
    assert first_of_equal(b"").tolist() == []


# ------------------------------------------------------------------------------------------------ the build


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CorpusJob]:
    """Pages of which every second is the one before it with one word changed."""
    folder = tmp_path_factory.mktemp("world")
    job = corpus_job(folder, "first", pages=12)
    rows = []
    for number, line in enumerate(Path(job.inputs[0]).read_text().splitlines()[:9]):
        row = json.loads(line)
        text = " ".join(row["text"].split("\n")) + f" In {number} all was told again, as it had been. " * 2
        for copy in range(2):
            title = f"{row['title']} {copy}"
            rows.append({"title": title, "page_id": len(rows) + 1, "text": text + f"It was told by teller {copy}."})
    path = folder / "near.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    filters = dataclasses.replace(job.filters, max_tokens=2000)
    return folder, dataclasses.replace(job, inputs=[str(path)], filters=filters)


def titles(folder: Path) -> list[str]:
    found = [sample for path in sorted(folder.glob("documents-*.tar")) for sample in read_documents(path)]
    return [document["title"] for _, document in sorted(found, key=lambda sample: sample[0])]


def test_the_first_stays_whatever_the_units_and_is_counted(world: tuple[Path, CorpusJob]) -> None:
    folder, job = world
    built = {}
    for units in (1, 5, 100):
        out = folder / f"units-{units}"
        built[units] = build_corpus(dataclasses.replace(job, out=str(out), pages_per_task=units))
    assert built[1]["shards"] == built[5]["shards"] == built[100]["shards"]
    counts = built[5]["counts"]["documents"]
    assert counts["dropped: near duplicates"] == counts["kept"] == 9
    assert built[5]["counts"]["passages"]["passed"] == 18
    assert all(title.endswith(" 0") for title in titles(folder / "units-5"))
    # texts for ELECTRA: exact duplicates only
    assert built[5]["text_pages"] == 18


def test_near_ones_stay_where_only_equal_ones_or_none_go(world: tuple[Path, CorpusJob]) -> None:
    folder, job = world
    path = folder / "repeated.jsonl"
    lines = Path(job.inputs[0]).read_text().splitlines()
    again = [json.dumps(json.loads(line) | {"title": f"Again {n}", "page_id": 100 + n}) for n, line in enumerate(lines)]
    path.write_text("\n".join([*lines, *again]) + "\n")
    kept = {}
    for duplicates in ("near", "exact", "keep"):
        filters = dataclasses.replace(job.filters, duplicates=duplicates)
        manifest = build_corpus(
            dataclasses.replace(job, inputs=[str(path)], out=str(folder / duplicates), filters=filters)
        )
        kept[duplicates] = (manifest["documents"], manifest["text_pages"])
    assert kept == {"near": (9, 18), "exact": (18, 18), "keep": (36, 36)}


def test_a_lost_or_cut_file_of_sketches_builds_its_unit_again(
    world: tuple[Path, CorpusJob], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import data_tools.build

    folder, job = world
    job = dataclasses.replace(job, out=str(folder / "lost"), pages_per_task=5)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data_tools.build, "_assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(job)
    files = sorted((folder / "lost" / ".build" / "units").glob("*.npy"))
    assert len(files) == 4
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    capsys.readouterr()
    manifest = build_corpus(job)
    assert "2 of 4 units were done before" in capsys.readouterr().out
    assert manifest["documents"] == 9
    assert not list((folder / "lost").rglob("*.npy"))


def test_each_document_has_its_own_sketch_where_equal_ones_lie_between(tmp_path: Path) -> None:
    one, other, third = (" ".join(words(300, seed)) for seed in range(3))
    units = [[(one, "1"), (one, "1"), (other, "2"), (other + " more", "3")], [(third, "4"), (one + " more", "5")]]
    indices, files = [], []
    for unit in units:
        places = [[0, n, digest * 32, n, 1] for n, (_, digest) in enumerate(unit)]
        indices.append({"pages": 1, "documents": places, "texts": [], "counts": {}})
        files.append(tmp_path / f"{len(files)}.npy")
        write_sketches(files[-1], [text for text, _ in unit])
    gathered = gather(indices, FilterConfig(), files)
    assert [(place.unit, place.offset) for place in gathered.documents] == [(0, 0), (0, 2), (1, 0)]
    assert gathered.counts["documents"] == {
        "kept": 3, "dropped: duplicates": 1, "dropped: near duplicates": 2
    } | {"text pages kept": 0}  # fmt: skip


def test_damaged_sketches_are_named(tmp_path: Path) -> None:
    index = {"pages": 1, "documents": [[0, n, str(n) * 32, 0, 1] for n in range(2)], "texts": [], "counts": {}}
    write_sketches(tmp_path / "unit.npy", ["one"])
    with pytest.raises(UserError, match=r"unit\.npy is damaged"):
        gather([index], FilterConfig(), [tmp_path / "unit.npy"])


@pytest.mark.parametrize("least", [0.0, 0.49, 1.01])
def test_similarities_that_cannot_be_found_are_refused(world: tuple[Path, CorpusJob], least: float) -> None:
    folder, job = world
    filters = dataclasses.replace(job.filters, near_similarity=least)
    with pytest.raises(UserError, match=r"near_similarity=.* must be from 0\.5 to 1"):
        build_corpus(dataclasses.replace(job, out=str(folder / "refused"), filters=filters))
