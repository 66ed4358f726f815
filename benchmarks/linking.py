"""Linking accuracy: a seeded tenth of the page links is hidden and linked again by name.

    .venv/bin/python benchmarks/linking.py                         the real dumps in ../shared, all ten tenths in turn
    .venv/bin/python benchmarks/linking.py --dump FILE --rounds 1  another MediaWiki dump, one tenth

Whether a link is hidden depends on its page's id and its number in the page only. What is left, with its links, is
written as pages of their own: `count-links` counts these, so no hidden link is in the statistics, and the hidden
surfaces are linked as the build links names, with the links that are left on the page as context. Counted are links to
entities of the knowledge base, from surfaces that count as names where they are not linked. "Exact name, last one wins"
is the reference pipeline's rule (thunlp/ERICA): a dictionary of lower-cased names, filled in the order of the entities,
of those that have a fact, for names of three characters and more.

The knowledge base is both of ../shared/data, joined by Q ids: names are more ambiguous in it than in either.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import html
import itertools
import json
import os
import tempfile
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from data_tools.documents import Passage
from data_tools.kb import KnowledgeBase
from data_tools.linking import NO_ENTITY, Linker
from data_tools.name_looks import DEFAULT_RULES, counts_as_name
from data_tools.pages import Link, Page
from data_tools.wikidata.builder import build_kb
from data_tools.wikidata.tables import read_entities
from data_tools.wikipedia.link_counts import count_links
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.config import KnowledgeBaseJob, LinkCountsJob, LinkingConfig, LinkPriorConfig, RayConfig

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
KNOWLEDGE = [DATA / "kb-wikidata", DATA / "kb-freebase"]
DUMPS = [DATA / "dumps" / f"{name}.xml.bz2" for name in ("enwiki-shortened-pages-articles", "dbpedia-minidump-en")]
OURS, PLAIN, REFERENCE = "ours", "ours, no statistics", "exact name, last one wins"
POPULAR, POPULAR_PLAIN = "most popular, always", "most popular, no statistics"
HERE = RayConfig(disabled=True)


@dataclass(frozen=True)
class Tables:
    """The tables that a knowledge base is made of."""

    entities: str
    triples: str
    relations: str

    def build(self, out: Path, counts: str = "") -> KnowledgeBase:
        links = LinkPriorConfig(counts=counts)
        job = KnowledgeBaseJob(
            entities=self.entities, triples=self.triples, relations=self.relations, out=str(out), links=links, ray=HERE
        )
        build_kb(job)
        return KnowledgeBase.open(out)


@dataclass(frozen=True)
class Answered:
    """A hidden link: the entity that it leads to (-1: none that is known), and the entity that each rule gives."""

    title: str
    surface: str
    target: str
    gold: int
    candidates: int  # entities that bear the name, whatever its case
    inlinks: int  # of the gold entity among the links that are left
    answers: Mapping[str, int]


@dataclass
class Half:
    """A page without its hidden links, and these with their paragraphs."""

    page: Page
    hidden: list[tuple[int, Link]] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------ hiding


def draw(seed: int, page_id: int, number: int) -> float:
    """A number in [0, 1) for the link of this number in the page."""
    digest = hashlib.blake2b(f"{seed} {page_id} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def hide(page: Page, seed: int, first: float, last: float) -> Half:
    """`page` without the links whose draw is in [first, last), and those."""
    half = Half(page)
    paragraphs = []
    number = 0
    for place, paragraph in enumerate(page.paragraphs):
        left = []
        for link in paragraph.links:
            if first <= draw(seed, page.page_id, number) < last:
                half.hidden.append((place, link))
            else:
                left.append(link)
            number += 1
        paragraphs.append(replace(paragraph, links=tuple(left)))
    half.page = replace(page, paragraphs=tuple(paragraphs))
    return half


def as_line(page: Page) -> str:
    """The page as a JSON line of WikiExtractor, which can hold links."""

    def pieces(text: str, links: Sequence[Link]) -> Iterator[str]:
        last = 0
        for link in links:
            yield html.escape(text[last : link.start], quote=False)
            surface = html.escape(text[link.start : link.end], quote=False)
            yield f'<a href="{urllib.parse.quote(link.target)}">{surface}</a>'
            last = link.end
        yield html.escape(text[last:], quote=False)

    text = "\n".join("".join(pieces(paragraph.text, paragraph.links)) for paragraph in page.paragraphs)
    return json.dumps({"id": str(page.page_id), "url": "", "title": page.title, "text": text}) + "\n"


# ------------------------------------------------------------------------------------------------ linking again


def reference_names(entities: str, kb: KnowledgeBase) -> tuple[dict[str, int], Counter[str]]:
    """Lower-cased name -> the last entity of the table that bears it and has a fact; and how many bear it."""
    names: dict[str, int] = {}
    bearers: Counter[str] = Counter()
    for entity in read_entities(entities):
        number = kb.entity_number(entity.id)
        bearers.update({name.lower() for name in entity.names})
        if len(kb.neighbours(number)):
            names.update((name.lower(), number) for name in entity.names)
    return names, bearers


def link_again(
    halves: Iterable[Half],
    linkers: Mapping[str, Linker],
    names: Mapping[str, int],
    bearers: Mapping[str, int],
    gold: Callable[[str], int],
) -> Iterator[Answered]:
    """Each hidden link whose surface counts as a name, linked by all rules. `linkers`: ours, by name of the rule."""
    halves = list(halves)
    inlinks = Counter(
        gold(link.target) for half in halves for paragraph in half.page.paragraphs for link in paragraph.links
    )
    for half in halves:
        page = half.page
        passages = [
            Passage(page.page_id, page.title, place, paragraph.text, paragraph.links, 0)
            for place, paragraph in enumerate(page.paragraphs)
        ]
        contexts = {rule: linker.page(page.title, passages) for rule, linker in linkers.items()}
        for place, link in half.hidden:
            surface = page.paragraphs[place].text[link.start : link.end].strip()
            if not counts_as_name(surface, DEFAULT_RULES.common):
                continue
            answers: dict[str, int] = {}
            for rule, linker in linkers.items():
                linked = contexts[rule].surfaces.get(surface)
                before = linked is not None and linked[1] < (place, link.start)
                answers[rule] = linked[0] if linked and before else linker.surface(surface, contexts[rule])
                popular = POPULAR if rule == OURS else POPULAR_PLAIN
                entities = linker.name(surface).entities
                answers[popular] = entities[0] if entities else NO_ENTITY
            answers[REFERENCE] = names.get(surface.lower(), NO_ENTITY) if len(surface) > 2 else NO_ENTITY
            entity = gold(link.target)
            yield Answered(
                page.title, surface, link.target, entity, bearers.get(surface.lower(), 0), inlinks[entity], answers
            )


def accuracy(
    pages: Sequence[Page], tables: Tables, folder: Path, share: float, rounds: int, seed: int
) -> list[Answered]:
    """All hidden links of `rounds` disjoint shares, each with its own statistics of links."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = tables.build(folder / "plain")
    names, bearers = reference_names(tables.entities, plain)
    margin = LinkingConfig().min_margin
    answered: list[Answered] = []
    for number in range(rounds):
        halves = [hide(page, seed, number * share, (number + 1) * share) for page in pages]
        lines = folder / f"left-{number}.jsonl"
        with lines.open("w", encoding="utf-8") as file:
            file.writelines(as_line(half.page) for half in halves)
        count_links(LinkCountsJob(inputs=[str(lines)], out=str(folder / f"links-{number}"), ray=HERE))
        counted = tables.build(folder / f"counted-{number}", str(folder / f"links-{number}"))
        linkers = {OURS: Linker(counted, margin), PLAIN: Linker(plain, margin)}
        answered += link_again(halves, linkers, names, bearers, plain.entity_of_title)
    return answered


