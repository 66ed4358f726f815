"""Text -> every span that is written as a name of the knowledge base: one pass, without a model.

A span starts at a word that holds an upper-case letter or a digit, or at the one word or sign right before it ("the
Beatles", "von Neumann"), holds that word whole, and ends at the end of a word or sign; without its case it is a known
name. What such a span means, and whether it counts, others decide. Names of more than `MAX_NAME` characters are not
looked for.

Only the places where a span can start are visited, found by one regular expression, so that the lower-case words of a
text, four out of five, cost next to nothing.
"""

from __future__ import annotations

import re

from data_tools.name_table import NameTable

MAX_NAME = 100  # characters of the longest name looked for
WORD = r"\w\u0300-\u036f"  # combining marks belong to the word of their letter


def _capitals() -> str:
    """A class of all characters that have a lower-case form of their own, and all digits."""
    ranges: list[list[int]] = []
    for number in range(0x20000):  # there are none beyond
        character = chr(number)
        if character.lower() != character or character.isdigit():
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)


_CAPITALISED = re.compile(rf"[{_capitals()}][{WORD}]*")  # from the first capital or digit of a word to its end
_WITHIN_WORD = re.compile(rf"(?<=[{WORD}])\.?[{WORD}]")  # or within an abbreviation: "U.S"
_LETTER = re.compile(rf"[{WORD}]")
_LAST_TOKEN = re.compile(rf"(?:[{WORD}]+|[^{WORD}\s])\Z")


def fold_in_place(text: str) -> str:
    """`text` without case and of the same length: the few characters that fold to several stay as they are."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    return "".join(low if len(low := character.casefold()) == 1 else character for character in text)


def known_names(text: str, names: NameTable) -> list[tuple[int, int]]:
    """Half-open spans of `text` that are a name in `names`, the table of names without case; sorted, each once."""
    folded = fold_in_place(text)
    prefixes, within_word = names.prefixes, _WITHIN_WORD.match
    found: list[tuple[int, int]] = []
    visited = -1
    for match in _CAPITALISED.finditer(text):
        start, end = match.span()
        if start and _LETTER.match(text, start - 1):  # "iPhone": the capital stands within its word
            start = _token_before(text, start)
        before = _token_before(text, start - 1 if text[start - 1 : start] == " " else start)
        for first in (before, start) if visited < before < start else (start,):
            for key in prefixes(folded[first : first + MAX_NAME]):
                stop = first + len(key)
                if stop >= end and not within_word(text, stop):
                    found.append((first, stop))
        visited = start
    return found


def whole_words(text: str, start: int, end: int) -> bool:
    """Whether the span cuts no word."""
    return not (_WITHIN_WORD.match(text, start) or _WITHIN_WORD.match(text, end))


def _token_before(text: str, end: int) -> int:
    """Start of the word or sign that ends at `end`; `end` itself where white space or nothing stands before it."""
    start = text.rfind(" ", 0, end) + 1
    if text[start:end].isalpha():
        return start
    token = _LAST_TOKEN.search(text, start, end)
    return token.start() if token else end
