"""Lines of a text file, plain or gzip (told by its first bytes), each with its number and place."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from erica_dist.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"


class Line(NamedTuple):
    number: int  # from 1
    offset: int  # byte in the unpacked file where the line starts
    content: bytes  # line end included


def read_lines(path: str | Path, offset: int = 0, first: int = 1) -> Iterator[Line]:
    """The lines that are not blank, from `offset` on, which must be the start of line `first`.

    A gzip file is unpacked from its start up to `offset`.

    Raises:
        UserError: the file cannot be read, or its gzip data is damaged or cut off (the text names file and line).
    """
    number = first - 1
    try:
        with open(path, "rb") as plain:
            packed = plain.peek(2)[:2] == _GZIP_MAGIC
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if packed else plain
            stream.seek(offset)
            for number, content in enumerate(stream, first):
                if content.strip():
                    yield Line(number, offset, content)
                offset += len(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: the gzip file breaks after line {number} ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
