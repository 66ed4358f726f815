"""What counts as a mention, which of overlapping spans stays, and what it is linked to."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from data_tools.common_words import read_common_words
from data_tools.documents import Passage
from data_tools.kb import KnowledgeBase
from data_tools.linking import NO_ENTITY, Linker, PageContext
from data_tools.mentions import Mention, NerSpan, Possible, possible_mentions, select_mentions
from data_tools.name_looks import MentionRules, counts_as_name, stands_alone
from data_tools.pages import Link
from data_tools.wikidata.builder import build_kb
from erica_dist.config import KnowledgeBaseJob, RayConfig
from erica_dist.errors import UserError
from tests.corpora import entity, make_kb


@pytest.fixture(scope="module")
def linker(tmp_path_factory: pytest.TempPathFactory) -> Linker:
    return Linker(KnowledgeBase.open(make_kb(tmp_path_factory.mktemp("kb"))), 0.5)


def passage(text: str, links: dict[str, str] | None = None, title: str = "Nothing", chunk: int = 0) -> Passage:
    spans = tuple(
        Link(text.index(surface), text.index(surface) + len(surface), target)
        for surface, target in (links or {}).items()
    )
    return Passage(1, title, chunk, text, spans, 10)


def chosen(
    linker: Linker,
    source: Passage,
    spans: dict[str, str] | None = None,
    before: tuple[Passage, ...] = (),
    after: tuple[Passage, ...] = (),
) -> list[tuple[str, str, str, str]]:
    """(surface, entity id, source, label) of the mentions; spans: text of a NER span -> its label, None: no NER."""
    context = linker.page(source.title, [*before, source, *after])
    found = None
    if spans is not None:
        found = [
            NerSpan(source.text.index(surface), source.text.index(surface) + len(surface), label)
            for surface, label in spans.items()
        ]
    mentions = select_mentions(source, possible_mentions(source, linker, context), context, found, Counter())
    return [(source.text[m.start : m.end], linker.kb.entity_id(m.entity), m.source, m.label) for m in mentions]


@pytest.mark.parametrize(
    ("surface", "expected"),
    [("Paris", True), ("paris", False), ("It", False), ("IT", True), ("May", False), ("X", False), ("1984", False),
     ("iPhone", True), ("F1", True), ("de Gaulle", True), ("the", False), ("First", False), ("Union", False),
     ("the Union", False), ("The First", False), ("UNION", True), ("the IT", True), ("The X", False),
     ("27th", False), ("in 1965", False), ("1990s", False), ("In Paris", True), ("747-400", True),
     ("The Who", False), ("Soviet Union", True), ("the Beatles", True), ("The 1984", False), ("Lincoln", True)],
)  # fmt: skip
def test_looks_of_a_name(surface: str, expected: bool) -> None:
    assert counts_as_name(surface, read_common_words()) is expected


def test_common_words_of_another_language_and_excluded_names(linker: Linker, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("rome # remark\nparis Vienna\n")
    rules = MentionRules(read_common_words(words), frozenset(["Berlin"]))
    source = passage("Rome, PARIS, Vienna, Berlin, It, Athens and old Berlin.", {"old Berlin": "Berlin"})
    context = linker.page("Nothing", [source])
    found = [source.text[one.start : one.end] for one in possible_mentions(source, linker, context, rules)]
    assert found == ["PARIS", "Athens", "old Berlin"]
    assert rules.identity()["excluded names"] == ["Berlin"]
    assert rules.identity() != MentionRules(rules.common).identity() != MentionRules(read_common_words()).identity()
    words.write_text("# nothing\n")
    with pytest.raises(UserError, match="holds no word"):
        read_common_words(words)
    with pytest.raises(UserError, match="cannot read"):
        read_common_words(tmp_path / "missing")


@pytest.mark.parametrize(
    ("surface", "expected"),
    [("New York", True), ("The French", False), ("World War", True), ("20th century", False), ("War of 1812", True),
     ("Paris", False), ("May Day", False), ("Coca-Cola", False), ("de Gaulle", False)],
)  # fmt: skip
def test_which_names_stand_alone(surface: str, expected: bool) -> None:
    assert stands_alone(surface) is expected


def test_a_name_within_a_longer_one_that_stands_alone_is_none(linker: Linker) -> None:
    """Whatever NER says of it; within a longer one that needs support, and beside it, it may be one."""
    text = "Information Technology. The Information Technology of Rome."
    source = passage(text, title="Rome")
    context = linker.page("Rome", [source])
    context.surfaces["Technology of Rome"] = (entity(linker.kb, "Q101"), (0, -1))
    found = [text[one.start : one.end] for one in possible_mentions(source, linker, context)]
    assert found == ["Information Technology", "Information Technology", "Technology of Rome"]


def test_names_are_whole_words_in_their_own_case(linker: Linker) -> None:
    source = passage("Paris and Berlin; Parisian Romes, ROME and rome. It is in May 1984, IT too.")
    assert chosen(linker, source) == [
        ("Paris", "Q101", "name", ""),
        ("Berlin", "Q102", "name", ""),
        ("IT", "Q906", "name", ""),
    ]


def test_ner_confirms_other_cases_and_gives_the_type(linker: Linker) -> None:
    source = passage("ROME and the Spain of old. It went.")
    assert chosen(linker, source, {"ROME": "GPE", "the Spain": "GPE", "It": "ORG"}) == [
        ("ROME", "Q103", "ner", "GPE"),
        ("Spain", "Q4", "ner", "GPE"),
    ]


def test_quotes_are_no_part_of_a_name(linker: Linker) -> None:
    source = passage('He read "Information Technology".')
    assert chosen(linker, source, {'"Information Technology".': "WORK_OF_ART"}) == []
    assert chosen(linker, source, {'"Information Technology"': "ORG"}) == [
        ("Information Technology", "Q906", "ner", "ORG")
    ]


def test_a_name_in_its_own_case_goes_before_a_longer_one_in_another(linker: Linker) -> None:
    """As where "The France" is the name of a ship."""
    source = passage("In the France of old.")
    ship, land = entity(linker.kb, "Q8"), entity(linker.kb, "Q1")
    possible = [Possible(3, 13, "name", ship, exact=False), Possible(7, 13, "name", land)]
    for label, found in (("GPE", land), ("DATE", None)):
        mentions = select_mentions(source, possible, PageContext(), [NerSpan(3, 13, label)], Counter())
        assert [(one.start, one.end, one.entity) for one in mentions] == ([] if found is None else [(7, 13, found)])
    assert select_mentions(source, possible[:1], PageContext(), [NerSpan(3, 13, "FAC")], Counter())[0].entity == ship


def test_possessives_are_cut_off_unless_they_belong_to_the_name(linker: Linker) -> None:
    source = passage("He ate at McDonald's in Germany's north. Then Greece’s turn.")
    spans = {"McDonald's": "ORG", "Germany's": "GPE", " Greece’s ": "GPE"}
    assert chosen(linker, source, spans) == [
        ("McDonald's", "Q905", "ner", "ORG"),
        ("Germany", "Q2", "ner", "GPE"),
        ("Greece", "Q8", "ner", "GPE"),
    ]


def test_links_beat_ner_and_ner_beats_shorter_names(linker: Linker) -> None:
    source = passage(
        "The University of Rome lies in old Rome town, in Paris Hilton and in Italy.", {"old Rome": "Rome"}
    )
    spans = {"The University of Rome": "ORG", "Rome town": "GPE", "Paris Hilton": "PERSON", "Italy": "GPE"}
    assert chosen(linker, source, spans) == [("old Rome", "Q103", "link", ""), ("Italy", "Q3", "ner", "GPE")]


def test_dates_and_numbers_are_no_mentions_and_hide_the_names_within(linker: Linker) -> None:
    source = passage("In Rome, Berlin 1984 and Paris.")
    assert chosen(linker, source, {"Rome": "DATE", "Berlin 1984": "CARDINAL", "Paris": "GPE"}) == [
        ("Paris", "Q101", "ner", "GPE")
    ]


def test_a_single_word_that_ner_does_not_know_needs_support(linker: Linker) -> None:
    text = "Paris Street and Rome. Later Old Rome fell. In Athens, J. Berlin and Vienna-Schwechat."
    # the second Rome is a name of an entity that NER found before, Athens stands by itself, the others in longer names
    assert chosen(linker, passage(text), {"Rome": "GPE"}) == [
        ("Rome", "Q103", "ner", "GPE"),
        ("Rome", "Q103", "name", ""),
        ("Athens", "Q108", "name", ""),
    ]
    everything = ["Paris", "Rome", "Rome", "Athens", "Berlin", "Vienna"]
    assert [mention[0] for mention in chosen(linker, passage(text))] == everything


def test_a_link_counts_in_lower_case_and_an_unknown_target_hides_the_name(linker: Linker) -> None:
    source = passage("the old capital and Berlin town.", {"old capital": "Paris", "Berlin town": "Berlin (Ohio)"})
    assert chosen(linker, source) == [("old capital", "Q101", "link", "")]


def test_a_surface_stands_for_what_it_was_linked_to_from_then_on(linker: Linker) -> None:
    first = passage("Lutetia, then Lutetia. The City too.", {"The City": "Rome"})
    second = passage("Lutetia again, in the City; The City.", {"Lutetia": "Paris"}, chunk=1)
    assert chosen(linker, first, after=(second,)) == [("The City", "Q103", "link", "")]
    assert chosen(linker, second, before=(first,)) == [
        ("Lutetia", "Q101", "link", ""),
        ("The City", "Q103", "name", ""),
    ]
    after = passage("Lutetia!", chunk=2)
    assert chosen(linker, after, before=(first, second)) == [("Lutetia", "Q101", "name", "")]


def test_a_surface_linked_to_two_pages_says_nothing(linker: Linker) -> None:
    first = passage("The City here.", {"The City": "Rome"})
    second = passage("The City there. The City.", {"The City": "Paris"}, chunk=1)
    assert chosen(linker, second, before=(first,)) == [("The City", "Q101", "link", "")]


def test_the_page_itself_is_meant_by_its_title_without_the_qualifier(linker: Linker) -> None:
    assert chosen(linker, passage("Rome grew.", title="Rome (city)")) == [("Rome", "Q103", "name", "")]
    assert linker.page("Rome (city)", []).own == NO_ENTITY
    # French is a name of France, whose page this is
    source = passage("The French came.", title="France")
    assert chosen(linker, source, {}) == [("French", "Q1", "name", "")]


def test_ambiguous_names_need_the_page_or_the_margin(linker: Linker) -> None:
    georgia = passage("Georgia lies there.")
    assert chosen(linker, georgia) == []
    kb = linker.kb
    assert linker.surface("Georgia", linker.page("Nothing", [georgia])) == NO_ENTITY
    for own in ("Q901", "Q902"):
        context = linker.page("Nothing", [georgia])
        context.linked = frozenset({entity(kb, own)})
        assert kb.entity_id(linker.surface("Georgia", context)) == own
    context.linked = frozenset({entity(kb, "Q901"), entity(kb, "Q902")})
    assert linker.surface("Georgia", context) == NO_ENTITY
    assert Linker(kb, 0.0).surface("Georgia", linker.page("Nothing", [])) in (entity(kb, "Q901"), entity(kb, "Q902"))


def test_mentions_never_overlap_and_lie_in_the_text(linker: Linker) -> None:
    text = "Rome Rome's Paris, Berlin's Vienna the Rome of Athens IT"
    source = passage(text, {"Rome's Paris": "Paris", "Berlin's": "Berlin"})
    context = linker.page("Rome", [source])
    possible = possible_mentions(source, linker, context)
    spans = [NerSpan(0, 11, "GPE"), NerSpan(5, 17, "ORG"), NerSpan(19, 34, "GPE"), NerSpan(35, 43, "GPE")]
    mentions: list[Mention] = select_mentions(source, possible, context, spans, Counter())
    borders = [(mention.start, mention.end) for mention in mentions]
    assert borders == sorted(borders)
    assert all(first[1] <= second[0] for first, second in pairwise(borders))
    assert all(0 <= start < end <= len(text) and text[start:end] == text[start:end].strip() for start, end in borders)


def test_an_article_makes_no_other_name(tmp_path: Path) -> None:
    """As where "the United Kingdom" is a name of the wrong one, and "The Civil War" of a film."""
    tables = {
        "entities": "Q1\tUnited Kingdom\nQ2\tOld Kingdom|the United Kingdom\nQ3\tThe Civil War\nQ4\tThe Hague\n",
        "triples": "Q1\tP1\tQ2\n",
        "relations": "P1\tfirst\n",
    }
    for name, content in tables.items():
        (tmp_path / f"{name}.tsv").write_text(content)
    files = {name: str(tmp_path / f"{name}.tsv") for name in tables}
    build_kb(KnowledgeBaseJob(**files, out=str(tmp_path / "kb"), ray=RayConfig(disabled=True)))
    linker = Linker(KnowledgeBase.open(tmp_path / "kb"), 0.5)
    text = "In the United Kingdom after the Civil War. The Civil War, The Hague."
    rules = MentionRules(read_common_words(), frozenset(["Civil War"]))
    found = possible_mentions(passage(text), linker, PageContext(), rules)
    assert [(text[one.start : one.end], linker.kb.entity_id(one.entity)) for one in found] == [
        ("United Kingdom", "Q1"),
        ("The Hague", "Q4"),
    ]
