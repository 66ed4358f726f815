"""Pages from JSON lines: one object a line with `title`, `text` and, if there is one, `page_id`.

The text is plain: each line of it is a paragraph, without links. An object with `id` and `url` is WikiExtractor's
(`--json`), whose text may hold headings and anchors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson

from data_tools.pages import Page, Paragraph
from data_tools.wikipedia.extracted import extracted_page
from data_tools.wikipedia.titles import normalise_title

NO_ID = -1  # page_id of a page whose line gives none


def parse_line(content: bytes) -> tuple[Page, Counter[str]]:
    """The page of one line, and its paragraphs dropped by reason (WikiExtractor's only).

    Raises:
        ValueError: no JSON object, `title` or `text` missing or no text, or an id that is no whole number.
    """
    try:
        entry = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f'not JSON ({error}); a line is {{"title": ..., "text": ...}}') from error
    if not isinstance(entry, dict):
        raise ValueError(f'expected an object {{"title": ..., "text": ...}}, found {type(entry).__name__}')
    for key in ("title", "text"):
        if not isinstance(entry.get(key), str):
            raise ValueError(f"{key!r} is missing or no text")
    if not normalise_title(entry["title"]):
        raise ValueError("'title' is empty")
    if "page_id" not in entry and "id" in entry and "url" in entry:
        return extracted_page(_extracted_id(entry["id"]), entry["title"], entry["text"].split("\n"))
    page_id = entry.get("page_id")
    if page_id is not None and (not isinstance(page_id, int) or isinstance(page_id, bool) or page_id < 0):
        raise ValueError(f"'page_id' must be a whole number, found {page_id!r}")
    paragraphs = (" ".join(paragraph.split()) for paragraph in entry["text"].split("\n"))
    kept = tuple(Paragraph(paragraph) for paragraph in paragraphs if paragraph)
    return Page(NO_ID if page_id is None else page_id, normalise_title(entry["title"]), kept), Counter()


def _extracted_id(value: Any) -> int:
    if isinstance(value, int | str) and str(value).isascii() and str(value).isdigit():
        return int(value)
    raise ValueError(f"'id' must be a whole number, found {value!r}")
