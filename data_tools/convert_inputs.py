"""What a conversion depends on, checked and identified before the work begins: a `ConvertJob` -> `Inputs`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.foreign_files import ForeignFile, find_files
from data_tools.lines import read_lines
from data_tools.output_folder import check_folder
from data_tools.tokenization import check_settings
from data_tools.tokenizer_files import load_tokenizer
from data_tools.wikidata.tables import read_relations
from data_tools.wikipedia.sources import Source, describe
from erica_dist.config import ConvertJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import MANIFEST, TRAINING_SHARDS, fingerprint, read_manifest
from erica_dist.shards.tarfiles import sha256_file
from erica_dist.shards.tokenizers import tokenizer_record

CONVERT_VERSION = 1  # raise it when the same inputs give other documents
OF_THE_CORPUS = ("tolerant", "member", "keys", "documents_per_shard", "filters")  # settings that it depends on
UNPACKED = {".bz2": 5.0, ".gz": 4.0, ".tgz": 4.0, ".xz": 5.0}  # roughly how many times larger the text is
NEEDED = 4.0  # bytes on the disk for a byte of text: documents and texts, of files and in shards


@dataclass(frozen=True)
class Inputs:
    """What a run depends on, checked. relations: id -> name; None: none are given.

    settings: those of the corpus; tokenizer: the record of a manifest; request: fingerprint of all that the corpus
    depends on.
    """

    files: list[ForeignFile]
    contents: dict[str, str]  # sha256 of each file by its path
    records: list[dict[str, Any]]
    relations: dict[str, str] | None
    settings: dict[str, Any]
    tokenizer: dict[str, Any]
    request: str


def check(job: ConvertJob) -> Inputs:
    """Find and identify the inputs, load tokenizer and table of relations.

    Raises:
        UserError: the first thing that is missing or wrong.
    """
    for key in ("inputs", "tokenizer", "out"):
        if not getattr(job, key):
            raise UserError(f"convert needs --{'input' if key == 'inputs' else key} (setting {key!r})")
    for key, value, least in (
        ("documents_per_shard", job.documents_per_shard, 1),
        ("filters.min_entities", job.filters.min_entities, 0),
        ("filters.min_pairs", job.filters.min_pairs, 0),
    ):
        if value < least:
            raise UserError(f"{key}={value} must be at least {least}")
    check_settings(job)
    if not job.member or job.member.startswith("."):
        raise UserError(f"member={job.member!r} must be an ending without its first dot, such as `json`")
    out = Path(job.out)
    if job.corpus_out and Path(job.corpus_out).absolute() == out.absolute():
        raise UserError("--corpus-out must be another folder than --out")
    if len(set(job.inputs)) < len(job.inputs):
        raise UserError(f"an input is given twice: {', '.join(job.inputs)}")
    tokenizer = tokenizer_record(load_tokenizer(job.tokenizer), job.max_length)
    relations = read_relation_names(job.relations) if job.relations else None
    files = find_files(job.inputs)
    size = sum(Path(file.path).stat().st_size * UNPACKED.get(Path(file.path).suffix, 1.0) for file in files)
    check_folder(out, NEEDED * size)
    if (out / MANIFEST).is_file():
        read_manifest(out, TRAINING_SHARDS)
    records, contents = describe(job.inputs, [Source(file.path, "jsonlines", file.input) for file in files])
    settings = {key: value for key, value in dataclasses.asdict(job).items() if key in OF_THE_CORPUS}
    settings["relations"] = sha256_file(job.relations) if job.relations else ""
    request = fingerprint([CONVERT_VERSION, erica_dist.__version__, settings, records])
    return Inputs(files, contents, records, relations, settings, tokenizer, request)


def read_relation_names(path: str) -> dict[str, str]:
    """Names of relations by their ids: a JSON object {id: name} or {id: {"label": name}}, or a table as build-kb reads.

    Raises:
        UserError: the file cannot be read, or is neither.
    """
    if ".json" not in Path(path).suffixes[-2:]:
        return dict(read_relations(path))
    try:
        table = json.loads(b"".join(line.content for line in read_lines(path)))
        names = {key: value if type(value) is str else value["label"] for key, value in table.items()}
        return {key: " ".join(name.split()) for key, name in names.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        found = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "it is none"
        raise UserError(f'{path} must be a JSON object {{"P17": "country", ...}}: {found}') from error
