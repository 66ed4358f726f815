"""Wikitext -> paragraphs: what is shown, what is not, and that each span is exactly its link's surface."""

from __future__ import annotations

import re
import time

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.pages import Link, Paragraph
from data_tools.wikipedia import dump
from data_tools.wikipedia.titles import normalise_title
from data_tools.wikipedia.wikitext import Prefixes, to_paragraphs
from tests.shared_files import shared

REAL_DUMPS = [
    "enwiki-shortened-pages-articles.xml.bz2",
    "dbpedia-minidump-en.xml.bz2",
    "smallwiki-ltgwiki-pages-articles.xml.bz2",
]
MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|<(?:ref|br|div|span|table|nowiki)\b|''|\b__[A-Z]+__")


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
Switch __NOTOC__<span style="display: none">hidden</span>&nbsp;end&mdash;here
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
        ("", "Switch end—here label."),
        ("Last", "one item"),
        ("Last", "two"),
    ]
    assert counts["references removed"] == 2
    assert counts["tables removed"] == 1
    assert counts["hidden texts removed"] == 1
    assert counts["closing sections removed"] == 1
    assert counts["files and categories removed"] == 4


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{convert|10|km|mi}}", "10 km"),
        ("{{convert|1300|mi|km}}", "1,300 miles"),
        ("{{convert|6|ft|4|in|m}}", "6 feet 4 inches"),
        ("{{convert|60|mi|adj=on}}", "60-mile"),
        ("{{convert|22|e6acre|km2}}", "22 million acres"),
        ("{{convert|about|km}}", ""),
        ("{{as of|2014|lc=y}}", "as of 2014"),
        ("{{As of|2011|8|19}}", "As of 19 August 2011"),
        ("{{as of|2014|alt=by 2014}}", "by 2014"),
        ("''Iliad''{{'s}}", "Iliad's"),
        ("{{nihongo|'''Aikido'''|合気道|Aikidō}}", "Aikido (合気道, Aikidō)"),
        ("{{nihongo3|bayonet|銃剣|jūken}}", "jūken (銃剣, bayonet)"),
        ("{{zh|s=民航|p=mínháng|labels=no}}", "民航; mínháng"),
        ("{{val|6.241|e=18|u=C}}", "6.241×10^18 C"),
        ("{{coord|13|19|N|169|9|W|type:event}}", "13°19′N 169°9′W"),
        ("{{coord|13|19|N|169|9|W|display=title}}", ""),
        ("{{OldStyleDate|February 2|1905|January 20}}", "February 2 [O.S. January 20] 1905"),
        ("{{birth date and age|df=yes|1954|7|17}}", "17 July 1954"),
        ("{{start date|2010|13}}", "2010"),
        ("{{date|3 May 1999}}", "3 May 1999"),
        ("{{chem|H|2|O}}", "H2O"),
        ("{{IPA|/æ/}}", "/æ/"),
        ("A{{music|flat}}", "A♭"),
        ("{{currency|13 billion|USD}}", "US$13 billion"),
        ("{{formatnum:1234567}}", "1,234,567"),
        ("{{abbr|Dr.|Doctor}}", "Dr."),
        ("{{lang|grc|[[Anarchy|ἀναρχία]]}}", "ἀναρχία"),
        ("{{nowrap|{{convert|5|km}} {{circa|1900}}}}", "5 km c. 1900"),
        ("{{ Lang |1=fr|2=chat}}", "chat"),
        ("it{{citation needed|date=May 2015}}", "it"),
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
    ],
)
def test_inline_templates_keep_what_is_seen(template: str, shown: str) -> None:
    if shown:
        assert texts(f"It {template} is.") == [" ".join(f"It {shown} is.".split())]
    else:
        assert texts(f"It ({template}) is.") == ["It is."]


