"""The steps on real text with a real knowledge base, where the shared folder is present."""

from __future__ import annotations

import dataclasses
import itertools
import lzma
from collections import Counter, defaultdict
from pathlib import Path
from typing import Literal

import pytest

from data_tools.pages import Page
from data_tools.steps import Document, documents_of, load_tools
from data_tools.wikidata.builder import build_kb
from data_tools.wikipedia.survey import read_source
from erica_dist.config import CorpusJob, FilterConfig, KnowledgeBaseJob, NerConfig, RayConfig
from tests.corpora import make_tokenizer
from tests.shared_files import shared

ARTICLES = 10


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = shared("data", "kb-wikidata")
    text = shared("data", "wikipedia-text", "wiki_AA_00-24.txt.xz")
    folder = tmp_path_factory.mktemp("real")
    make_tokenizer(folder)
    build_kb(
        KnowledgeBaseJob(
            entities=str(tables / "entities.tsv.gz"),
            triples=str(tables / "triples.tsv.gz"),
            relations=str(tables / "relations.json.gz"),
            out=str(folder / "kb"),
            ray=RayConfig(disabled=True),
        )
    )
    with lzma.open(text, "rt", encoding="utf-8") as lines, (folder / "wiki_00").open("w", encoding="utf-8") as file:
        left = ARTICLES
        while left:
            line = next(lines)
            file.write(line)
            left -= line.startswith("</doc>")
    return folder


@pytest.fixture(scope="module")
def pages(world: Path) -> list[tuple[int, Page]]:
    found = list(itertools.islice(read_source(world / "wiki_00")[0], ARTICLES))
    assert len(found) == ARTICLES
    return list(enumerate(found))


def job_of(world: Path) -> CorpusJob:
    return CorpusJob(
        inputs=[str(world / "wiki_00")],
        kb=str(world / "kb"),
        tokenizer=str(world / "tokenizer"),
        out=str(world / "unused"),
        filters=FilterConfig(count="words", min_tokens=90, max_tokens=400),
    )


@pytest.mark.parametrize("unit", ["section", "paragraph"])
def test_skipping_before_ner_loses_nothing(
    world: Path, pages: list[tuple[int, Page]], unit: Literal["section", "paragraph"]
) -> None:
    """Word for word, mention for mention: the documents with the filter on possible mentions are those without it."""
    job = dataclasses.replace(job_of(world), unit=unit)
    tools = load_tools(job)
    skipping: dict[str, Counter[str]] = defaultdict(Counter)
    everything: dict[str, Counter[str]] = defaultdict(Counter)
    with_skipping = list(documents_of(pages, tools, skipping, skip=True))
    without = list(documents_of(pages, tools, everything, skip=False))
    assert with_skipping == without
    assert len(without) > 5
    assert skipping["words"]["seen by NER"] < 0.4 * everything["words"]["seen by NER"]
    sources = {mention[2] for one in without for entity in one.content["entities"] for mention in entity["mentions"]}
    assert sources == {"ner", "name"}


def test_without_ner_it_is_another_corpus(world: Path, pages: list[tuple[int, Page]]) -> None:
    job = dataclasses.replace(job_of(world), ner=NerConfig(enabled=False))
    tools = load_tools(job)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    found = list(documents_of(pages, tools, counts))
    assert found == list(documents_of(pages, tools, defaultdict(Counter), skip=False))
    assert counts["words"]["seen by NER"] == 0
    assert {entity["type"] for one in found for entity in one.content["entities"]} == {None}
    capped = dataclasses.replace(tools, job=dataclasses.replace(job))
    capped.job.labelling.max_per_relation = 2
    for one in documents_of(pages, capped, defaultdict(Counter)):
        relations = Counter(relation for _, _, relation in one.content["relations"])
        assert max(relations.values()) <= 2


def test_doubtful_names_are_left_out_unless_they_are_kept(world: Path, pages: list[tuple[int, Page]]) -> None:
    job = job_of(world)
    tools = load_tools(job)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    without = list(documents_of(pages, tools, counts))
    job.mentions.keep_doubtful = True
    kept = list(documents_of(pages, tools, defaultdict(Counter)))
    languages = {"Spanish", "French", "English", "German", "Russian"}

    def peoples(documents: list[Document]) -> int:
        """Languages that NER calls a people."""
        entities = [entity for one in documents for entity in one.content["entities"]]
        return sum(entity["type"] == "NORP" and entity["name"] in languages for entity in entities)

    assert counts["mentions"]["in doubt: a people, not its language"] > 0
    assert peoples(kept) > peoples(without) == 0
    assert len(kept) >= len(without)