# ------------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True)
class Score:
    links: int
    right: int
    wrong: int

    @property
    def precision(self) -> float:
        return self.right / max(self.right + self.wrong, 1)

    @property
    def recall(self) -> float:
        return self.right / max(self.links, 1)


def score(answered: Sequence[Answered], rule: str) -> Score:
    """Of the links whose entity is known."""
    known = [link for link in answered if link.gold != NO_ENTITY]
    right = sum(link.answers[rule] == link.gold for link in known)
    said = sum(link.answers[rule] != NO_ENTITY for link in known)
    return Score(len(known), right, said - right)


def groups(answered: Sequence[Answered]) -> Iterator[tuple[str, list[Answered]]]:
    """All, quarters by popularity, and the ambiguous names."""
    known = [link for link in answered if link.gold != NO_ENTITY]
    yield "all", known
    borders = [0, *np.quantile([link.inlinks for link in known], [0.25, 0.5, 0.75]).astype(int).tolist(), 2**60]
    for low, high in itertools.pairwise(borders):
        inside = [link for link in known if low <= link.inlinks < high]
        if inside:
            yield f"{low:,} to {high - 1:,} other links" if high < 2**60 else f"{low:,} other links or more", inside
    yield "names that several bear", [link for link in known if link.candidates > 1]