@pytest.mark.parametrize(
    ("wikitext", "kept", "hollow"),
    [
        ("Good one. It has <math>x^2</math> in it. Last.", ["Good one. Last."], 1),
        ("Good one. It costs {{inflation|US|5|1929}} today. [[Last]].", ["Good one. Last."], 1),
        ("Where <math>x</math> is. [[B|Next]] one.", ["Next one."], 1),
        ("Only {{unknown|x}}.", [], 1),
        ("Whole. <math>x</math>", ["Whole."], 0),
        ("Whole. <math>x</math> Another.", ["Whole. Another."], 0),
        ("<math>x</math>", [], 0),
        ("The vowel (<math>x</math>) stays.", ["The vowel stays."], 0),
        ("A note {{clarify}} stays.", ["A note stays."], 0),
        ("A fact.{{cn}} Another.", ["A fact. Another."], 0),
        ("{{unknown|x}}\nText.", ["Text."], 0),
    ],
)
def test_sentences_that_lost_a_word_are_removed_and_counted(wikitext: str, kept: list[str], hollow: int) -> None:
    paragraphs, counts = to_paragraphs(wikitext)
    assert [paragraph.text for paragraph in paragraphs] == kept
    assert counts["hollow sentences removed"] == hollow
    assert all(p.text[link.start : link.end] in ("Last", "Next") for p in paragraphs for link in p.links)


@pytest.mark.parametrize(
    ("wikitext", "shown"),
    [
        ("'''''Both''''' '''bold''' ''italic''", "Both bold italic"),
        ("L'''Arc'' here", "L'Arc here"),
        ("''''Quoted'''' here", "'Quoted' here"),
        ("Rock 'n' roll ''isn't''", "Rock 'n' roll isn't"),
        ("[[A|''b]] c'' d", "b c d"),
        ("''never closed\n\nnext", "never closed"),
    ],
)
def test_quotes_are_read_by_the_rules_of_mediawiki(wikitext: str, shown: str) -> None:
    assert texts(wikitext)[0] == shown


def test_comments_that_fill_a_line_leave_no_blank_line() -> None:
    assert texts("One\n<!-- a --> <!-- b\n\nc -->\ntwo<!-- x -->\n\nthree <!-- never closed") == ["One two", "three"]


def test_what_stands_in_nowiki_is_read_as_it_is() -> None:
    paragraphs, counts = to_paragraphs("A <nowiki>[[no]] <ref>x</ref></nowiki> b <nowiki>*c</nowiki>.<ref>d</ref>")
    assert [paragraph.text for paragraph in paragraphs] == ["A b *c."]
    assert counts["markup shown as text removed"] == 1
    assert counts["references removed"] == 1


def test_a_formula_in_a_heading_leaves_nothing_behind() -> None:
    paragraphs, _ = to_paragraphs("== The <math>x</math> law ==\nSee [[A|the ''A'']] of {{nowrap|b c}}.")
    assert paragraphs == [Paragraph("See the A of b c.", (Link(4, 9, "A"),), "The law")]


def test_brackets_around_links_stay() -> None:
    assert texts("of [[[King Arthur|Arthur]]] Miller") == ["of [Arthur] Miller"]
    assert links("of [[[King Arthur|Arthur]]] Miller") == [("Arthur", "King Arthur")]


def test_sections_are_dropped_at_the_end_only_where_their_title_may_mean_text() -> None:
    wikitext = (
        "a\n== Literature ==\nb\n=== [[Epic|Epics]] ===\nc\n== Art ==\n== Notes ==\nd\n=== Sub ===\ne\n== References =="
    )
    assert [(p.section, p.text) for p in to_paragraphs(wikitext)[0]] == [("", "a"), ("Literature", "b"), ("Epics", "c")]
    wikitext = "a\n== See also ==\nb\n== Sources ==\nc\n== History ==\nd\n=== Gallery ===\ne"
    assert [p.text for p in to_paragraphs(wikitext)[0]] == ["a", "c", "d", "e"]


