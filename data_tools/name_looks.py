"""Whether a span can be a name by its looks: what it is made of, and what stands beside it. No knowledge base.

What of it is a choice is `MentionRules`, which the manifest holds; `data_tools.mentions` states all rules together.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from data_tools.common_words import FUNCTION_WORDS, read_common_words

_NUMBER = re.compile(r"\d+(?:st|nd|rd|th|s)?\Z")
_WORD_BEFORE = re.compile(r"(\w+(?:(?<=\b\w)\.)?)[ \-–’'&/]\Z")
_WORD_AFTER = re.compile(r"[ \-–&/](\w+)")
_JOINED_BEFORE = re.compile(r"\b[^\W\d_a-z]\w*[\-–]\Z")
_JOINED_AFTER = re.compile(r"[\-–][^\W\d_a-z]")
ARTICLES = frozenset(["the", "a", "an"])
_LOOK_BACK = 40  # characters; a longer word before a name is no part of it


@dataclass(frozen=True)
class MentionRules:
    """`common`: words, lower case, that are no names by themselves; `excluded`: names that count only as links."""

    common: frozenset[str]
    excluded: frozenset[str] = frozenset()

    def identity(self) -> dict[str, Any]:
        """What the manifest says of them."""
        return {
            "first or second word": "holds an upper-case letter or a digit",
            "common words": len(self.common),
            "common words sha256": hashlib.sha256(" ".join(sorted(self.common)).encode()).hexdigest(),
            "excluded names": sorted(self.excluded),
        }


DEFAULT_RULES = MentionRules(read_common_words())


def counts_as_name(surface: str, common: frozenset[str], excluded: frozenset[str] = frozenset()) -> bool:
    """Whether an unlinked `surface` can be a mention by its looks.

    common: words that are none by themselves; excluded: names that are none. Either may follow function words.
    """
    if not _has_capital_or_digit(surface):
        return False
    words = surface.split(" ")
    while len(words) > 1 and words[0].lower() in FUNCTION_WORDS and " ".join(words) not in excluded:
        del words[0]
    word = " ".join(words)
    if word in excluded:
        return False
    if len(words) > 1:
        return True
    if _NUMBER.match(word):
        return False
    if len(word) < 2 or word.lower() in common:
        return len(word) > 1 and word.isupper()
    return True


@functools.lru_cache(100_000)
def stands_alone(surface: str) -> bool:
    """Whether two of its words hold an upper-case letter or a digit and are no function words."""
    words = surface.split(" ")
    return len(words) > 1 and sum(_is_name_word(word) for word in words) > 1


def without_article(surface: str) -> str:
    """What follows a leading article, "" where there is none."""
    article, _, rest = surface.partition(" ")
    return rest if article.lower() in ARTICLES else ""


def is_compound(text: str, start: int, end: int) -> bool:
    """Whether a hyphen or dash joins the span with a capitalised word ("Mason" in "Mason-Dixon line")."""
    return bool(_JOINED_BEFORE.search(text, max(0, start - _LOOK_BACK), start) or _JOINED_AFTER.match(text, end))


def is_by_itself(text: str, start: int, end: int) -> bool:
    """Whether no word that could belong to a longer name stands beside the span: a capitalised one, or an initial."""
    before = _WORD_BEFORE.search(text, max(0, start - _LOOK_BACK), start)
    after = _WORD_AFTER.match(text, end)
    return not any(match and _is_name_word(match[1]) and not match[1].isdigit() for match in (before, after))


def _is_name_word(word: str) -> bool:
    return _has_capital_or_digit(word) and word.lower() not in FUNCTION_WORDS


def _has_capital_or_digit(text: str) -> bool:
    return text.lower() != text or any(character.isdigit() for character in text)
