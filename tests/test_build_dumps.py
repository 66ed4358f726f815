"""The corpus build from dumps: the same shards however a dump is packed and cut, whoever reads it, wherever it ends."""

from __future__ import annotations

import bz2
import dataclasses
import json
from pathlib import Path

import pytest

from data_tools import build
from data_tools.build import build_corpus
from data_tools.wikipedia import ranges, survey
from erica_dist.config import CorpusJob, RayConfig
from erica_dist.errors import UserError
from tests.corpora import corpus_job, folder_bytes
from tests.test_wikipedia_dump import HEAD, TAIL, page

FORMS = ("multistream", "single", "plain", "extracted")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world's pages as a multistream dump with index, as one stream, plain, and as WikiExtractor's."""
    folder = tmp_path_factory.mktemp("world")
    rows = [json.loads(line) for line in Path(corpus_job(folder, pages=120).inputs[0]).read_text().splitlines()]
    pages = [page(row["page_id"], row["title"], row["text"].replace("\n", "\n\n")) for row in rows]
    redirects = [page(1, "The Republic", "#REDIRECT [[France]]", redirect="France"), page(2, "Talk:x", "y", 1)]
    pages[50:50] = redirects
    ids = [row["page_id"] for row in rows]
    ids[50:50] = [1, 2]
    text = HEAD + "".join(pages) + TAIL
    (folder / "plain.xml").write_text(text)
    (folder / "single.xml.bz2").write_bytes(bz2.compress(text.encode(), 1))
    data, index = bz2.compress(HEAD.encode()), ""
    for first in range(0, len(pages), 10):
        index += "".join(f"{len(data)}:{number}:T\n" for number in ids[first : first + 10])
        data += bz2.compress("".join(pages[first : first + 10]).encode())
    (folder / "multistream.xml.bz2").write_bytes(data + bz2.compress(TAIL.encode()))
    (folder / "multistream-index.txt.bz2").write_bytes(bz2.compress(index.encode()))
    docs = [f'<doc id="{r["page_id"]}" title="{r["title"]}">\n{r["title"]}\n\n{r["text"]}\n</doc>\n' for r in rows]
    (folder / "extracted" / "AA").mkdir(parents=True)
    for number in range(4):
        (folder / "extracted" / "AA" / f"wiki_0{number}").write_text("".join(docs[30 * number : 30 * number + 30]))
    return folder


def job(world: Path, form: str, out: str, workers: int = 0) -> CorpusJob:
    name = {"multistream": "multistream.xml.bz2", "single": "single.xml.bz2", "plain": "plain.xml"}.get(form, form)
    ray = RayConfig(disabled=not workers, workers=workers)
    return dataclasses.replace(corpus_job(world, out), inputs=[str(world / name)], ray=ray)


def shards(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in folder_bytes(folder).items() if name.endswith(".tar")}


def test_the_form_of_the_input_does_not_show_in_the_shards(world: Path) -> None:
    built = {form: build_corpus(job(world, form, f"as-{form}")) for form in FORMS}
    assert built["multistream"]["counts"]["pages"]["pages read"] == 122
    assert built["extracted"]["counts"]["pages"]["pages read"] == 120
    assert [file["path"] for file in built["extracted"]["inputs"]] == ["extracted"]
    assert built["extracted"]["inputs"][0]["files"] == 4
    first = shards(world / "as-multistream")
    assert len(first) > 10
    for form in FORMS:
        assert shards(world / f"as-{form}") == first


@pytest.mark.parametrize("form", FORMS)
def test_ranges_do_not_show(world: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", {"": 777, "bz2": 900})
    build_corpus(job(world, form, f"cut-{form}"))
    monkeypatch.undo()
    build_corpus(job(world, form, f"whole-{form}"))
    assert shards(world / f"whole-{form}") == shards(world / f"cut-{form}")


def test_a_scan_that_was_stopped_goes_on(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", {"bz2": 900})
    build_corpus(job(world, "multistream", "undisturbed"))
    real, scanned = survey.scan_range, []

    def stopping(task):  # type: ignore[no-untyped-def]
        if len(scanned) == 3:
            raise KeyboardInterrupt
        scanned.append(task.name)
        return real(task)

    monkeypatch.setattr(survey, "scan_range", stopping)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(job(world, "multistream", "stopped"))
    scans = world / "stopped" / ".build" / "scan"
    assert {path.stem for path in scans.iterdir()} == set(scanned)
    (scans / ".half.npz.1.tmp").write_bytes(b"half")
    again: list[str] = []
    monkeypatch.setattr(survey, "scan_range", lambda task: (again.append(task.name), real(task))[1])
    with monkeypatch.context() as patch:
        # stopped once more, at the first unit
        patch.setattr(build, "build_unit", lambda task: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_corpus(job(world, "multistream", "stopped"))
    assert len(again) > 3
    assert not set(again) & set(scanned)
    assert {path.stem for path in scans.iterdir()} == {*again, *scanned}
    build_corpus(job(world, "multistream", "stopped"))
    assert len(again) == len(set(again))
    assert folder_bytes(world / "stopped") == folder_bytes(world / "undisturbed")


@pytest.mark.ray
def test_workers_do_not_show(world: Path) -> None:
    for number in (0, 2):
        build_corpus(job(world, "single", f"workers-{number}", workers=number))
    assert folder_bytes(world / "workers-2") == folder_bytes(world / "workers-0")


def test_units_without_an_article(world: Path, tmp_path: Path) -> None:
    """A stretch of redirects gives a unit of which nothing is kept; a dump of nothing else, one clear error."""
    redirects = "".join(page(1000 + n, f"R {n}", "#REDIRECT [[France]]", redirect="France") for n in range(40))
    text = (world / "plain.xml").read_text(encoding="utf-8")
    mixed, alone = tmp_path / "mixed.xml", tmp_path / "alone.xml"
    mixed.write_text(text.replace(TAIL, redirects + TAIL), encoding="utf-8")
    alone.write_text(HEAD + redirects + TAIL, encoding="utf-8")
    made = job(world, "plain", "with_redirects")
    made = dataclasses.replace(made, inputs=[str(mixed)], out=str(tmp_path / "out"), pages_per_task=10)
    assert build_corpus(made)["counts"]["pages"]["redirect pages"] >= 40
    with pytest.raises(UserError, match="nothing came out: no page of the input is an article"):
        build_corpus(dataclasses.replace(made, inputs=[str(alone)], out=str(tmp_path / "none")))