def test_leftover_markup_never_reaches_the_text() -> None:
    paragraphs, counts = to_paragraphs("Fine.\n\nBroken [[link here.\n\n{{open |\n\nAlso fine.")
    assert paragraphs[0].text == "Fine."
    assert all("[[" not in paragraph.text and "{{" not in paragraph.text for paragraph in paragraphs)
    assert counts["paragraphs with leftover markup"] >= 1
    assert to_paragraphs("[[Unknown:x.jpg|thumb|250px|[[a]]\n\n|valign=top| b\n\nA | b.")[0] == [Paragraph("A | b.")]


def test_prefixes_of_another_language_come_from_the_dump() -> None:
    prefixes = Prefixes.of({"fails": 6, "kategoreja": 14, "lītuotuojs": 2})
    paragraphs, _ = to_paragraphs("A [[Fails:x.jpg|b]][[Kategoreja:C]][[Lītuotuojs:D|d]] [[E]].", prefixes)
    assert paragraphs == [Paragraph("A d E.", (Link(4, 5, "E"),))]


def assert_sound(paragraph: Paragraph) -> None:
    text = paragraph.text
    assert text == " ".join(text.split())
    assert not MARKUP.search(text)
    end = 0
    for link in paragraph.links:
        assert end <= link.start < link.end <= len(text)
        surface = text[link.start : link.end]
        assert surface == surface.strip()
        assert link.target == normalise_title(link.target) != ""
        end = link.end


@pytest.mark.parametrize("name", REAL_DUMPS)
def test_every_paragraph_of_the_real_dumps_is_sound(name: str) -> None:
    path = shared("data", "dumps", name)
    prefixes = Prefixes.of(dump.namespaces(path))
    kept = left = of_links = 0
    for raw in dump.read_pages(path):
        paragraphs, counts = to_paragraphs(raw.wikitext, prefixes)
        for paragraph in paragraphs:
            assert_sound(paragraph)
            of_links += len(paragraph.links)
        if raw.namespace != 0:
            continue  # templates are little else than markup
        kept += len(paragraphs)
        left += counts["paragraphs with leftover markup"] + counts["pages that the wikitext parser refused"]
    assert left < kept / 100
    assert of_links > kept / 2


WORDS = """
    [[ ]] {{ }} {{{ }}} {| |} |- | || ! = == === '' ''' ''''' <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> <math>
    </math> <div> </div> <br> <span/> [http://a.b ] [[[ &amp; &#0; &#x110000; &nbsp; * # : ; ---- __TOC__ [[A|b]]
    [[File:a|b]] [[b]]c {{lang|fr|x}} {{convert|1|km}} {{nihongo||a|b}} {{val}} {{coord|1|N}} {{x}} ( ) , . a B 1 é 😀
    \u0301 \ufffc \u200b ~ Word
"""
PIECES = st.sampled_from([*WORDS.split(), " ", "\n", "\n\n", "\t", "\n* ", "\n== H ==\n"])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_markup_gives_sound_paragraphs(wikitext: str) -> None:
    for paragraph in to_paragraphs(wikitext)[0]:
        assert_sound(paragraph)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_sound_paragraphs(wikitext: str) -> None:
    for paragraph in to_paragraphs(wikitext)[0]:
        assert_sound(paragraph)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_characters="&%"), max_size=12))
def test_normalising_a_title_again_changes_nothing(raw: str) -> None:
    once = normalise_title(raw)
    assert normalise_title(once) == once


@pytest.mark.parametrize(
    "opening",
    ["[[", "{{a|", "[[a|", "{|\n|a {{x|\n", "<div>", "<ref>", "<ref name=", "<!--", "[http://a ", "'''a''", "(;"],
)
def test_openings_that_are_never_closed_take_no_time(opening: str) -> None:
    began = time.process_time()
    paragraphs, _ = to_paragraphs("Text.\n\n" + opening * 20_000)
    assert time.process_time() - began < 5
    for paragraph in paragraphs:
        assert_sound(paragraph)


def test_pages_of_unclosed_markup_are_counted() -> None:
    assert to_paragraphs("{{a|" * 1000) == ([], {"pages that the wikitext parser refused": 1})


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
