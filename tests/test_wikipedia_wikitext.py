"""Wikitext -> paragraphs: what is shown, what is not, and that each span is exactly its link's surface."""

from __future__ import annotations

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.pages import Link, Paragraph
from data_tools.wikipedia.titles import normalise_title
from data_tools.wikipedia.wikitext import Prefixes, to_paragraphs


def texts(wikitext: str) -> list[str]:
    return [paragraph.text for paragraph in to_paragraphs(wikitext)[0]]


def links(wikitext: str) -> list[tuple[str, str]]:
    """(surface, target) of all links, the surface cut out of the text by its span."""
    return [
        (paragraph.text[link.start : link.end], link.target)
        for paragraph in to_paragraphs(wikitext)[0]
        for link in paragraph.links
    ]


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        ("  united_states ", "United states"),
        ("Caf%C3%A9", "Café"),
        ("Cafe\u0301", "Café"),
        ("AT&amp;T", "AT&T"),
        ("100% cotton", "100% cotton"),
        ("%E9", "%E9"),
        ("élan vital", "Élan vital"),
        ("ßeta", "ßeta"),
        ("iPhone", "IPhone"),
        ("a\u00a0 b\u200e", "A b"),
        ("", ""),
    ],
)
def test_titles_have_one_written_form(raw: str, title: str) -> None:
    assert normalise_title(raw) == title
    assert normalise_title(title) == title


def test_links_of_every_form() -> None:
    assert links("A [[dog]] ran.") == [("dog", "Dog")]
    assert links("Two [[dog]]s ran.") == [("dogs", "Dog")]
    assert links("A [[Canis lupus|wolf]]-like [[Canis_lupus_%C3%A9|x]].") == [
        ("wolf", "Canis lupus"),
        ("x", "Canis lupus é"),
    ]
    assert links("[[Mercury (planet)|]] is hot.") == [("Mercury", "Mercury (planet)")]
    assert links("'''[[A|''b'' '''c''']]s''' d") == [("b cs", "A")]
    assert links("x[[ Y | y ]] z") == [("y", "Y")]
    assert links("[[A#History|see]] and [[#Here|here]].") == [("see", "A")]
    assert links("[[AT&amp;T]] and [[:Category:Dogs|dogs]] and [[User:X|x]].") == [("AT&T", "AT&T")]
    assert links("[[Star Trek: Voyager]] [[wikt:dog|dog]]") == [("Star Trek: Voyager", "Star Trek: Voyager")]


def test_offsets_are_code_points_of_the_final_text() -> None:
    wikitext = "😀😀 e\u0301  ({{IPA|x}}; born [[A|👩‍👩‍👧 a\u0301]]) {{lang|fr|[[B|b]]}}<ref>[[No]]</ref>, [[C]]é."
    (paragraph,), _ = to_paragraphs(wikitext)
    assert paragraph.text == "😀😀 e\u0301 (born 👩‍👩‍👧 a\u0301) b, Cé."
    assert paragraph.links == (Link(12, 20, "A"), Link(22, 23, "B"), Link(25, 27, "C"))


def test_what_a_page_does_not_show_is_not_text() -> None:
    wikitext = """{{Infobox x|a=[[B]]}}
'''Bold''' ''text''<!-- [[no]] --><ref name="a/b" /><ref>{{cite|x}}</ref> here.
[[File:x.jpg|thumb|a [[caption]] of ''it'']][[Category:C]][[fr:Gras]]
{| class="wikitable"
| cell || [[other]]
|}
<gallery>
a.jpg|[[x]]
</gallery>
Formula <math>x^2</math> and __NOTOC__<span style="display: none">hidden</span>&nbsp;end&mdash;here
[http://x.org label] [http://y.org].

== References ==
{{reflist}} text
=== Sub ===
more
== Last ==
* one [[item]]
# two
"""
    paragraphs, counts = to_paragraphs(wikitext)
    assert [(p.section, p.text) for p in paragraphs] == [
        ("", "Bold text here."),
        ("", "Formula and end—here label."),
        ("Last", "one item"),
        ("Last", "two"),
    ]
    assert counts["references removed"] == 2
    assert counts["tables removed"] == 1
    assert counts["formulas removed"] == 1
    assert counts["hidden texts removed"] == 1
    assert counts["closing sections removed"] == 1
    assert counts["files and categories removed"] == 4


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{convert|10|km|mi}}", "10 km"),
        ("{{convert|3|to|5|ft}}", "3 to 5 feet"),
        ("{{cvt|2.5|-|3|sqmi|km2}}", "2.5–3 square miles"),
        ("{{lang|fr|chat}}", "chat"),
        ("{{lang-de|Hund}}", "Hund"),
        ("{{nihongo|Tokyo|東京|Tōkyō}}", "Tokyo (東京, Tōkyō)"),
        ("{{start date|1980|2|3}}", "February 3, 1980"),
        ("{{birth date|1980|2|3|df=yes}}", "3 February 1980"),
        ("{{circa|1900}}", "c. 1900"),
        ("a{{snd}}b", "a – b"),
        ("{{frac|1|2}}", "1/2"),
        ("{{nowrap|a b}}", "a b"),
        ("{{as of|2010|4}}", "As of April 2010"),
        ("{{USS|Maine}}", "USS Maine"),
        ("{{Main|Dog}}", ""),
        ("{{unknown thing|x}}", ""),
    ],
)
def test_inline_templates_keep_what_is_seen(template: str, shown: str) -> None:
    assert texts(f"It {template} is.") == [" ".join(f"It {shown} is.".split())]


def test_leftover_markup_never_reaches_the_text() -> None:
    paragraphs, counts = to_paragraphs("Fine.\n\nBroken [[link here.\n\n{{open |\n\nAlso fine.")
    assert paragraphs[0].text == "Fine."
    assert all("[[" not in paragraph.text and "{{" not in paragraph.text for paragraph in paragraphs)
    assert counts["paragraphs with leftover markup"] >= 1


def test_prefixes_of_another_language_come_from_the_dump() -> None:
    prefixes = Prefixes.of({"fails": 6, "kategoreja": 14, "lītuotuojs": 2})
    paragraphs, _ = to_paragraphs("A [[Fails:x.jpg|b]][[Kategoreja:C]][[Lītuotuojs:D|d]] [[E]].", prefixes)
    assert paragraphs == [Paragraph("A d E.", (Link(4, 5, "E"),))]


SURFACES = st.text(st.sampled_from("ab é😀\u0301Ωß漢"), min_size=1, max_size=6).filter(lambda text: text.strip() != "")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(SURFACES, st.sampled_from(["", " ", "''", "'''", "{{x}}", "<ref>r</ref>", "\n", " ("])), max_size=8
    )
)
def test_spans_are_surfaces_whatever_stands_between(parts: list[tuple[str, str]]) -> None:
    wikitext = "Start " + " ".join(f"{between}[[T|{surface}]]" for surface, between in parts) + " end"
    found = links(wikitext)
    nodes = mwparserfromhell.parse(wikitext).filter_wikilinks()
    assert len(found) == len(nodes)
    for (surface, target), node in zip(found, nodes, strict=True):
        assert target == "T"
        assert surface == " ".join(str(node.text).split())
