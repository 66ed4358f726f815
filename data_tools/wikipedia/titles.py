"""The one normaliser of page titles: for titles of a dump, link targets, redirects, and titles in a knowledge base.

Two spellings lead to the same page in MediaWiki exactly when they normalise to the same string here.
"""

from __future__ import annotations

import html
import re
import unicodedata
from urllib.parse import unquote

# What MediaWiki takes for a blank in a title, NUL too (it ends strings elsewhere), and the direction marks it drops.
_BLANKS = re.compile(r"[ _\t\r\n\0\u00a0\u1680\u180e\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_DIRECTION_MARKS = re.compile(r"[\u200e\u200f\u202a-\u202e]")
_UNUSUAL = re.compile(r"[&%_\t\r\n\0]|  ")  # in most titles there is none of these, and no letter beyond ASCII
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


def normalise_title(raw: str) -> str:
    """The title in its one written form: entities and percent escapes decoded, `_` as a blank, blanks collapsed and
    trimmed, NFC, first letter upper case; the rest keeps its case. May be empty.
    """
    if raw.isascii() and not _UNUSUAL.search(raw):
        text = raw.strip()
        return text[:1].upper() + text[1:]
    text = html.unescape(raw) if "&" in raw else raw
    if "%" in text:
        text = _PERCENT.sub(_decode_percent, text)
    text = _DIRECTION_MARKS.sub("", text)
    text = unicodedata.normalize("NFC", _BLANKS.sub(" ", text).strip())
    first = text[:1].upper()
    # "ß" and its like have no single upper-case letter; MediaWiki leaves them as they are.
    return first + text[1:] if len(first) == 1 else text


def _decode_percent(match: re.Match[str]) -> str:
    try:
        return unquote(match.group(), errors="strict")
    except UnicodeDecodeError:
        return match.group()
