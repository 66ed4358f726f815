"""Whom a surname that stands alone means on a page, and where it is a mention."""

from __future__ import annotations

from collections import Counter

import pytest

from data_tools.documents import Passage
from data_tools.linking import BEGINNING, Linker, Surname
from data_tools.mentions import NerSpan, possible_mentions, select_mentions
from data_tools.pages import Link
from data_tools.surnames import surname_forms
from tests.corpora import entity
from tests.linking_world import context, make_tables


@pytest.fixture(scope="module")
def linker(tmp_path_factory: pytest.TempPathFactory) -> Linker:
    folder = tmp_path_factory.mktemp("surnames")
    return Linker(make_tables(folder).build(folder / "kb"), 0.5)


@pytest.mark.parametrize(
    ("full_name", "forms"),
    [("Albert Einstein", ["Einstein"]), ("J. R. R. Tolkien", ["Tolkien"]), ("J.R.R. Tolkien", ["Tolkien"]),
     ("Vincent van Gogh", ["van Gogh", "Van Gogh", "Gogh"]), ("Charles de Gaulle", ["de Gaulle", "De Gaulle"]),
     ("Oscar de la Hoya", ["de la Hoya", "De la Hoya"]), ("Martin Luther King, Jr.", ["King"]),
     ("Sammy Davis Jr.", ["Davis"]), ("Jean-Paul Sartre", ["Sartre"]), ("Conan O'Brien", ["O'Brien"]),
     ("Plato", []), ("Charles II", []), ("Alexander the Great", []), ("Louis XIV of France", []), ("Malcolm X", []),
     ("Austin, Texas", []), ("US Navy", []), ("van Gogh", []), ("the White House", []), ("Apollo 11 Crew", []),
     ("One Two Three Four Five", []), ("", []), ("Jr.", []), ("Henry B.", [])],
)  # fmt: skip
def test_the_surname_in_a_full_name(full_name: str, forms: list[str]) -> None:
    assert list(surname_forms(full_name)) == forms


def surnames(linker: Linker, title: str, *links: str) -> dict[str, tuple[str, int, bool]]:
    found = context(linker, title, *links).surnames
    return {form: (linker.kb.entity_id(name.entity), name.since[1], name.sure) for form, name in found.items()}


def test_a_surname_stands_for_the_person_linked_by_full_name(linker: Linker) -> None:
    found = surnames(linker, "Nothing", "Troy", "Vincent van Gogh", "Elsa Einstein")
    gogh = ("Q32", 7, True)
    # Einstein is a name of another in the knowledge base, so somebody else must say that a person is meant
    assert found == {"van Gogh": gogh, "Van Gogh": gogh, "Gogh": gogh, "Einstein": ("Q31", 26, False)}
    assert surnames(linker, "Nothing", "George Washington") == {"Washington": ("Q33", 0, False)}
    # nor does it call her a person
    assert surnames(linker, "Nothing", "Marie Curie") == {"Curie": ("Q35", 0, False)}
    # what it calls something else is none
    assert surnames(linker, "Nothing", "North Africa") == {}


def test_the_first_full_name_counts_whatever_it_is_linked_by(linker: Linker) -> None:
    assert surnames(linker, "Nothing", "Albert Einstein", "Prof. A. Einstein=Albert Einstein") == {
        "Einstein": ("Q30", 0, True)
    }


def test_a_surname_of_two_persons_says_nothing_known_or_not(linker: Linker) -> None:
    assert surnames(linker, "Nothing", "Albert Einstein", "Elsa Einstein") == {}
    assert surnames(linker, "Nothing", "Albert Einstein", "Hans Albert Einstein") == {}
    # one name linked to two pages
    assert surnames(linker, "Nothing", "Albert Einstein", "Albert Einstein=Paris") == {}


def test_a_surname_that_is_linked_itself_is_left_to_its_link(linker: Linker) -> None:
    page = context(linker, "Nothing", "George Washington", "Washington=Washington, D.C.")
    assert page.surnames == {}
    assert page.surfaces["Washington"][0] == entity(linker.kb, "Q34")


def test_the_page_itself_keeps_its_surname_from_the_beginning(linker: Linker) -> None:
    page = context(linker, "Albert Einstein", "Elsa Einstein", "Hans Albert Einstein")
    assert page.surnames == {"Einstein": Surname(entity(linker.kb, "Q30"), BEGINNING, True)}


