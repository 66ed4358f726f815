"""The tokenizer of a run: whether that of `model.init` is the one that cut the shards, and what the run's folder keeps.

A model that was trained with entity markers has a tokenizer that knows them (`stream.markers`): the shards' tokenizer
with two special pieces more. The two fit together, and the run keeps the one with the markers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from erica_dist.config import EricaJob
from erica_dist.errors import UserError
from erica_dist.shards.tokenizers import read_tokenizer, tokenizer_fingerprint
from erica_dist.stream.corpora import Corpora
from erica_dist.stream.markers import add_markers, find_markers


def check_tokenizer(job: Any, corpora: Corpora) -> None:
    """Refuse shards that another tokenizer than the model's own cut.

    Raises:
        UserError: names both, and the command that cuts the corpus anew.
    """
    found = _own_fingerprint(job.model.init)
    shards = corpora.tokenizer["fingerprint"]
    if found in ("", shards) or (isinstance(job, EricaJob) and found == _marked_fingerprint(corpora)):
        return
    init = job.model.init
    raise UserError(
        f"the tokenizer of model.init={init} ({found[:12]}) is not the one that cut data.shards={corpora.place} "
        f"({shards[:12]}): run `erica-dist tokenize --tokenizer {init}` into a new folder"
    )


def write_tokenizer(folder: Path, job: Any, corpora: Corpora) -> None:
    """The model's tokenizer into `folder`: that of the shards, with the markers where the model knows them.

    Raises:
        UserError: the tokenizer does not keep its markers.
    """
    source = corpora.tokenizer_folder()
    if not isinstance(job, EricaJob) or not (job.erica.entity_markers or _knows_markers(job.model.init, corpora)):
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return
    add_markers(read_tokenizer(source)).save_pretrained(folder)
    again = read_tokenizer(folder)
    markers = find_markers(source)
    if again.convert_tokens_to_ids([markers.start, markers.end]) != [markers.start_id, markers.end_id]:
        raise UserError(
            f"the tokenizer in {source} does not keep the markers {markers.start} and {markers.end}: "
            "train without erica.entity_markers, or with another tokenizer"
        )


def _knows_markers(init: str, corpora: Corpora) -> bool:
    found = _own_fingerprint(init)
    return found not in ("", corpora.tokenizer["fingerprint"]) and found == _marked_fingerprint(corpora)


def _own_fingerprint(init: str) -> str:
    """Of the tokenizer in the folder `init`; empty where there is none."""
    for folder in (Path(init), Path(init) / "discriminator") if init else ():
        if (folder / "tokenizer.json").is_file():
            return tokenizer_fingerprint(read_tokenizer(folder))
    return ""


def _marked_fingerprint(corpora: Corpora) -> str:
    return tokenizer_fingerprint(add_markers(read_tokenizer(corpora.tokenizer_folder())))
