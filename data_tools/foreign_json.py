"""A JSON text, plain or packed -> its records, one after the other: those of a list, or values that follow each other.

JSON lines are values that follow each other, but values may also span lines. Of a list of any size, one item and the
rest of the piece that was read are held. A value that is none costs its line; in a list, where nobody can tell where
it ends, the rest of the list.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from data_tools.wikipedia.pieces import pieces
from erica_dist.errors import DamagedInputError

_CHUNK = 1 << 20  # characters
_NEAR = 64  # characters before the end of what was read within which an error may come of the end
_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class JsonValue(NamedTuple):
    """place: file and line, or number in the list from 1; fault: why it is no JSON value, "" where `content` is one."""

    place: str
    content: Any
    fault: str = ""


def values_of_json(path: str) -> Iterator[JsonValue]:
    """The records of the file `path`.

    Raises:
        UserError: the file cannot be read.
        DamagedInputError: it is cut off or damaged, or a list goes wrong; the records before were given.
    """
    window = _Window(path)
    if window.peek() != "[":
        while window.peek():
            place = f"{path}, line {window.line}"
            try:
                value = JsonValue(place, window.value())
            except ValueError as error:
                value = JsonValue(place, None, f"no valid JSON ({error})")
                window.skip_line()
            yield value
        return
    number = 0
    window.go(window.at + 1)
    closed = window.peek() == "]"
    while not closed:
        number += 1
        place = f"{path}, record {number}"
        try:
            item = window.value()
        except ValueError as error:
            raise DamagedInputError(f"{place} (line {window.line}): no valid JSON ({error}); fetch it again") from error
        yield JsonValue(place, item)
        mark = window.peek()
        if mark not in (",", "]"):
            found = f"{mark!r} stands" if mark else "the file ends"
            raise DamagedInputError(f"{place} (line {window.line}): {found} where `,` or `]` is due; fetch it again")
        closed = mark == "]"
        window.go(window.at + (not closed))
        window.peek()
    window.go(window.at + 1)
    if window.peek():
        raise DamagedInputError(f"{path}, line {window.line}: the list of records has ended, but the file goes on")


class _Window:
    """The part of a JSON text that is read, from `at` on; `line`: number of the line that `at` is in."""

    def __init__(self, path: str):
        self._pieces = pieces(path)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self.path = path
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False

    def more(self) -> None:
        """Read on, by at least as much as is held, so that a large item costs no more than twice its parsing."""
        parts = [self.text[self.at :]]
        wanted = max(_CHUNK, len(parts[0]))
        while wanted > 0 and not self.ended:
            piece = next(self._pieces, None)
            try:
                parts.append(self._decode.decode(piece.data if piece else b"", final=piece is None))
            except UnicodeDecodeError as error:
                raise DamagedInputError(f"{self.path}, after line {self.line}: no UTF-8 ({error.reason})") from error
            self.ended = piece is None
            wanted -= len(parts[-1])
        self.text, self.at = "".join(parts), 0

    def go(self, place: int) -> None:
        self.line += self.text.count("\n", self.at, place)
        self.at = place

    def peek(self) -> str:
        """The next character that is no blank; "" at the end."""
        while True:
            match = _BLANKS.match(self.text, self.at)
            self.go(match.end() if match else self.at)
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def value(self) -> Any:
        """The value that starts here.

        Raises:
            ValueError: there is none.
        """
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                of_the_end = error.pos >= len(self.text) - _NEAR or error.msg.startswith("Unterminated string")
                if self.ended or not of_the_end:
                    raise
            except RecursionError as error:
                raise ValueError("nested too deep") from error
            else:
                # a number may go on in the next piece
                if self.ended or end < len(self.text):
                    self.go(end)
                    return value
            self.more()

    def skip_line(self) -> None:
        while (end := self.text.find("\n", self.at)) < 0 and not self.ended:
            self.more()
        self.go(end + 1 if end >= 0 else len(self.text))
