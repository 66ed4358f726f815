"""What a name on a page stands for, rule by rule, and how often that is right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import linking as benchmark
from data_tools.kb import KnowledgeBase
from data_tools.linking import NO_ENTITY, Linker
from data_tools.pages import Link, Page, Paragraph
from tests.corpora import entity
from tests.linking_world import WORLD, context, make_tables
from tests.shared_files import shared


@pytest.fixture(scope="module")
def linker(tmp_path_factory: pytest.TempPathFactory) -> Linker:
    folder = tmp_path_factory.mktemp("linking")
    return Linker(make_tables(folder).build(folder / "kb"), 0.5)


def means(linker: Linker, surface: str, title: str = "Nothing", *links: str) -> str:
    number = linker.surface(surface, context(linker, title, *links))
    return "" if number == NO_ENTITY else linker.kb.entity_id(number)


# ------------------------------------------------------------------------------------------------ the order of rules


def test_a_target_is_a_title_and_else_a_name_in_this_very_case(linker: Linker) -> None:
    kb = linker.kb
    assert linker.target("Georgia (country)") == entity(kb, "Q10")
    assert linker.target("Paris") == entity(kb, "Q20")  # its title, although two bear the name
    assert linker.target("Republic of Georgia") == entity(kb, "Q10")
    assert linker.target("Georgia") == NO_ENTITY  # a name of two
    assert linker.target("republic of georgia") == NO_ENTITY


def test_the_page_itself_comes_before_its_links_and_these_before_the_prior(linker: Linker) -> None:
    assert means(linker, "Paris") == "Q20"  # by prior: it has 16 facts, the others one
    assert means(linker, "Paris", "Nothing", "Paris of Troy=Paris (mythology)") == "Q21"
    assert means(linker, "Paris", "Paris", "Paris of Troy=Paris (mythology)") == "Q20"
    # a link to an unlikely candidate says nothing
    assert means(linker, "Paris", "Nothing", "France") == "Q20"
    assert means(linker, "Paris", "Nothing", "France", "Paris of Troy=Paris (mythology)") == "Q21"
    assert means(linker, "Paris", "France") == "Q22"
    # linked both: the prior again
    assert means(linker, "Paris", "Nothing", "Paris of Troy=Paris (mythology)", "Paris") == "Q20"
    assert means(linker, "PARIS") == "Q20"
    assert means(linker, "Lutetia") == ""


def test_facts_of_what_the_page_links_to_decide_where_the_prior_does_not(linker: Linker) -> None:
    assert means(linker, "Georgia") == ""
    assert means(linker, "Georgia", "Nothing", "Tbilisi", "Armenia", "Turkey") == "Q10"
    assert means(linker, "Georgia", "Nothing", "Atlanta", "Florida") == "Q11"
    # the page's own entity counts as one
    assert means(linker, "Georgia", "Alabama", "Atlanta") == "Q11"
    # one is too few, two beside one of the other's do not lead by far
    assert means(linker, "Georgia", "Nothing", "Florida") == ""
    assert means(linker, "Georgia", "Nothing", "Tbilisi", "Armenia", "Florida") == ""
    # a link to a candidate itself says more
    assert means(linker, "Georgia", "Nothing", "Tbilisi", "Armenia", "Georgia=Georgia (U.S. state)") == "Q11"


def test_nothing_depends_on_the_order_of_tables_and_links(tmp_path: Path, linker: Linker) -> None:
    links = ["Tbilisi", "Armenia", "Turkey", "Paris (mythology)", "George Washington", "Elsa Einstein"]
    surfaces = ["Georgia", "Paris", "Washington", "Einstein", "georgia"]
    expected = [means(linker, surface, "Nothing", *links) for surface in surfaces]
    assert expected == ["Q10", "Q21", "Q34", "Q30", "Q10"]
    for seed in range(3):
        rng = random.Random(seed)
        world = [(*row[:3], rng.sample(row[3], len(row[3]))) for row in rng.sample(WORLD, len(WORLD))]
        rng.shuffle(links)
        other = Linker(make_tables(tmp_path / str(seed), world).build(tmp_path / str(seed) / "kb"), 0.5)
        assert [means(other, surface, "Nothing", *links) for surface in surfaces] == expected


# ------------------------------------------------------------------------------------------------ accuracy


def test_the_hidden_links_depend_on_page_and_number_only() -> None:
    paragraphs = tuple(
        Paragraph("A B C", (Link(0, 1, f"{place}a"), Link(2, 3, f"{place}b"), Link(4, 5, f"{place}c")))
        for place in range(50)
    )
    page = Page(7, "Title", paragraphs)
    shares = [benchmark.hide(page, 0, number / 10, (number + 1) / 10) for number in range(10)]
    hidden = [(place, link.target) for half in shares for place, link in half.hidden]
    assert len(hidden) == len(set(hidden)) == 150
    assert 5 <= len(shares[0].hidden) <= 25
    for half in shares:
        left = {(place, link) for place, paragraph in enumerate(half.page.paragraphs) for link in paragraph.links}
        assert left.isdisjoint(half.hidden)
        assert len(left) + len(half.hidden) == 150
    assert benchmark.hide(page, 0, 0, 0.1).hidden == shares[0].hidden
    assert benchmark.hide(page, 1, 0, 0.1).hidden != shares[0].hidden
    first = benchmark.hide(Page(7, "Other", paragraphs[:20]), 0, 0, 0.1)
    assert first.hidden == [place for place in shares[0].hidden if place[0] < 20]


def seeded_pages(count: int) -> list[Page]:
    """Pages that link `Georgia` to the country beside its neighbours, or to the state beside its own."""
    rng = random.Random(5)
    pages = []
    for number in range(count):
        state = rng.random() < 0.5
        near = ["Atlanta", "Florida", "Alabama"] if state else ["Tbilisi", "Armenia", "Turkey"]
        links, text = [], ""
        for surface, target in [
            *((name, name) for name in near),
            ("Georgia", "Georgia (U.S. state)" if state else "Georgia (country)"),
            ("Paris", "Paris"),
            ("Einstein", "Albert Einstein"),
        ]:
            links.append(Link(len(text), len(text) + len(surface), target))
            text += f"{surface} is there. "
        pages.append(Page(number + 1, f"Page {number}", (Paragraph(text, tuple(links)),)))
    return pages


def test_the_page_tells_apart_what_the_last_name_does_not(tmp_path: Path) -> None:
    pages = seeded_pages(200)
    answered = benchmark.accuracy(pages, make_tables(tmp_path), tmp_path / "work", 0.1, 2, seed=1)
    ours, reference = benchmark.score(answered, benchmark.OURS), benchmark.score(answered, benchmark.REFERENCE)
    links = ours.links
    assert links == reference.links > 200
    # the last bearer: Georgia is always the state, Paris always the Trojan
    of_surface = {surface: [link for link in answered if link.surface == surface] for surface in ("Georgia", "Paris")}
    last = {surface: benchmark.score(found, benchmark.REFERENCE) for surface, found in of_surface.items()}
    assert last["Paris"].right == 0
    assert 0 < last["Georgia"].right < last["Georgia"].links
    assert ours.wrong == 0
    assert ours.recall > 0.97 > reference.recall
    assert benchmark.score(answered, benchmark.PLAIN).wrong == 0
    # always the more popular one: half of the Georgias
    assert benchmark.score(of_surface["Georgia"], benchmark.POPULAR).wrong > 5


def test_hidden_links_are_in_no_statistics(tmp_path: Path) -> None:
    pages = seeded_pages(60)
    benchmark.accuracy(pages, make_tables(tmp_path), tmp_path / "work", 0.5, 1, seed=0)
    left = [benchmark.hide(page, 0, 0, 0.5) for page in pages]
    expected = sum(
        link.target == "Paris" for half in left for paragraph in half.page.paragraphs for link in paragraph.links
    )
    rows = [row.split("\t") for row in (tmp_path / "work" / "links-0" / "links.tsv").read_text().splitlines()]
    assert 10 < expected < 50
    assert [int(row[2]) for row in rows if row[0] == "Paris"] == [expected]
    assert KnowledgeBase.open(tmp_path / "work" / "counted-0").entity_of_title("Paris") >= 0


def test_half_the_errors_of_the_reference_on_real_links(tmp_path: Path) -> None:
    folders = [shared("data", "kb-wikidata"), shared("data", "kb-freebase")]
    dump = shared("data", "dumps", "enwiki-shortened-pages-articles.xml.bz2")
    pages = benchmark.read_pages([dump], tmp_path, articles=60)
    tables = benchmark.joined_tables(folders, tmp_path)
    answered = benchmark.accuracy(pages, tables, tmp_path / "work", share=0.25, rounds=1, seed=0)
    ours, reference = benchmark.score(answered, benchmark.OURS), benchmark.score(answered, benchmark.REFERENCE)
    plain = benchmark.score(answered, benchmark.PLAIN)
    assert ours.links > 300
    assert reference.wrong > 30
    for better in (ours, plain):
        assert better.wrong <= reference.wrong / 2
        assert better.recall >= reference.recall
