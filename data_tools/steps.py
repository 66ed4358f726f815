"""One unit of input -> its documents and texts: the steps of the build composed, as a worker runs them.

pages --> passages --> length filter --> possible mentions --> can it pass? --> NER --> mentions --> labels --> filter

In: a `UnitTask`, paths and numbers only. Out: three files in the folder of unit results, `<fingerprint>.jsonl` (one
JSON object a line: the documents, then the texts), `<fingerprint>.npy` (sketches of the documents, to find near
duplicates by) and `<fingerprint>.json` (counts, and where each line is). The last is written last: where it stands, the
unit is done. What a worker loads (pipeline, tokenizer, knowledge base) it keeps for its next unit.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tools.common_words import read_common_words
from data_tools.documents import Passage, PieceCounter, WordCounter, cut_page
from data_tools.doubts import Doubts
from data_tools.filters import cannot_pass, content_hash, labels_fault, length_fault, list_fault
from data_tools.kb import KnowledgeBase
from data_tools.labelling import Labelled, excluded_numbers, label
from data_tools.languages import language_test
from data_tools.leakage import Leakage, load_leakage
from data_tools.linking import Linker, PageContext
from data_tools.mentions import Mention, NerSpan, Possible, possible_mentions, select_mentions
from data_tools.name_looks import MentionRules
from data_tools.near_duplicates import write_sketches
from data_tools.ner import Recogniser, load_recogniser
from data_tools.pages import Page
from data_tools.tokenizer_files import load_tokenizer
from data_tools.wikipedia.reader import Unit, read_unit
from data_tools.wikipedia.redirects import RedirectMap
from erica_dist.config import CorpusJob
from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import commit, temporary_name, write_atomically

STEPS_VERSION = 3  # raise it when any step gives other results: units built by older code are then built again
Counts = dict[str, Counter[str]]  # stage -> reason -> number
# By the coarse type of a page's entity, from its instance-of statements
NOT_ARTICLES = {
    "DISAMBIGUATION": "disambiguation pages by instance-of",
    "LIST": "list pages by instance-of",
    "CATEGORY": "categories by instance-of",
    "TEMPLATE": "templates by instance-of",
}


@dataclass(frozen=True)
class UnitTask:
    """One unit to build. `tools`: fingerprint of what the job loads; `fingerprint`: of the input range and of that."""

    unit: Unit
    job: CorpusJob
    tools: str
    fingerprint: str
    folder: str


@dataclass(frozen=True)
class Tools:
    """What the steps need, loaded."""

    job: CorpusJob
    kb: KnowledgeBase
    linker: Linker
    count: PieceCounter | WordCounter
    rules: MentionRules
    doubts: Doubts
    recognise: Recogniser | None
    excluded: frozenset[int]
    leakage: Leakage
    of_other_language: Callable[[str], bool]


@dataclass(frozen=True)
class Candidate:
    """A passage that goes to NER, with its possible mentions and the place of its page in the unit."""

    page: int
    passage: Passage
    context: PageContext
    possible: list[Possible]


@dataclass(frozen=True)
class Document:
    """A document as JSON object, and its place: number of the page within the unit and of the passage in the page."""

    page: int
    chunk: int
    content: dict[str, Any]


_loaded: dict[str, Tools] = {}


def load_tools(job: CorpusJob) -> Tools:
    """Load all that `job` names.

    Raises:
        UserError: the first thing that cannot be loaded.
    """
    kb = KnowledgeBase.open(job.kb)
    return Tools(
        job=job,
        kb=kb,
        linker=Linker(kb, job.linking.min_margin),
        count=WordCounter() if job.filters.count == "words" else PieceCounter(load_tokenizer(job.tokenizer)),
        rules=MentionRules(read_common_words(job.mentions.common_words), frozenset(job.mentions.excluded_names)),
        doubts=Doubts(kb),
        recognise=load_recogniser(job.ner) if job.ner.enabled else None,
        excluded=excluded_numbers(kb, job.labelling.excluded_relations),
        leakage=load_leakage(job.leakage),
        of_other_language=language_test(job.filters.language),
    )


def build_unit(task: UnitTask) -> dict[str, Any]:
    """Build one unit and write its result files; gives its index (see `write_result`)."""
    began = time.process_time()
    if task.tools not in _loaded:
        _loaded.clear()
        _loaded[task.tools] = load_tools(task.job)
    pages, read = read_unit(task.unit)
    counts: Counts = defaultdict(Counter, {"pages": read})
    leaked = _loaded[task.tools].leakage.pages(RedirectMap(task.unit.redirects).resolve)
    kept: list[tuple[int, Page]] = []
    for number, page in enumerate(pages):
        if page.title in leaked:
            counts["pages"]["left out: leakage"] += 1
            _loaded[task.tools].leakage.count(counts["leakage"], "pages left out", leaked[page.title])
        elif reason := left_out(page, _loaded[task.tools]):
            counts["pages"][f"left out: {reason}"] += 1
        else:
            kept.append((number, page))
    documents = list(documents_of(kept, _loaded[task.tools], counts))
    return write_result(Path(task.folder), task.fingerprint, documents, kept, len(pages), counts, began)


def left_out(page: Page, tools: Tools) -> str:
    """Why the corpus does not take this page by what the knowledge base says it is; "" where it does."""
    entity = tools.kb.entity_of_title(page.title)
    return NOT_ARTICLES.get(tools.kb.entity_type(entity), "") if entity >= 0 else ""


def documents_of(
    pages: Iterable[tuple[int, Page]], tools: Tools, counts: Counts, skip: bool = True
) -> Iterator[Document]:
    """The documents of numbered `pages`, in order. `skip`: drop before NER what cannot pass; no document changes."""
    candidates = [candidate for number, page in pages for candidate in _candidates(number, page, tools, counts, skip)]
    counts["words"]["seen by NER"] += (
        sum(len(candidate.passage.text.split()) for candidate in candidates) if tools.recognise else 0
    )
    found: Iterable[list[NerSpan] | None] = (
        tools.recognise(candidate.passage.text for candidate in candidates)
        if tools.recognise
        else itertools.repeat(None, len(candidates))
    )
    for candidate, spans in zip(candidates, found, strict=True):
        passage = candidate.passage
        of_mentions: Counter[str] = Counter()
        of_labels: Counter[str] = Counter()
        mentions = select_mentions(passage, candidate.possible, candidate.context, spans, of_mentions)
        if not tools.job.mentions.keep_doubtful:
            mentions = tools.doubts.without(passage.text, passage.title, mentions, candidate.context, of_mentions)
        labelled = label(
            passage.text, mentions, tools.kb, tools.job.labelling, tools.excluded, tools.leakage.pairs, of_labels
        )
        fault = labels_fault(labelled, tools.job.filters) or list_fault(passage, labelled, tools.job.filters)
        if not fault and tools.of_other_language(passage.text):
            fault = "in another language"
        if fault:
            counts["passages"][f"dropped: {fault}"] += 1
            continue
        counts["passages"]["passed"] += 1
        counts["mentions"].update(of_mentions)
        counts["labels"].update(of_labels)
        for _, _, sets in labelled.leaked:
            tools.leakage.count(counts["leakage"], "labels removed", sets)
        yield Document(candidate.page, passage.chunk, document_json(passage, labelled, tools.kb))


def _candidates(number: int, page: Page, tools: Tools, counts: Counts, skip: bool) -> Iterator[Candidate]:
    filters = tools.job.filters
    limit = filters.max_tokens - tools.count.special_tokens
    enough = tools.job.passage_tokens or limit
    passages = cut_page(page, tools.count, limit, enough, tools.job.unit)
    of_passages = counts["passages"]
    of_passages["cut"] += len(passages)
    counts["words"]["read"] += sum(len(passage.text.split()) for passage in passages)
    fitting: list[Passage] = []
    for passage in passages:
        fault = length_fault(passage, filters, tools.count.special_tokens)
        if fault:
            of_passages[f"dropped: {fault}"] += 1
        else:
            fitting.append(passage)
    context = tools.linker.page(page.title, passages) if fitting else None
    for passage in fitting:
        assert context is not None
        possible = possible_mentions(passage, tools.linker, context, tools.rules)
        fault = cannot_pass(possible, tools.kb, filters, tools.excluded) if skip else ""
        if fault:
            of_passages[f"dropped before NER: {fault}"] += 1
        else:
            yield Candidate(number, passage, context, possible)


def document_json(passage: Passage, labelled: Labelled, kb: KnowledgeBase) -> dict[str, Any]:
    """The document as a corpus shard holds it; `barred` (pairs not to be taken for unrelated) only where there are."""

    def mention_json(mention: Mention) -> list[Any]:
        return [mention.start, mention.end, mention.source]

    content: dict[str, Any] = {
        "title": passage.title,
        "page_id": passage.page_id,
        "chunk": passage.chunk,
        "text": passage.text,
        "entities": [
            {
                "id": kb.entity_id(entity.number),
                "name": kb.entity_name(entity.number),
                "type": entity.label or None,
                "mentions": [mention_json(mention) for mention in entity.mentions],
            }
            for entity in labelled.entities
        ],
        "relations": sorted([head, tail, kb.relation_id(relation)] for head, tail, relation in labelled.relations),
    }
    if labelled.barred:
        content["barred"] = [list(pair) for pair in labelled.barred]
    return content


def write_result(
    folder: Path,
    name: str,
    documents: Iterable[Document],
    pages: Iterable[tuple[int, Page]],
    page_count: int,
    counts: Counts,
    began: float,
) -> dict[str, Any]:
    """Write the files of a unit and give the index: counts, the unit's number of pages, and for each line
    [page, chunk, content hash, byte offset, bytes] (documents) or [page, content hash, byte offset, bytes] (texts).

    began: CPU seconds of the process when it took up the unit.
    """
    lines = folder / f"{name}.jsonl"
    temporary = temporary_name(lines)
    index: dict[str, Any] = {"fingerprint": name, "pages": page_count, "documents": [], "texts": []}
    texts: list[str] = []
    try:
        with temporary.open("wb") as file:
            offset = 0
            for document in documents:
                data = _line(document.content)
                texts.append(document.content["text"])
                place = [document.page, document.chunk, content_hash(texts[-1])]
                index["documents"].append([*place, offset, len(data)])
                offset += file.write(data)
            for number, page in pages:
                paragraphs = [paragraph.text for paragraph in page.paragraphs]
                data = _line({"title": page.title, "page_id": page.page_id, "paragraphs": paragraphs})
                index["texts"].append([number, content_hash(*paragraphs), offset, len(data)])
                offset += file.write(data)
            commit(file, temporary, lines)
        index["sketches"] = write_sketches(folder / f"{name}.npy", texts)
    except OSError as error:
        raise UserError(f"cannot write {lines}: {error.strerror}; is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)
    index["counts"] = {stage: dict(of_stage) for stage, of_stage in counts.items()}
    # Of this run, not of the unit: told at the end of a build, never part of the corpus
    index["cpu_seconds"] = round(time.process_time() - began, 3)
    index["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    write_atomically(folder / f"{name}.json", json.dumps(index).encode())
    return index


def read_index(folder: Path, name: str) -> dict[str, Any] | None:
    """The index of a finished unit, None where the unit is not done or its lines are not all there."""
    try:
        index = json.loads((folder / f"{name}.json").read_bytes())
        size = os.path.getsize(folder / f"{name}.jsonl")
        of_sketches = os.path.getsize(folder / f"{name}.npy")
    except (OSError, ValueError):
        return None
    last = max((place[-2] + place[-1] for place in [*index["documents"], *index["texts"]]), default=0)
    return index if size == last and of_sketches == index.get("sketches") else None


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
