"""The two word pieces that mark where a mention begins and ends, for `erica.entity_markers`.

In: a folder with a tokenizer. Out: which pieces they are and their ids; and the same tokenizer knowing them, so that
text in which they are written is cut as training sees it. Of these the first that there is: `[E]` and `[/E]` (the
tokenizer of a model that was trained with markers); the first two of BERT's `[unused...]` pieces; two new pieces `[E]`
and `[/E]` behind the last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from erica_dist.errors import UserError

START, END = "[E]", "[/E]"
_UNUSED = re.compile(r"\[unused(\d+)\]")


@dataclass(frozen=True)
class Markers:
    """The pieces around a mention."""

    start: str
    end: str
    start_id: int
    end_id: int

    def added_to(self, record: dict[str, Any]) -> dict[str, Any]:
        """A manifest's `tokenizer` object with the markers as special pieces, and their ids as `marker_ids`."""
        ids = [self.start_id, self.end_id]
        return {
            **record,
            "vocab_size": max(record["vocab_size"], *(number + 1 for number in ids)),
            "special_ids": sorted({*record["special_ids"], *ids}),
            "marker_ids": ids,
        }


def find_markers(folder: str | Path) -> Markers:
    """The markers for the tokenizer in `folder`.

    Raises:
        UserError: no tokenizer.json that can be read.
    """
    path = Path(folder) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exceptions
        raise UserError(f"cannot read {path}: {error}; entity markers need the tokenizer of the shards") from error
    start, end = _names(tokenizer.get_vocab())
    tokenizer.add_special_tokens(_added(start, end))
    vocabulary = tokenizer.get_vocab()
    return Markers(start, end, vocabulary[start], vocabulary[end])


def add_markers(tokenizer: Any) -> Any:
    """The fast tokenizer of transformers itself, which now knows its markers as special pieces."""
    added = _added(*_names(tokenizer.get_vocab()))
    tokenizer.add_special_tokens({"extra_special_tokens": added}, replace_extra_special_tokens=False)
    return tokenizer


def _names(vocabulary: dict[str, int]) -> tuple[str, str]:
    if START in vocabulary and END in vocabulary:
        return START, END
    numbers = sorted(int(found[1]) for piece in vocabulary if (found := _UNUSED.fullmatch(piece)))
    return (f"[unused{numbers[0]}]", f"[unused{numbers[1]}]") if len(numbers) > 1 else (START, END)


def _added(start: str, end: str) -> list[AddedToken]:
    # a blank before a marker belongs to the marker, so that the text around it is cut as it is without
    return [AddedToken(piece, lstrip=True, normalized=False, special=True) for piece in (start, end)]