# ------------------------------------------------------------------------------------------------ mentions


def chosen(
    linker: Linker, text: str, spans: dict[str, str] | None, *linked: str, title: str = "Nothing"
) -> list[tuple[str, str, str]]:
    """(surface, entity id, source) of the mentions of `text` in which the first occurrence of each of `linked` is a
    link. spans: text -> label, all its occurrences; None: without NER."""
    links = tuple(Link(text.index(name), text.index(name) + len(name), name) for name in linked)
    passage = Passage(1, title, 0, text, links, 0)
    page = linker.page(title, [passage])
    found = None
    if spans is not None:
        found = [
            NerSpan(place, place + len(surface), label)
            for surface, label in spans.items()
            for place in range(len(text))
            if text.startswith(surface, place)
        ]
    possible = possible_mentions(passage, linker, page)
    mentions = select_mentions(passage, possible, page, found, Counter())
    assert {mention.entity for mention in mentions} <= {candidate.entity for candidate in possible}
    return [(text[m.start : m.end], linker.kb.entity_id(m.entity), m.source) for m in mentions if m.source != "link"]


def test_the_surname_of_a_known_person_counts_after_the_full_name(linker: Linker) -> None:
    text = "Gogh? Vincent van Gogh was. Van Gogh, van Gogh’s and Gogh; Goghs."
    expected = [("Van Gogh", "Q32", "name"), ("van Gogh", "Q32", "name"), ("Gogh", "Q32", "name")]
    assert chosen(linker, text, None, "Vincent van Gogh") == expected
    assert chosen(linker, text, {}, "Vincent van Gogh") == expected
    assert chosen(linker, text, None) == [("Vincent van Gogh", "Q32", "name")]


def test_a_surname_that_means_something_else_too_needs_ner(linker: Linker) -> None:
    text = "George Washington and Washington."
    assert chosen(linker, text, {"Washington": "PERSON"}, "George Washington") == [("Washington", "Q33", "ner")]
    assert chosen(linker, text, {"Washington": "GPE"}, "George Washington") == [("Washington", "Q34", "ner")]
    # not found, and the city is supported by nothing
    assert chosen(linker, text, {}, "George Washington") == []
    # without NER it is what its name says
    assert chosen(linker, text, None, "George Washington") == [("Washington", "Q34", "name")]


def test_a_surname_of_somebody_whose_type_is_not_known_needs_ner(linker: Linker) -> None:
    text = "Marie Curie met others. Curie's work."
    assert chosen(linker, text, {"Curie's": "PERSON"}, "Marie Curie") == [("Curie", "Q35", "ner")]
    assert chosen(linker, text, {"Curie": "ORG"}, "Marie Curie") == []
    assert chosen(linker, text, {}, "Marie Curie") == []
    assert chosen(linker, text, None, "Marie Curie") == []


def test_a_common_word_is_no_surname_unless_ner_says_so(linker: Linker) -> None:
    text = "Stephen King wrote. King sat. King Henry."
    assert chosen(linker, text, None, "Stephen King") == []
    assert chosen(linker, text, {"King": "PERSON"}, "Stephen King")[0] == ("King", "Q37", "ner")


def test_a_longer_name_hides_the_surname_within(linker: Linker) -> None:
    text = "Elsa Einstein came. Albert Einstein too. Einstein."
    # linked by full name: she; he is a name, and stands alone
    assert chosen(linker, text, {"Einstein": "PERSON"}, "Elsa Einstein") == [
        ("Albert Einstein", "Q30", "name"),
        ("Einstein", "Q31", "ner"),
    ]


def test_a_page_on_a_person_speaks_of_that_person(linker: Linker) -> None:
    text = "Vincent van Gogh lived. Van Gogh painted."
    # a page of this title is not known
    assert chosen(linker, text, {}, title="Vincent van Gogh (painter)") == [("Vincent van Gogh", "Q32", "name")]
    assert chosen(linker, text, {}, title="Vincent van Gogh") == [
        ("Vincent van Gogh", "Q32", "name"),
        ("Van Gogh", "Q32", "name"),
    ]
