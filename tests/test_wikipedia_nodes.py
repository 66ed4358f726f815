"""The nodes that are built from the tokens are those of mwparserfromhell's own tree."""

from __future__ import annotations

from typing import Any

import mwparserfromhell
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mwparserfromhell import nodes as theirs
from mwparserfromhell.wikicode import Wikicode

from data_tools.wikipedia import dump, nodes
from tests.shared_files import shared


def joined(found: list[Any]) -> list[Any]:
    """Texts beside each other as one."""
    result: list[Any] = []
    for node in found:
        if isinstance(node, str) and result and isinstance(result[-1], str):
            result[-1] += node
        elif node != "":
            result.append(node)
    return result


def ours(code: nodes.Code | None) -> list[Any] | None:
    if code is None:
        return None
    found: list[Any] = []
    for node in code.nodes():
        match node:
            case str():
                found.append(node)
            case nodes.Wikilink():
                found.append(("link", ours(node.title), ours(node.text)))
            case nodes.Template():
                parameters = [(ours(name), ours(value)) for name, value in node.parameters()]
                found.append(("template", ours(node.name), parameters))
            case nodes.Tag():
                found.append(("tag", node.name, node.markup, ours(node.content())))
            case nodes.External():
                found.append(("address", ours(node.address), ours(node.label)))
            case nodes.Heading():
                found.append(("heading", node.level, ours(node.title)))
            case nodes.Entity():
                found.append(("entity", node.character))
            case _:
                found.append("hidden")
    return joined(found)


def of_tree(code: Wikicode | None) -> list[Any] | None:
    if code is None:
        return None
    found: list[Any] = []
    for node in code.nodes:
        match node:
            case theirs.Text():
                found.append(str(node.value))
            case theirs.Wikilink():
                found.append(("link", of_tree(node.title), of_tree(node.text)))
            case theirs.Template():
                parameters = [(of_tree(p.name) if p.showkey else None, of_tree(p.value)) for p in node.params]
                found.append(("template", of_tree(node.name), parameters))
            case theirs.Tag():
                name = str(node.tag).strip().lower()
                found.append(("tag", name, node.wiki_markup or "", of_tree(node.contents) or []))
            case theirs.ExternalLink():
                found.append(("address", of_tree(node.url), of_tree(node.title)))
            case theirs.Heading():
                found.append(("heading", node.level, of_tree(node.title)))
            case theirs.HTMLEntity():
                found.append(("entity", character(node)))
            case _:
                found.append("hidden")
    return joined(found)


def character(entity: theirs.HTMLEntity) -> str:
    try:
        return entity.normalize()
    except (ValueError, OverflowError):
        return ""


def assert_same(wikitext: str) -> None:
    assert ours(nodes.parse(wikitext)) == of_tree(mwparserfromhell.parse(wikitext, skip_style_tags=True))


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("dbpedia-minidump-en.xml.bz2", 1),
        ("enwiki-shortened-pages-articles.xml.bz2", 4),
        ("smallwiki-ltgwiki-pages-articles.xml.bz2", 4),
    ],
)
def test_pages_of_the_real_dumps_have_the_nodes_of_the_tree(name: str, every: int) -> None:
    for number, raw in enumerate(dump.read_pages(shared("data", "dumps", name))):
        if number % every == 0:
            assert_same(raw.wikitext)


WORDS = """
    [[ ]] {{ }} {{{ }}} {| |} |- | || ! = == <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> <br> <div a=b c> </div>
    [http://a.b ] http://c.d &amp; &#65; &#x41; &#0; * # : ; ---- {{a|b=c|d}} [[a|b]] text
"""
PIECES = st.sampled_from([*WORDS.split(), " ", "\n", "\n|-\n", "\n* ", "\n== H ==\n"])


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join))
def test_any_markup_has_the_nodes_of_the_tree(wikitext: str) -> None:
    assert_same(wikitext)
