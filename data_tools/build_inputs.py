"""What a corpus build depends on, checked and identified before the work begins.

    settings, inputs, knowledge base, tokenizer, spaCy pipeline, room on the disk --> `Inputs`, or the first fault

The fingerprint of all of it (`request`) says whether a folder already holds what is asked for; that of what the steps
load (`tools`) is in the name of every unit's result.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.documents import PieceCounter
from data_tools.languages import language_identity
from data_tools.leakage import leakage_settings
from data_tools.near_duplicates import LEAST_SIMILARITY
from data_tools.output_folder import check_folder
from data_tools.steps import STEPS_VERSION, load_tools
from data_tools.wikipedia.ranges import Range, plan
from data_tools.wikipedia.sources import describe, sources
from erica_dist.config import CorpusJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import fingerprint
from erica_dist.shards.tokenizers import tokenizer_fingerprint

UNPACKED = {".bz2": 5.0, ".gz": 3.0, ".xz": 5.0}  # roughly how many times larger the text is
NEEDED = 2.5  # bytes on the disk for a byte of text: results of units and shards stand side by side
# settings that do not change a document
OF_THE_RUN = ("ray", "resume", "allow_incomplete", "max_failed_share", "max_empty_share")


@dataclass(frozen=True)
class Inputs:
    """What a build depends on, checked and identified. `request`: fingerprint of all of it.

    parts: ranges to read; contents: sha256 of each file by its path; leakage: what was read of each set.
    """

    parts: list[Range]
    contents: dict[str, str]
    files: list[dict[str, Any]]
    settings: dict[str, Any]
    kb: str
    tokenizer: str
    ner: dict[str, Any]
    relation_names: dict[str, str]
    leakage: dict[str, int]
    tools: str
    request: str


def check(job: CorpusJob) -> Inputs:
    """Load and identify all that `job` names.

    Raises:
        UserError: the first thing that is missing or wrong.
    """
    for key in ("inputs", "kb", "tokenizer", "out"):
        if not getattr(job, key) and (key != "tokenizer" or job.filters.count == "pieces"):
            raise UserError(f"build-corpus needs --{'input' if key == 'inputs' else key} (setting {key!r})")
    filters, labelling = job.filters, job.labelling
    for key, value, least in (
        ("filters.max_tokens", filters.max_tokens, max(filters.min_tokens, 8)),
        ("documents_per_shard", job.documents_per_shard, 1),
        ("pages_per_task", job.pages_per_task, 1),
        ("labelling.max_entities", labelling.max_entities or filters.min_entities, filters.min_entities),
        ("labelling.max_labels", labelling.max_labels or filters.min_pairs, filters.min_pairs),
        ("ner.batch_size", job.ner.batch_size, 1),
    ):
        if value < least:
            raise UserError(f"{key}={value} leaves no document; it must be at least {least}")
    for key, number in (
        ("filters.min_tokens", filters.min_tokens),
        ("filters.min_entities", filters.min_entities),
        ("filters.min_pairs", filters.min_pairs),
        ("passage_tokens", job.passage_tokens),
        ("labelling.max_entities", labelling.max_entities),
        ("labelling.max_labels", labelling.max_labels),
        ("labelling.max_per_relation", labelling.max_per_relation),
        ("ray.retries", job.ray.retries),
        ("ray.workers", job.ray.workers),
    ):
        if number < 0:
            raise UserError(f"{key}={number} must not be negative")
    if job.passage_tokens > filters.max_tokens:
        raise UserError(
            f"passage_tokens={job.passage_tokens} must not be more than filters.max_tokens={filters.max_tokens}"
        )
    for key, share in (
        ("max_failed_share", job.max_failed_share),
        ("max_empty_share", job.max_empty_share),
        ("filters.max_mention_share", filters.max_mention_share),
        ("linking.min_margin", job.linking.min_margin),
    ):
        if not 0 <= share <= 1:
            raise UserError(f"{key}={share} is no share; it must be from 0 to 1")
    if not LEAST_SIMILARITY <= filters.near_similarity <= 1:
        raise UserError(
            f"filters.near_similarity={filters.near_similarity} must be from {LEAST_SIMILARITY} to 1; to drop no near "
            "duplicates set filters.duplicates=exact"
        )
    if len(set(job.inputs)) < len(job.inputs):
        raise UserError(f"an input is given twice: {', '.join(job.inputs)}")
    found = sources(job.inputs)
    paths = [Path(source.path) for source in found]
    text = sum(path.stat().st_size * UNPACKED.get(path.suffix, 1.0) for path in paths)
    check_folder(Path(job.out), NEEDED * text)
    tools = load_tools(job)
    relation_names = {
        tools.kb.relation_id(number): tools.kb.relation_name(number) for number in range(tools.kb.relation_count)
    }
    for relation in labelling.excluded_relations:
        if relation not in relation_names:
            near = difflib.get_close_matches(relation, relation_names, n=1, cutoff=0.0)
            raise UserError(
                f"labelling.excluded_relations: the knowledge base has no relation {relation!r}; did you mean {near}?"
            )
    parts = plan(found, allow_incomplete=job.allow_incomplete)
    files, contents = describe(job.inputs, found)
    settings = {
        key: value
        for key, value in dataclasses.asdict(job).items()
        if key not in ("inputs", "kb", "tokenizer", "out", "leakage", *OF_THE_RUN)
    }
    settings["leakage"] = leakage_settings(job.leakage)
    del settings["ner"]["decoder"]  # either gives the same entities
    settings["mentions"] = tools.rules.identity() | {
        "version of the rules": STEPS_VERSION,
        "keep doubtful": job.mentions.keep_doubtful,
    }
    kb = tools.kb.fingerprint
    tokenizer = tokenizer_fingerprint(tools.count.tokenizer) if isinstance(tools.count, PieceCounter) else ""
    ner = tools.recognise.identity() if tools.recognise else {"enabled": False, "corpus": "links and names only"}
    of_units = {key: value for key, value in settings.items() if key not in ("seed", "documents_per_shard")}
    of_units["filters"] = {
        key: value for key, value in settings["filters"].items() if key not in ("duplicates", "near_similarity")
    }
    language = language_identity(filters.language)
    tools_fingerprint = fingerprint([STEPS_VERSION, erica_dist.__version__, of_units, kb, tokenizer, ner, language])
    request = fingerprint([tools_fingerprint, settings, files])
    leakage = tools.leakage.read_counts()
    return Inputs(
        parts, contents, files, settings, kb, tokenizer, ner, relation_names, leakage, tools_fingerprint, request
    )
