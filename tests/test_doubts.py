"""Mentions taken away again because their name most likely means another, and lists of names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from data_tools.documents import Passage
from data_tools.doubts import Doubts
from data_tools.filters import list_fault
from data_tools.kb import KnowledgeBase
from data_tools.labelling import Entity, Labelled
from data_tools.linking import PageContext
from data_tools.mentions import Mention
from data_tools.wikidata.builder import build_kb
from erica_dist.config import FilterConfig, KnowledgeBaseJob, RayConfig
from tests.corpora import entity

ENTITIES = """Q1\tHenry I of France|Henry
Q2\tDylan Thomas
Q3\tThomas Aquinas|Thomas
Q4\tGerman|German language
Q5\tGermany|German
Q6\tPlato
Q7\tMozambique|MZ
Q8\tUnited States|US
"""


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    folder = tmp_path_factory.mktemp("doubts")
    tables = {
        "entities": ENTITIES,
        "triples": "Q5\tP37\tQ4\nQ5\tP47\tQ7\n",
        "relations": "P37\tofficial\nP47\tborders\n",
    }
    for name, content in tables.items():
        (folder / f"{name}.tsv").write_text(content)
    files = {name: str(folder / f"{name}.tsv") for name in tables}
    build_kb(KnowledgeBaseJob(**files, out=str(folder / "kb"), ray=RayConfig(disabled=True)))
    return KnowledgeBase.open(folder / "kb")


def kept(
    kb: KnowledgeBase,
    text: str,
    *found: tuple[str, str, str, str],
    title: str = "Nothing",
    own: str = "",
    linked: str = "",
) -> tuple[list[str], dict[str, int]]:
    """Surfaces of the kept mentions and the counts; found: surface, id, source, label."""
    mentions = [
        Mention(text.index(surface), text.index(surface) + len(surface), source, entity(kb, identifier), label)
        for surface, identifier, source, label in found
    ]
    page = PageContext()
    page.own = entity(kb, own) if own else -1
    page.linked = frozenset({entity(kb, linked)} if linked else ())
    counts: Counter[str] = Counter()
    left = Doubts(kb).without(text, title, mentions, page, counts)
    return [text[one.start : one.end] for one in left], dict(counts)


def test_a_part_of_a_persons_name_needs_somebody_to_vouch(kb: KnowledgeBase) -> None:
    henry, plato = ("Henry", "Q1", "ner", "PERSON"), ("Plato", "Q6", "ner", "PERSON")
    reason = {"in doubt: a part of a person's name": 1}
    assert kept(kb, "Henry met Plato.", henry, plato) == (["Plato"], reason)
    assert kept(kb, "Henry met Plato.", ("Henry", "Q1", "ner", "GPE"), plato)[0] == ["Henry", "Plato"]
    assert kept(kb, "Henry met Plato.", henry, linked="Q1") == (["Henry"], {})
    assert kept(kb, "Henry met Plato.", henry, own="Q1") == (["Henry"], {})
    full = ("Henry I of France", "Q1", "name", "")
    assert kept(kb, "Henry I of France. Then Henry left.", full, henry)[0] == ["Henry I of France", "Henry"]
    assert kept(kb, "Henry met the king.", henry, ("the king", "Q1", "link", ""))[0] == ["Henry", "the king"]


def test_a_word_of_a_persons_title_means_that_person(kb: KnowledgeBase) -> None:
    thomas = ("Thomas", "Q3", "ner", "ORG")
    assert kept(kb, "Then Thomas wrote.", thomas, title="Dylan Thomas") == (
        [],
        {"in doubt: a word of the page's title": 1},
    )
    assert kept(kb, "Then Thomas wrote.", thomas, title="Philosophy of Thomas")[0] == ["Thomas"]
    assert kept(kb, "Then Thomas wrote.", thomas, title="Dylan Thomas", linked="Q3")[0] == ["Thomas"]


def test_a_people_is_no_language(kb: KnowledgeBase) -> None:
    """The knowledge base has no types: German is a language since it is somewhere's official one."""
    people, language = ("German", "Q4", "ner", "NORP"), ("German", "Q4", "ner", "LANGUAGE")
    assert kept(kb, "German troops.", people, linked="Q4") == ([], {"in doubt: a people, not its language": 1})
    assert kept(kb, "in German.", language)[0] == ["German"]
    assert kept(kb, "German troops.", ("German", "Q5", "ner", "NORP"))[0] == ["German"]
    assert kept(kb, "German troops.", ("German", "Q4", "link", "NORP"))[0] == ["German"]


def test_two_capital_letters(kb: KnowledgeBase) -> None:
    us, mz = ("US", "Q8", "ner", "GPE"), ("MZ", "Q7", "ner", "GPE")
    assert kept(kb, "US and MZ.", us, mz) == (["US"], {"in doubt: two capital letters": 1})
    assert kept(kb, "US and MZ.", us, mz, linked="Q7")[0] == ["US", "MZ"]


@pytest.mark.parametrize(("share", "fault"), [(0.5, ""), (0.4, "a list of names")])
def test_a_passage_of_names_is_a_list(share: float, fault: str) -> None:
    text = "New York, Paris and in Rome or there too."  # 4 of 9 words
    spans = [(0, 8), (10, 15), (23, 27)]
    entities = tuple(Entity(n, "", (Mention(*span, "name", n, ""),)) for n, span in enumerate(spans))
    passage = Passage(1, "Title", 0, text, (), 9)
    assert list_fault(passage, Labelled(entities, (), ()), FilterConfig(max_mention_share=share)) == fault


def test_heads_of_an_entity(kb: KnowledgeBase, tmp_path: Path) -> None:
    assert kb.heads_of(entity(kb, "Q4")).tolist() == [entity(kb, "Q5")]
    assert kb.heads_of(entity(kb, "Q5")).tolist() == []


def test_a_part_of_a_compound(kb: KnowledgeBase) -> None:
    mozambique = ("Mozambique", "Q7", "ner", "GPE")
    reason = {"in doubt: a part of a compound": 1}
    assert kept(kb, "The Mozambique-Malawi line.", mozambique) == ([], reason)
    assert kept(kb, "The Malawi–Mozambique line.", mozambique) == ([], reason)
    assert kept(kb, "The Malawi–Mozambique line.", mozambique, linked="Q7") == (["Mozambique"], {})
    assert kept(kb, "A Mozambique-based firm, non-Mozambique.", mozambique)[0] == ["Mozambique"]
    assert kept(kb, "A non-Mozambique firm.", mozambique)[0] == ["Mozambique"]
