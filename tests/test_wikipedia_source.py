"""Paragraphs of a made dump beside the text that it was made of: nothing lost, nothing left."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_tools.wikipedia import dump
from data_tools.wikipedia.wikitext import to_paragraphs
from tests.shared_files import shared

WORD = re.compile(r"\w+")
MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\||''|==|<\w|</|&\w+;")
# What the maker adds to the text that it was given, apart from markup.
ADDED = re.compile(r" ?The distance is \d+ km\.| mot\b| External page\b|^(?:first|second) item$")


def source_articles(folder: Path) -> dict[str, list[str]]:
    """Title -> lines, of the first 80 articles."""
    sys.path.insert(0, str(shared("tools")))
    try:
        import common
    finally:
        sys.path.pop(0)
    return dict(common.articles([str(folder)], 80))


def is_heading(lines: list[str], number: int) -> bool:
    """Whether the maker has written this line as a heading (its rule)."""
    line, last = lines[number], number + 1 == len(lines)
    short = line.endswith(".") and len(line) < 70 and len(line.split()) <= 8
    return number > 0 and short and "[[" not in line and not last and bool(lines[number + 1])


@pytest.mark.parametrize("seed", [0, 7])
def test_words_of_the_source_are_kept_and_no_others(tmp_path: Path, seed: int) -> None:
    text = shared("data", "wikipedia-text")
    maker = [sys.executable, str(shared("tools", "make_wikipedia_dump.py")), str(text), "--articles", "80"]
    more = ["--seed", str(seed), "--rate", "misc=0.3", "--rate", "comment=0.3", "--out", str(tmp_path)]
    subprocess.run(maker + more, check=True, stdout=subprocess.DEVNULL)
    source = source_articles(text)
    total = lost = residue = pages = 0
    for raw in dump.read_pages(next(tmp_path.glob("*-multistream.xml.bz2"))):
        if raw.namespace or raw.redirect or not raw.wikitext or raw.title not in source:
            continue
        pages += 1
        lines = source[raw.title]
        shown = [ADDED.sub("", paragraph.text) for paragraph in to_paragraphs(raw.wikitext)[0]]
        have = Counter(word for text in shown for word in WORD.findall(text))
        rest = [line for number, line in enumerate(lines) if not is_heading(lines, number)]
        for line in sorted(rest, key=lambda line: bool(MARKUP.search(line))):
            words = Counter(WORD.findall(line))
            total += words.total()
            if not MARKUP.search(line):
                lost += (words - have).total()
            have -= words
        residue += have.total()
    assert pages > 70
    assert total > 150_000
    assert lost < total * 0.002
    assert residue < total * 0.0002
