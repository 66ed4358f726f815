"""The audit of a corpus: its numbers against naive counts, what is drawn, hostile texts, refusals."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_tools.audit import audit
from data_tools.audit_counts import CorpusCounts, Distribution, Frequencies, reach_of_pairs
from data_tools.audit_funnel import Step, page_steps, passage_steps, unit_of, word_steps
from data_tools.build import build_corpus
from erica_dist.cli import main
from erica_dist.config import LabellingConfig
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from erica_dist.shards.manifest import CORPUS, VERSION, write_manifest
from erica_dist.shards.tarfiles import TarShardWriter
from tests.corpora import corpus_job

PERCENT = "{:.1f} %"


class Page(HTMLParser):
    """What a reader of the page gets: tiles, rows of tables by their cells' texts, article ids, every tag."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self._cells: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self._cells = []
        elif tag in ("td", "th"):
            self._cells.append([])

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self.rows.append(tuple("".join(cell) for cell in self._cells))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._cells:
            self._cells[-1].append(data)

    def drawn(self) -> list[int]:
        return [int((attrs["id"] or "").removeprefix("document-")) for tag, attrs in self.tags if tag == "article"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    # pairs that lose their only label are barred
    labelling = LabellingConfig(excluded_relations=["P36"])
    build_corpus(dataclasses.replace(corpus_job(folder), labelling=labelling))
    return folder


@pytest.fixture(scope="module")
def page(world: Path) -> Page:
    audit(world / "corpus", world / "audit.html", documents=5)
    return Page((world / "audit.html").read_text(encoding="utf-8"))


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take nearly all of the time of a small audit."""
    monkeypatch.setattr("data_tools.audit_pictures._svg", lambda figure: b"<svg/>")


def documents(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """All documents in the order of the corpus."""
    return [sample for path in sorted(folder.glob("documents-*.tar")) for sample in read_documents(path)]


def test_the_numbers_on_the_page_are_those_of_the_documents(world: Path, page: Page) -> None:
    found = [document for _, document in documents(world / "corpus")]
    entities = [entity for document in found for entity in document["entities"]]
    mentions = [mention for entity in entities for mention in entity["mentions"]]
    pairs = [sorted({(head, tail) for head, tail, _ in document["relations"]}) for document in found]
    sizes = {
        "Words of a document": [len(document["text"].split()) for document in found],
        "Entities of a document": [len(document["entities"]) for document in found],
        "Mentions of a document": [sum(len(one["mentions"]) for one in document["entities"]) for document in found],
        "Mentions of an entity in a document": [len(entity["mentions"]) for entity in entities],
        "Labels of a document": [len(document["relations"]) for document in found],
        "Labelled pairs of a document": [len(of_document) for of_document in pairs],
        "Distinct relations of a document": [len({label[2] for label in one["relations"]}) for one in found],
        "Barred pairs of a document": [len(document.get("barred", [])) for document in found],
    }
    assert sum(sizes["Barred pairs of a document"]) > 0
    for name, values in sizes.items():
        low, middle, high = (int(np.quantile(values, at, method="inverted_cdf")) for at in (0.05, 0.5, 0.95))
        row = (name, f"{sum(values):,}", f"{np.mean(values):,.2f}", f"{low:,}", f"{middle:,}", f"{high:,}")
        assert (*row, f"{max(values):,}") in page.rows

    labels = Counter(label[2] for document in found for label in document["relations"])
    holding = Counter(relation for document in found for relation in {label[2] for label in document["relations"]})
    names = {"P30": "continent", "P47": "shares border with"}
    assert set(labels) == set(names)
    for relation, number in labels.items():
        shares = (PERCENT.format(100 * number / labels.total()), f"{holding[relation]:,}")
        last = PERCENT.format(100 * holding[relation] / len(found))
        assert (relation, names[relation], f"{number:,}", *shares, last) in page.rows

    popular = Counter((entity["id"], entity["name"]) for entity in entities)
    for (identifier, name), number in popular.items():
        assert (identifier, name, f"{number:,}", PERCENT.format(100 * number / len(found))) in page.rows
    spelt = Counter(
        (document["text"][start:end], entity["name"], entity["id"])
        for document in found
        for entity in document["entities"]
        for start, end, _ in entity["mentions"]
        if document["text"][start:end].lower() != entity["name"].lower()
    )
    assert spelt
    for key, number in spelt.items():
        assert (*key, f"{number:,}") in page.rows

    text = "".join(page.texts)
    for source, number in Counter(source for _, _, source in mentions).items():
        assert f"{source} {PERCENT.format(100 * number / len(mentions))}" in text
    near = sum(one_sentence(document, *pair) for document, of in zip(found, pairs, strict=True) for pair in of)
    far = sum(map(len, pairs)) - near
    assert near > 0
    assert far > 0
    assert f"{near:,} labelled pairs have a sentence that mentions both ends, {far:,} have none" in text
    assert f"{len(popular):,} distinct entities" in text
    assert "links and names only, without NER" in text


def one_sentence(document: dict[str, Any], head: int, tail: int) -> bool:
    """Whether a sentence mentions both; in this world every full stop and line break ends one."""

    def sentences(entity: int) -> set[int]:
        starts = [mention[0] for mention in document["entities"][entity]["mentions"]]
        return {len(re.findall(r"[.\n]+", document["text"][:start])) for start in starts}

    return bool(sentences(head) & sentences(tail))


def test_what_was_dropped_adds_up(world: Path, page: Page) -> None:
    counts = json.loads((world / "corpus" / "manifest.json").read_text())["counts"]
    for steps in (page_steps(counts), passage_steps(counts)):
        left = steps[0].number
        for step in steps[1:]:
            left -= step.number if step.dropped else 0
            assert step.dropped or step.number == left
            shown = f"{-step.number if step.dropped else step.number:,}"
            share = PERCENT.format(100 * step.number / steps[0].number)
            assert any(row[1:] == (step.name, shown, share) for row in page.rows)
    assert passage_steps(counts)[-1] == Step("documents", len(documents(world / "corpus")))
    assert [step.number for step in word_steps(counts)] == [
        counts["words"]["read"],
        sum(len(document["text"].split()) for _, document in documents(world / "corpus")),
    ]
    for stage, of_stage in counts.items():
        for reason, number in of_stage.items():
            assert (stage, reason, f"{number:,}", unit_of(stage, reason)) in page.rows


def test_steps_of_a_dump_with_every_kind_of_count() -> None:
    counts = {
        "pages": {
            "pages read": 100,
            "pages kept": 60,
            "redirect pages": 20,
            "pages repeated": 4,
            "pages without text": 16,
            "pages that the wikitext parser refused": 5,
            "left out: leakage": 3,
            "links into a redirect loop": 9,
            "paragraphs with leftover markup": 7,
        },
        "passages": {"cut": 50, "passed": 20, "dropped: too long": 4, "dropped before NER: too few possible": 26},
        "documents": {"kept": 15, "dropped: near duplicates": 5, "text pages kept": 57},
        "words": {"read": 900, "seen by NER": 500},
        "in the documents": {"words": 300},
    }
    assert page_steps(counts) == [
        Step("pages read", 100),
        Step("redirect pages", 20, True),
        Step("pages without text", 11, True),
        Step("pages that the wikitext parser refused", 5, True),
        Step("pages repeated", 4, True),
        Step("left out: leakage", 3, True),
        Step("articles used", 57),
    ]
    assert passage_steps(counts) == [
        Step("passages cut", 50),
        Step("dropped: too long", 4, True),
        Step("of fitting length", 46),
        Step("dropped before NER: too few possible", 26, True),
        Step("may pass: go to NER", 20),
        Step("labelled", 20),
        Step("dropped: near duplicates", 5, True),
        Step("documents", 15),
    ]
    assert [step.number for step in word_steps(counts)] == [900, 500, 300]
    assert unit_of("documents", "text pages kept") == "pages"
    assert unit_of("labels", "entities over labelling.max_entities") == "entities"
    assert unit_of("pages", "links into a redirect loop") == "pieces"
    assert unit_of("leakage", "docred/dev.json: labels removed") == "labels"
    assert unit_of("leakage", "pairs.tsv: pairs") == "pairs"


def test_the_same_corpus_and_seed_give_the_same_bytes(world: Path, page: Page) -> None:
    audit(world / "corpus", world / "again.html", documents=5)
    assert (world / "again.html").read_bytes() == (world / "audit.html").read_bytes()


@pytest.mark.usefixtures("without_pictures")
def test_drawing_is_by_seed_over_all_shards(world: Path, tmp_path: Path) -> None:
    def drawn(name: str, **more: int) -> tuple[list[int], bytes]:
        audit(world / "corpus", tmp_path / name, **more)
        data = (tmp_path / name).read_bytes()
        return Page(data.decode()).drawn(), data

    keys = [key for key, _ in documents(world / "corpus")]
    first, data = drawn("a.html", documents=9, seed=3)
    places = random.Random(3).sample(range(len(keys)), 9)
    assert first == [keys[place] for place in sorted(places)]
    assert len({place // 7 for place in places}) > 1
    assert drawn("b.html", documents=9, seed=3) == (first, data)
    other, _ = drawn("c.html", documents=9, seed=4)
    assert set(other) != set(first)
    assert drawn("d.html", documents=10_000)[0] == keys
    assert drawn("e.html", documents=0)[0] == []


@pytest.mark.usefixtures("without_pictures")
def test_drawn_documents_show_mentions_relations_and_barred_pairs(world: Path, tmp_path: Path) -> None:
    audit(world / "corpus", tmp_path / "all.html", documents=10_000)
    text = (tmp_path / "all.html").read_text(encoding="utf-8")
    articles = text.split("<article")[1:]
    found = documents(world / "corpus")
    assert len(articles) == len(found)
    names = {"P30": "continent", "P47": "shares border with"}
    for article, (_, document) in zip(articles, found, strict=True):
        marks = re.findall(r'<mark class="(\w+)" title="([^"]*)">([^<]*)<small>', article)
        spans = sorted(
            (mention, entity) for entity in document["entities"] for mention in map(tuple, entity["mentions"])
        )
        spans.sort(key=lambda span: span[0])
        assert marks == [
            (source, f"{entity['name']} ({entity['id']}), no type, found as {source}", document["text"][start:end])
            for (start, end, source), entity in spans
        ]
        rows = re.findall(r"<li>(.*?) — <i>(.*?)</i> — (.*?)( <small>cross-sentence</small>)?</li>", article)
        ends = [entity["name"] for entity in document["entities"]]
        assert [(head, relation, tail) for head, relation, tail, _ in rows] == [
            (ends[head], f"{names[relation]} ({relation})", ends[tail])
            for head, tail, relation in document["relations"]
        ]
        assert [not far for *_, far in rows] == [
            one_sentence(document, head, tail) for head, tail, _ in document["relations"]
        ]
        barred = re.findall(r"<li class=barred>(.*?) — <i>barred</i> — (.*?)</li>", article)
        assert barred == [(ends[head], ends[tail]) for head, tail in document.get("barred", [])]


EVIL = "<script>alert('x')</script>\"' onload=\"x\" <img src=http://evil/> $\\frac{1$ {text} &lt;b&gt; \x07\n漢"


def write_corpus(folder: Path, contents: list[dict[str, Any]], relation: str = "P1", **more: Any) -> Path:
    """A corpus of these documents, written as they are."""
    folder.mkdir()
    with TarShardWriter(folder / "documents-00000.tar") as tar:
        for key, document in enumerate(contents):
            tar.write(f"{key:012d}.json", json.dumps(document).encode())
    shard = {"file": "documents-00000.tar", "kind": "documents", "samples": len(contents), "sha256": tar.sha256}
    manifest = {
        "format": CORPUS,
        "version": VERSION,
        "settings": {},
        "inputs": [],
        "ner": {"enabled": False},
        "counts": {},
        "relations": [{"id": relation, "name": relation, "facts": 1}],
        "documents": len(contents),
        "text_pages": 0,
        "shards": [shard],
        "complete": True,
    }
    write_manifest(folder, manifest | more)
    return folder


def small_document(**more: Any) -> dict[str, Any]:
    entities = [
        {"id": "Q1", "name": "a", "type": None, "mentions": [[0, 1, "link"]]},
        {"id": "Q2", "name": "b", "type": "GPE", "mentions": [[2, 3, "ner"]]},
    ]
    document = {"title": "t", "page_id": 1, "chunk": 0, "text": "a b", "entities": entities}
    return document | {"relations": [[0, 1, "P1"]]} | more


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    text = f"{EVIL} is \ud800 in {EVIL}"
    entities = [
        {"id": EVIL, "name": EVIL, "type": EVIL, "mentions": [[0, len(EVIL), "link"]]},
        {"id": "Q1/../x", "name": "b", "type": None, "mentions": [[len(text) - len(EVIL), len(text), EVIL]]},
        {"id": "Q42", "name": "c\ud800", "type": None, "mentions": [[len(EVIL) + 1, len(EVIL) + 3, "ner"]]},
    ]
    document = {"title": EVIL, "page_id": EVIL, "chunk": EVIL, "text": text, "entities": entities}
    document |= {"relations": [[0, 1, EVIL]], "barred": [[1, 0]]}
    corpus = write_corpus(
        tmp_path / "<script>corpus",
        [document],
        relation=EVIL,
        settings={EVIL: {EVIL: EVIL}},
        inputs=[{"path": EVIL, "bytes": 1, "sha256": EVIL}],
        ner={"enabled": True, "model": EVIL},
        counts={EVIL: {EVIL: 3}, "pages": {"pages read": 1, f"left out: {EVIL}": 1}},
        incomplete=[{"file": EVIL, "place": EVIL, "text": EVIL}],
        failed_units=[EVIL],
        request=EVIL,
    )
    audit(corpus, tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "<script" not in text
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "link", "svg", "form", "base"}
    known = {
        "class",
        "id",
        "href",
        "src",
        "alt",
        "title",
        "scope",
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "style",
    }
    for _, attrs in page.tags:
        assert attrs.keys() <= known | {"rel"}
        assert (attrs.get("src") or "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
        link = attrs.get("href") or "#"
        assert link[0] == "#" or link == "https://www.wikidata.org/wiki/Q42"
    policy = [attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert " ".join(EVIL.replace("\x07", "").split()) in " ".join("".join(page.texts).replace("\x07", "").split())
    pictures = [base64.b64decode(found) for found in re.findall(r"base64,([^\"]+)", text)]
    assert pictures
    assert not any(b"<script" in picture for picture in pictures)


def test_distributions_and_frequencies_against_naive_counts() -> None:
    draw = random.Random(0)
    values = [min(int(draw.paretovariate(0.8)), 50_000) for _ in range(3000)]
    counted, bounded = Distribution(limit=50_000), Distribution(limit=10)
    for value in values:
        counted.add(value)
        bounded.add(value)
    for share in (0.05, 0.25, 0.5, 0.95, 0.995, 1.0):
        assert counted.quantile(share) == int(np.quantile(values, share, method="inverted_cdf"))
    assert (bounded.number, bounded.total, bounded.largest) == (3000, sum(values), max(values))
    assert len(bounded.counts) == 10
    assert bounded.quantile(0.5) == counted.quantile(0.5)
    assert Distribution().quantile(0.5) == 0

    words = [(f"Q{min(int(draw.paretovariate(0.7)), 10**6)}", "name") for _ in range(5000)]
    naive = Counter(words)
    for pending in (1, 7, 100_000):
        frequencies = Frequencies(kept=30, pending=pending)
        for word in words:
            frequencies.add(*word)
        assert frequencies.counts.tolist() == sorted(naive.values(), reverse=True)
        found = frequencies.most_frequent(20)
        assert [number for _, number in found] == sorted(naive.values(), reverse=True)[:20]
        assert all(naive[name] == number for name, number in found)
        assert len(frequencies._names) == 30
        assert found == sorted(found, key=lambda entry: (-entry[1], entry[0]))


def test_reach_of_a_pair_is_by_any_of_its_mentions() -> None:
    document = small_document(text="Ann left. Bob met Ann. Cy stayed.")
    for entity, spans in zip(document["entities"], ([[0, 3, "ner"], [18, 21, "ner"]], [[10, 13, "ner"]]), strict=True):
        entity["mentions"] = spans
    third = {"id": "Q3", "name": "Cy", "type": None, "mentions": [[23, 25, "ner"]]}
    document["entities"].append(third)
    document["relations"] = [[0, 1, "P1"], [0, 1, "P2"], [2, 0, "P1"]]
    assert reach_of_pairs(document) == {(0, 1): True, (2, 0): False}
    counts = CorpusCounts()
    counts.add(document)
    assert counts.reach == {"single sentence": 1, "cross-sentence": 1}
    assert (counts.pairs.total, counts.labels.total, counts.kinds_of_relation.total) == (2, 3, 2)
    assert counts.types == {"(no type)": 2, "GPE": 1}


@pytest.mark.usefixtures("without_pictures")
def test_refusals_are_one_error_with_status_2(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(text: str, corpus: Path, *more: str) -> None:
        out = tmp_path / "refused.html"
        assert main(["audit", str(corpus), "--out", str(out), *more]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("audit: documents")]
        assert len(lines) == 1
        assert re.match(r"erica-dist audit: error: ", lines[0])
        assert text in lines[0]
        assert not out.exists()

    corpus = write_corpus(tmp_path / "corpus", [small_document()])
    shard = corpus / "documents-00000.tar"
    refused("there is no folder", tmp_path / "nowhere")
    refused("holds no manifest.json", tmp_path)
    refused("knowledge-base", world / "kb")
    refused("holds no documents", write_corpus(tmp_path / "empty", [], shards=[]))
    refused("must be at least 0", corpus, "--documents", "-1")
    assert main(["audit", str(corpus), "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert main(["audit", str(corpus), "--out", str(tmp_path / "none" / "audit.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err

    whole = shard.read_bytes()
    shard.write_bytes(whole.replace(b'"a b"', b'"a c"'))
    refused(f"{shard} is damaged", corpus)
    shard.write_bytes(whole[:-600])
    refused(f"{shard} is damaged", corpus)
    shard.unlink()
    refused(f"cannot read {shard}", corpus)
    shard.write_bytes(whole)
    assert main(["audit", str(corpus), "--out", str(tmp_path / "fine.html")]) == 0

    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "outside": (small_document(text="a"), "lies outside the text"),
        "unknown": (small_document(relations=[[0, 1, "P2"]]), "not in the manifest's table"),
        "untitled": ({key: value for key, value in small_document().items() if key != "title"}, "lacks title"),
        "number": (small_document(text=5), "of a wrong kind"),
        "id": (small_document(entities=[{"id": 1, "name": "a", "type": None, "mentions": [[0, 1, "x"]]}]), "0: "),
    }
    for name, (document, text) in wrong.items():
        refused(text, write_corpus(tmp_path / name, [document]))
    refused("its manifest says 3", write_corpus(tmp_path / "fewer", [small_document()] * 2, documents=3))
    manifest = json.loads((corpus / "manifest.json").read_text())
    del manifest["counts"]
    write_manifest(corpus, manifest)
    refused("lacks counts", corpus)


@pytest.mark.usefixtures("without_pictures")
def test_what_is_missing_is_said_first(tmp_path: Path) -> None:
    missing = [{"file": "dump.xml", "place": "byte 17", "text": "cut off"}]
    failed = [{"file": "dump.xml", "place": f"page {number}", "pages": 3, "error": "no luck"} for number in range(30)]
    corpus = write_corpus(
        tmp_path / "corpus",
        [small_document()],
        incomplete=missing,
        failed_units=failed,
        failed_share={"units": 0.5, "pages": 0.25},
    )
    audit(corpus, tmp_path / "audit.html")
    page = Page((tmp_path / "audit.html").read_text())
    text = "".join(page.texts).partition("Pages")[0]
    for part in ("byte 17", "30 failed units", "25.0 % of the pages", "page 19", "and 10 more"):
        assert part in text
    assert "page 20" not in text
    assert ("complete", "no") in page.rows
    whole = write_corpus(
        tmp_path / "whole",
        [small_document()],
        incomplete=[],
        failed_units=[],
        failed_share={"units": 0.0, "pages": 0.0},
    )
    with pytest.raises(UserError, match="at least 0"):
        audit(whole, tmp_path / "whole.html", documents=-1)
    audit(whole, tmp_path / "whole.html")
    page = Page((tmp_path / "whole.html").read_text())
    assert ("complete", "yes") in page.rows
    assert not any(attrs.get("class") == "warning" for _, attrs in page.tags)
