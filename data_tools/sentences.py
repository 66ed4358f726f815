"""Sentence spans by rule, without a model.

In: a text. Out: half-open code-point spans of its sentences, trimmed, in order, which together hold every visible
character. A sentence ends at a line break, and after `.`, `!`, `?` or `…` (with the closing quotes and brackets that
follow) where white space comes next and then, past opening quotes and brackets, an upper-case letter or a digit; but
not after an initial ("J. Smith") or one of the abbreviations below.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|\n")
_NEXT = re.compile(r"\s+[\"'“‘«(\[]*(\S)")
_WORD_BEFORE = re.compile(r"(\S+)$")
_LOOK_BACK = 24  # longer than any abbreviation
_ABBREVIATED = """
mr mrs ms dr st jr sr vs no nos prof gen col lt sgt capt cmdr adm gov sen rep rev hon inc ltd co corp etc e.g i.e c ca
cf ed eds vol pp p fig approx est dept univ mt ft al b d fl r jan feb mar apr jun jul aug sep sept oct nov dec
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Spans of the sentences of `text`; [] for a text of white space."""
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _END.finditer(text):
        if match.group() == "\n" or _ends_sentence(text, match):
            _add(spans, text, start, match.end())
            start = match.end()
    _add(spans, text, start, len(text))
    return spans


def sentence_of(spans: Sequence[tuple[int, int]], position: int) -> int:
    """Number of the sentence that holds the character at `position`."""
    return max(0, bisect_right(spans, position, key=lambda span: span[0]) - 1)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    following = _NEXT.match(text, match.end())
    if following is None:
        return True
    if not (following[1].isupper() or following[1].isdigit()):
        return False
    if match.group() != ".":
        return True
    before = _WORD_BEFORE.search(text, max(0, match.start() - _LOOK_BACK), match.start())
    if before is None:
        return True
    word = before[1].lstrip("\"'“‘«([").lower()
    return not (word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha()) or _is_initials(word))


def _is_initials(word: str) -> bool:
    """Letters with full stops between them: the rest of "U.S." or "J.R.R." before its last full stop."""
    parts = word.split(".")
    return len(parts) > 1 and all(len(part) == 1 and part.isalpha() for part in parts)


def _add(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    stripped = piece.strip()
    if stripped:
        first = start + len(piece) - len(piece.lstrip())
        spans.append((first, first + len(stripped)))
