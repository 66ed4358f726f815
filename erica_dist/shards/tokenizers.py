"""What a training shard folder must know of its tokenizer, and the fingerprint that ties model and shards together.

Works on any fast tokenizer of transformers by its attributes; only `read_tokenizer` imports transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError
from erica_dist.shards.manifest import fingerprint

_NEEDED = ("pad", "cls", "sep", "mask")


def read_tokenizer(folder: str | Path) -> Any:
    """The tokenizer in a Hugging Face folder. No code of the folder runs, and nothing asks whether it may.

    Raises:
        UserError: it cannot be read without.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of a damaged folder transformers raises whatever its parsers do
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the tokenizer in {folder} cannot be read without running code of that folder or is damaged ({reason}): "
            "give a whole folder with tokenizer.json, as save_pretrained writes it"
        ) from error


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hex sha256 of the fast tokenizer's whole definition, truncation and padding (settings of a call) left out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{_name(tokenizer)} has no fast tokenizer (tokenizer.json); save one with transformers first")
    definition = json.loads(backend.to_str())
    return fingerprint(definition | {"truncation": None, "padding": None})


def tokenizer_record(tokenizer: Any, max_length: int) -> dict[str, Any]:
    """The manifest's `tokenizer` object: fingerprint, vocab_size, ids of the special tokens, max_length.

    Raises:
        UserError: no fast tokenizer, or a padding, [CLS], [SEP] or mask token is missing.
    """
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in _NEEDED}
    missing = [name for name, number in ids.items() if number is None]
    if missing:
        raise UserError(
            f"{_name(tokenizer)} has no {', '.join(missing)} token; ERICA and ELECTRA need all of {_NEEDED}"
        )
    return {
        "fingerprint": tokenizer_fingerprint(tokenizer),
        "vocab_size": len(tokenizer),
        **{f"{name}_id": int(number) for name, number in ids.items()},
        "special_ids": sorted({int(number) for number in tokenizer.all_special_ids}),
        "max_length": max_length,
    }


def _name(tokenizer: Any) -> str:
    return f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r}"