def accuracy_table(answered: Sequence[Answered], title: str) -> Table:
    table = Table("links", "rule", "precision", "recall", "abstained", "errors", "of the reference's", title=title)
    rules = [OURS, PLAIN, REFERENCE, POPULAR, POPULAR_PLAIN]
    for name, links in groups(answered):
        base = score(links, REFERENCE).wrong
        for rule in rules:
            got = score(links, rule)
            abstained = got.links - got.right - got.wrong
            cells = [f"{got.precision:.2%}", f"{got.recall:.2%}", f"{abstained:,}", f"{got.wrong:,}"]
            table.add_row(
                f"{name}: {len(links):,}" if rule == OURS else "", rule, *cells, f"{got.wrong / max(base, 1):.0%}"
            )
        table.add_section()
    unknown = [link for link in answered if link.gold == NO_ENTITY]
    for rule in rules:
        linked = sum(link.answers[rule] != NO_ENTITY for link in unknown)
        name = f"to no known entity: {len(unknown):,}" if rule == OURS else ""
        table.add_row(name, rule, "", "", f"{len(unknown) - linked:,}", f"{linked:,} linked", "")
    return table


# ------------------------------------------------------------------------------------------------ input


def joined_tables(folders: Sequence[Path], out: Path) -> Tables:
    """The tables of several knowledge bases of ../shared as one, entities joined by Q ids and in their order."""
    names: dict[str, list[str]] = defaultdict(list)
    titles: dict[str, str] = {}
    triples: list[tuple[str, str, str]] = []
    for folder in folders:
        ids: dict[str, str] = {}
        for *identifiers, of_entity in _rows(folder / "entities.tsv.gz"):
            ids[identifiers[0]] = identifiers[-1]
            names[identifiers[-1]] += [
                name for name in of_entity.split("|") if name and name not in names[identifiers[-1]]
            ]
        if (folder / "enwiki-titles.tsv.gz").is_file():
            titles.update((row[0], row[1]) for row in _rows(folder / "enwiki-titles.tsv.gz"))
        triples += [(ids[head], relation, ids[tail]) for head, relation, tail in _rows(folder / "triples.tsv.gz")]
    paths = [out / f"{name}.tsv" for name in ("entities", "triples", "relations")]
    rows: list[Iterable[Sequence[str]]] = [
        [
            (entity, "|".join(names[entity]), *([titles[entity]] if entity in titles else []))
            for entity in sorted(names, key=lambda identifier: int(identifier[1:]))
        ],
        triples,
        [(relation, relation) for relation in sorted({relation for _, relation, _ in triples})],
    ]
    for path, of_table in zip(paths, rows, strict=True):
        path.write_text("".join("\t".join(row) + "\n" for row in of_table), encoding="utf-8")
    return Tables(*map(str, paths))


def _rows(path: Path) -> Iterator[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def read_pages(dumps: Sequence[Path], folder: Path, articles: int) -> list[Page]:
    """The articles of the dumps, redirects resolved; the first so many of each dump, 0: all."""
    pages: list[Page] = []
    for number, dump in enumerate(dumps):
        found: list[Page] = []
        for unit in plan_ranges([dump], 200, folder / f"redirects-{number}.npz"):
            found += read_unit(unit)[0]
            if articles and len(found) >= articles:
                break
        pages += found[:articles] if articles else found
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dump", type=Path, nargs="+", default=DUMPS, help="MediaWiki dumps, taken together")
    parser.add_argument("--kb", type=Path, nargs="+", default=KNOWLEDGE, help="folders of tables as in ../shared/data")
    parser.add_argument("--articles", type=int, default=0, help="the first so many of each dump; 0: all")
    parser.add_argument("--share", type=float, default=0.1, help="of the links, hidden at a time")
    parser.add_argument("--rounds", type=int, default=10, help="disjoint shares hidden in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", type=int, default=0, help="show so many of our wrong links, drawn at random")
    args = parser.parse_args()
    if not 0 < args.share * args.rounds <= 1.0001:
        parser.error("--share times --rounds is the share of all links that is hidden in turn, at most 1")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stdout(quiet):
            pages = read_pages(args.dump, work, args.articles)
            tables = joined_tables(args.kb, work)
            answered = accuracy(pages, tables, work / "rounds", args.share, args.rounds, args.seed)
        names = KnowledgeBase.open(work / "rounds" / "plain").entity_name
        wrong = [link for link in answered if NO_ENTITY not in (link.gold, link.answers[OURS])]
        wrong = [link for link in wrong if link.gold != link.answers[OURS]]
        drawn = [wrong[place] for place in np.random.default_rng(args.seed).permutation(len(wrong))[: args.wrong]]
        shown = [f"{link.title} | {link.surface} -> {link.target}, not {names(link.answers[OURS])}" for link in drawn]
    links = sum(len(paragraph.links) for page in pages for paragraph in page.paragraphs)
    title = f"{len(pages):,} pages, {links:,} links; {args.rounds} x {args.share:.0%} of them hidden, seed {args.seed}"
    console = Console(width=150)
    table = accuracy_table(answered, title)
    for column in table.columns[2:]:
        column.justify = "right"
    console.print(table)
    for line in shown:
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
