"""A tokenizer's folder: loading it, and copying it so that it loads the same elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError
from erica_dist.shards.tokenizers import read_tokenizer, tokenizer_fingerprint

# config.json: some tokenizers are told only by the model's type in it
FILES = (
    "tokenizer*",
    "vocab*",
    "merges*",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "config.json",
)


def load_tokenizer(folder: str) -> Any:
    """The fast tokenizer in a Hugging Face folder, without the truncation and padding that its file may ask for.

    Raises:
        UserError: no such folder, or no fast tokenizer in it.
    """
    if not Path(folder).is_dir():
        raise UserError(f"tokenizer={folder!r} is no folder; give a Hugging Face folder with tokenizer.json")
    try:
        tokenizer = read_tokenizer(folder)
    except UserError as error:
        raise UserError(f"tokenizer={folder!r} cannot be loaded: {error}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(f"tokenizer={folder!r} is no fast tokenizer; word pieces need offsets (tokenizer.json)")
    # Sentence encoders ship with both on: every text would be cut and filled to one length
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def copy_tokenizer(source: Path, target: Path, expected: str) -> None:
    """Copy the files of the tokenizer in `source` to the folder `target` (made anew) and see that they load.

    Raises:
        UserError: the copy is not the tokenizer with the fingerprint `expected`.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in sorted({path for pattern in FILES for path in source.glob(pattern) if path.is_file()}):
        shutil.copyfile(path, target / path.name)
    if tokenizer_fingerprint(load_tokenizer(str(target))) != expected:
        raise UserError(f"the files of the tokenizer {source} do not make the same tokenizer when copied to {target}")
