"""Pages from JSON lines, plain or gzip: one object a line with `title`, `text` and, if there is one, `page_id`.

The text is plain: each line of it is a paragraph, without links. A page without `page_id` is numbered by its line.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from data_tools.pages import Page, Paragraph
from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import UserError


def parse_line(path: str | Path, line: int, content: bytes) -> Page:
    """The page of one line.

    Raises:
        UserError: no JSON object, `title` or `text` missing or no text, or a `page_id` that is no whole number.
    """
    place = f"{path}:{line}"
    try:
        entry = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UserError(f'{place}: not JSON ({error}); a line is {{"title": ..., "text": ...}}') from error
    if not isinstance(entry, dict):
        raise UserError(f'{place}: expected an object {{"title": ..., "text": ...}}, found {type(entry).__name__}')
    for key in ("title", "text"):
        if not isinstance(entry.get(key), str):
            raise UserError(f"{place}: {key!r} is missing or no text")
    page_id = entry.get("page_id", line)
    if not isinstance(page_id, int) or isinstance(page_id, bool) or page_id < 0:
        raise UserError(f"{place}: 'page_id' must be a whole number, found {page_id!r}")
    title = normalise_title(entry["title"])
    if not title:
        raise UserError(f"{place}: 'title' is empty")
    paragraphs = (" ".join(paragraph.split()) for paragraph in entry["text"].split("\n"))
    return Page(page_id, title, tuple(Paragraph(paragraph) for paragraph in paragraphs if paragraph))
