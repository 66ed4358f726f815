"""What MediaWiki does to the raw text before and after it reads the markup, and the tokenizer does not.

wikitext --> `prepared`: comments and references out, apostrophes beside quotes told --> tokenizer
text of a node --> `shown_text`: quotes, switches and invisible characters out
"""

from __future__ import annotations

import re
from collections import Counter

_QUOTES = re.compile("'{2,}")
_THIRD_BRACKET = re.compile(r"(?<!\[)\[(?=\[\[[^\[])")
_BOLD = re.compile("'''+")
_SWITCH = re.compile("__[A-Z]+__")
_INVISIBLE = re.compile("[\u200b\ufeff\u200e\u200f\u2060\u00ad\ufffc]")
# MediaWiki takes comments and references out before it reads the markup, and so does this: they are most of the bytes.
_UNREAD = re.compile(
    r"""<(?:
        (?P<comment>!--(?>.*?(?:-->|\Z))(?:[ \t]*+<!--(?>.*?(?:-->|\Z)))*+)(?P<rest_of_line>[ \t]*+\n)?
      | (?P<reference>(?i:ref)(?:\s(?:[^<>"]|"[^"<>]*")*?)?(?:/>|>(?:(?!<(?i:ref)[\s>/]).)*?</(?i:ref)\s*>))
      | (?P<tag>(?i:nowiki|pre|math|syntaxhighlight|source))\b[^<>]*(?<!/)>.*?</(?P=tag)\s*>
    )""",
    re.DOTALL | re.VERBOSE,
)


def prepared(wikitext: str, counts: Counter[str]) -> str:
    """The wikitext for the tokenizer; references are counted."""

    def shown(match: re.Match[str]) -> str:
        if match["comment"]:
            # comments that fill a line take the line with them
            line = wikitext.rfind("\n", 0, match.start()) + 1
            fills_line = line and match["rest_of_line"] and not wikitext[line : match.start()].strip(" \t")
            return "" if fills_line else match["rest_of_line"] or ""
        counts["references removed"] += match["reference"] is not None
        return "" if match["reference"] else match.group()

    wikitext = _UNREAD.sub(shown, wikitext) if "<" in wikitext else wikitext
    # "[[[A]]]" is a link in brackets, which the tokenizer takes for no link at all.
    wikitext = _THIRD_BRACKET.sub("&#91;", wikitext) if "[[[" in wikitext else wikitext
    return _apostrophes_told(wikitext)


def shown_text(text: str) -> str:
    """A piece of text without the quotes of bold and italic, the switches of the page and what is invisible."""
    if "''" in text:
        text = _QUOTES.sub(_without_quotes, text)
    if "__" in text:
        text = _SWITCH.sub("", text)
    return _INVISIBLE.sub("", text) if _may_be_invisible(text) else text


def _may_be_invisible(text: str) -> bool:
    # Each look-up is a scan at memory speed, or none at all where the text has no such wide characters.
    marks = "\u200e" in text or "\u200f" in text or "\ufffc" in text
    return marks or "\u00ad" in text or "\u200b" in text or "\ufeff" in text or "\u2060" in text


def _apostrophes_told(wikitext: str) -> str:
    """Of `L'''Arc''`, three quotes are an apostrophe and two that open: the apostrophe is written as an entity."""
    kept: list[str] = []
    place = 0
    for run in _BOLD.finditer(wikitext):
        start = wikitext.rfind("\n", 0, run.start()) + 1
        if start < place or wikitext[run.start() - 1 : run.start()] in ("", "\n", " "):
            continue
        end = wikitext.find("\n", run.end())
        kept += [wikitext[place:start], _apostrophe_told(wikitext[start:end] if end >= 0 else wikitext[start:])]
        place = end if end >= 0 else len(wikitext)
    return "".join([*kept, wikitext[place:]])


def _apostrophe_told(line: str) -> str:
    """MediaWiki's rule (Parser::doQuotes) for a line with an odd number of both bold and italic marks: the three quotes
    after a word of one letter, else after a longer one, else after a blank, whichever comes first.
    """
    runs = [(run.start(), len(run.group())) for run in _QUOTES.finditer(line)]
    if sum(width > 2 for _, width in runs) % 2 == 0 or sum(width == 2 or width > 4 for _, width in runs) % 2 == 0:
        return line
    bold = [at for at, width in runs if width == 3]
    after_word = [at for at in bold if line[at - 1 : at] not in ("", " ")]
    after_letter = [at for at in after_word if line[at - 2 : at - 1] == " "]
    for at in [*after_letter[:1], *after_word[:1], *bold[:1]]:
        return f"{line[:at]}&#39;{line[at + 1 :]}"
    return line


def _without_quotes(run: re.Match[str]) -> str:
    """Two quotes, three and five are markup; what is more is text."""
    length = len(run.group())
    return "'" * {2: 0, 3: 0, 4: 1, 5: 0}.get(length, length - 5)
