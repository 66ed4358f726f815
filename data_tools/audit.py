"""`erica-dist audit CORPUS`: one HTML page that shows what a corpus holds and what its build dropped.

    manifest --> each shard: hash, then its documents, counted one by one; those drawn are kept --> page

Which documents are drawn is a function of the seed and of their number: all are equally likely, and only the drawn ones
are held. The same corpus and seed give the same page.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from data_tools.audit_counts import CorpusCounts
from data_tools.audit_page import page_html
from data_tools.progress import StepProgress
from data_tools.report import seconds_text
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from erica_dist.shards.manifest import CORPUS, read_manifest
from erica_dist.shards.tarfiles import sha256_file, write_atomically
from erica_dist.shards.verify import document_fault

REPORT_EVERY = 200  # documents
_FIELDS = ("counts", "relations", "shards", "settings", "inputs", "ner", "documents", "text_pages")


def audit(corpus: str | Path, out: str | Path, documents: int = 30, seed: int = 0) -> CorpusCounts:
    """Write the page `out` about the corpus folder `corpus`, with `documents` of its documents drawn; gives its counts.

    Raises:
        UserError: no corpus, one without documents, a damaged shard, or a page that cannot be written.
    """
    started = time.monotonic()
    folder, page = Path(corpus), Path(out)
    if documents < 0:
        raise UserError(f"--documents {documents} must be at least 0")
    if page.is_dir():
        raise UserError(f"{page} is a folder; name a file, such as --out {page / 'audit.html'}")
    if not page.absolute().parent.is_dir():
        raise UserError(f"there is no folder {page.absolute().parent}; make it or give another --out")
    manifest = read_manifest(folder, CORPUS)
    missing = [field for field in _FIELDS if field not in manifest]
    if missing:
        raise UserError(f"the manifest of {folder} lacks {', '.join(missing)}; build the corpus again")
    if not manifest["documents"]:
        raise UserError(f"{folder} holds no documents; build it from other pages or with looser filters")
    wanted = set(random.Random(seed).sample(range(manifest["documents"]), min(documents, manifest["documents"])))
    counts, drawn = count_documents(folder, manifest, wanted)
    text = page_html(folder.name or str(folder.absolute().name), manifest, counts, drawn, seed)
    write_atomically(page, text.encode("utf-8", "replace"))
    print(
        f"audit: {counts.documents:,} documents, {len(counts.relations)} relations, {len(drawn)} documents drawn; "
        f"{page} written, {len(text) / 1e6:.1f} MB; {seconds_text(time.monotonic() - started)}",
        flush=True,
    )
    return counts


def count_documents(
    folder: Path, manifest: dict[str, Any], wanted: set[int]
) -> tuple[CorpusCounts, list[tuple[int, dict[str, Any]]]]:
    """All documents of a corpus counted, and those at the `wanted` places (from 0, over all shards) with their keys.

    Raises:
        UserError: a shard is missing, damaged, or holds something else than the manifest says.
    """
    counts = CorpusCounts()
    drawn: list[tuple[int, dict[str, Any]]] = []
    relations = {relation["id"] for relation in manifest["relations"]}
    with StepProgress("audit: documents", manifest["documents"]) as progress:
        for shard in manifest["shards"]:
            if shard["kind"] != "documents":
                continue
            path = folder / shard["file"]
            if sha256_file(path) != shard["sha256"]:
                raise UserError(f"{path} is damaged: its sha256 is not the manifest's; build or copy it again")
            reported = counts.documents
            for key, document in read_documents(path):
                if counts.documents in wanted:
                    drawn.append((key, document))
                fault = _counted(counts, document, relations)
                if fault:
                    raise UserError(f"{path}: document {key:012d}: {fault}; build the corpus again")
                if counts.documents - reported == REPORT_EVERY:
                    progress.advance(REPORT_EVERY, f"{counts.labels.total:,} labels")
                    reported = counts.documents
            progress.advance(counts.documents - reported, f"{counts.labels.total:,} labels")
    if counts.documents != manifest["documents"]:
        raise UserError(
            f"{folder} holds {counts.documents} documents, its manifest says {manifest['documents']}; build it again"
        )
    return counts, drawn


def _counted(counts: CorpusCounts, document: dict[str, Any], relations: set[str]) -> str:
    """Adds the document to the counts; gives why it could not be, "" where it was."""
    try:
        fault = document_fault(document, relations)
        missing = [field for field in ("title", "page_id", "chunk") if field not in document]
        if missing:
            return f"lacks {', '.join(missing)}"
        if not fault:
            counts.add(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"a field is missing or of a wrong kind ({error!r})"
    return fault
