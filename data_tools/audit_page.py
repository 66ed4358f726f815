"""The audit's page: one HTML file without anything from outside and without scripts.

In: the corpus's manifest, what was counted of its documents, and those drawn. Out: the page as text, the same for the
same values. Every text of the corpus is escaped, and the page's own policy forbids scripts and loading besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from data_tools import audit_pictures as pictures
from data_tools.audit_counts import NO_TYPE, CorpusCounts, Distribution
from data_tools.audit_documents import CSS as DOCUMENT_CSS
from data_tools.audit_documents import document_html
from data_tools.audit_funnel import Step, page_steps, passage_steps, unit_of, word_steps
from data_tools.audit_tables import Row, as_text, flat, folded, percent, table
from erica_dist.page_style import CSS, picture

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
NAMES_DRAWN = 40
_SHORT_LIST = 25
_LISTED = 20
_TOLD = (
    "counts",
    "relations",
    "shards",
    "settings",
    "inputs",
    "incomplete",
    "documents",
    "text_pages",
    "complete",
    "failed_units",
    "failed_share",
)
_IDENTITY = {
    "tool_version": "version of erica-dist",
    "kb_fingerprint": "knowledge base",
    "tokenizer_fingerprint": "tokenizer",
    "request": "request (inputs and settings)",
    "fingerprint": "corpus",
}
_CSS = (
    """
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: -12px 0 18px; }
nav a { color: var(--accent); text-decoration: none; font-weight: 500; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; margin: 14px 0 0; }
.tiles div { border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; }
.tiles b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.wide { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 560px), 1fr)); gap: 14px; }
.wide, .panels { align-items: start; margin-top: 14px; }
td, tbody th { padding: 4px 14px 4px 0; font-size: 14px; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; white-space: nowrap; }
tr.dropped th, tr.dropped td { color: #a34400; font-weight: 400; }
details { margin-top: 12px; }
.warning { background: #fef7e0; border-left: 4px solid #E69F00; padding: 8px 14px; margin: 14px 0 0; }
"""
    + DOCUMENT_CSS
)


def page_html(
    corpus: str,
    manifest: Mapping[str, Any],
    counts: CorpusCounts,
    drawn: Sequence[tuple[int, dict[str, Any]]],
    seed: int,
) -> str:
    """The whole page. drawn: keys and documents to show; seed: by which they were drawn."""
    names = {str(relation["id"]): str(relation["name"]) for relation in manifest["relations"]}
    sections = {
        "Dropped": ("What was dropped where", _dropped(manifest["counts"])),
        "Documents": ("Documents", _sizes(counts)),
        "Relations": ("Relations", _relations(counts, names)),
        "Entities": ("Entities and mentions", _entities(counts)),
        "Identity": ("Settings and identity", _identity(manifest)),
        "Drawn": (f"{len(drawn)} documents, drawn", _drawn(drawn, names, seed, counts.documents)),
    }
    links = "".join(f'<a href="#{key.lower()}">{title}</a>' for key, (title, _) in sections.items())
    body = "".join(
        f'<section id="{key.lower()}"><h2>{title}</h2>{content}</section>\n'
        for key, (title, content) in sections.items()
    )
    title = escape(f"Audit of the corpus {corpus}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{CSS}{_CSS}</style></head><body><main><header><h1>{title}</h1><p>{_subtitle(manifest)}</p></header>"
        f"<nav>{links}</nav><section><h2>In short</h2>{_tiles(manifest, counts)}{_warnings(manifest)}</section>\n"
        f"{body}<footer>Written by <code>erica-dist audit</code> from the documents and the manifest.</footer>"
        f"</main></body></html>\n"
    )


def _subtitle(manifest: Mapping[str, Any]) -> str:
    files = ", ".join(escape(str(file["path"])) for file in manifest["inputs"])
    return f"{escape(_ner(manifest))} &middot; from {files}"


def _ner(manifest: Mapping[str, Any]) -> str:
    ner = manifest["ner"]
    if not ner.get("enabled"):
        return "links and names only, without NER"
    return f"NER by {ner.get('model')} {ner.get('model_version', '')}".strip()


def _tiles(manifest: Mapping[str, Any], counts: CorpusCounts) -> str:
    tiles = {
        "documents": counts.documents,
        "words in them": counts.words.total,
        "entities in them": counts.entities.total,
        "distinct entities": len(counts.popularity.counts),
        "mentions": counts.mentions.total,
        "labels": counts.labels.total,
        "labelled pairs": counts.pairs.total,
        "relations": len(counts.relations),
        "pages of text": manifest["text_pages"],
    }
    cells = "".join(f"<div><b>{number:,}</b><span>{escape(name)}</span></div>" for name, number in tiles.items())
    return f"<div class=tiles>{cells}</div>"


def _warnings(manifest: Mapping[str, Any]) -> str:
    """What of the input is missing, where something is."""
    texts = []
    if missing := manifest.get("incomplete"):
        texts.append(f"<b>Incomplete:</b> of the inputs this could not be read or built:{_listed(missing)}")
    if failed := manifest.get("failed_units"):
        share = manifest.get("failed_share", {}).get("pages")
        of_pages = f", {percent(share)} of the pages" if isinstance(share, float) else ""
        texts.append(f"<b>{len(failed):,} failed units</b>{of_pages}:{_listed(failed)}")
    return "".join(f"<div class=warning>{text}</div>" for text in texts)


def _listed(values: Sequence[Any]) -> str:
    items = [escape(as_text(value)) for value in values[:_LISTED]]
    if len(values) > _LISTED:
        items.append(f"and {len(values) - _LISTED:,} more, listed in the manifest")
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


# ------------------------------------------------------------------------------------------------ sections


def _dropped(counts: Mapping[str, Mapping[str, int]]) -> str:
    pages, passages, words = page_steps(counts), passage_steps(counts), word_steps(counts)
    shown = (
        picture(pictures.waterfall_svg("Pages", pages), _told("pages", pages))
        + picture(pictures.waterfall_svg("Passages", passages), _told("passages", passages))
        + picture(pictures.waterfall_svg("Words", words), _told("words", words))
    )
    rows: list[Row] = []
    for unit, steps in (("pages", pages), ("passages", passages), ("words", words)):
        first = max(steps[0].number, 1)
        for step in steps:
            rows.append((unit, step.name, -step.number if step.dropped else step.number, percent(step.number / first)))
    every: list[Row] = [
        (stage, reason, number, unit_of(stage, reason))
        for stage, of_stage in counts.items()
        for reason, number in of_stage.items()
    ]
    every_table = table(("stage", "what", "number", "unit"), every)
    return (
        f"<div class=wide>{shown}</div><h3>The same as a table</h3>"
        f"{table(('unit', 'step', 'number', 'share'), rows, dropped=2)}"
        f"<details><summary>every count of the manifest, with its unit</summary>{every_table}</details>"
    )


def _told(unit: str, steps: Iterable[Step]) -> str:
    return f"{unit}: " + ", ".join(f"{step.name} {'-' if step.dropped else ''}{step.number:,}" for step in steps)


def _sizes(counts: CorpusCounts) -> str:
    shown: list[tuple[str, str, Distribution, bool]] = [
        ("Words of a document", "words", counts.words, False),
        ("Entities of a document", "entities", counts.entities, False),
        ("Mentions of a document", "mentions", counts.mentions, False),
        ("Mentions of an entity in a document", "mentions", counts.mentions_of_entity, True),
        ("Labels of a document", "labels (head, relation, tail)", counts.labels, True),
        ("Labelled pairs of a document", "ordered pairs", counts.pairs, True),
        ("Distinct relations of a document", "relations", counts.kinds_of_relation, False),
        ("Barred pairs of a document", "ordered pairs", counts.barred, True),
    ]
    rows: list[Row] = []
    figures = []
    for title, unit, values, log in shown:
        low, middle, high = (values.quantile(share) for share in (0.05, 0.5, 0.95))
        rows.append((title, values.total, values.mean, low, middle, high, values.largest))
        counted = "entities of documents" if values is counts.mentions_of_entity else "documents"
        drawn = pictures.histogram_svg(title, unit, counted, values, log)
        figures.append(picture(drawn, f"histogram: {title.lower()}"))
    header = ("", "in all", "mean", "5 %", "median", "95 %", "largest")
    return f"<div class=panels>{''.join(figures)}</div>{table(header, rows)}"


def _relations(counts: CorpusCounts, names: Mapping[str, str]) -> str:
    ordered = sorted(counts.relations.items(), key=lambda entry: (-entry[1], entry[0]))
    total = max(counts.labels.total, 1)
    drawn = [(f"{relation} {names.get(relation, '')}", number) for relation, number in ordered[:NAMES_DRAWN]]
    numbers = [number for _, number in ordered]
    rows: list[Row] = [
        (
            relation,
            names.get(relation, ""),
            number,
            percent(number / total),
            counts.relation_documents[relation],
            percent(counts.relation_documents[relation] / max(counts.documents, 1)),
        )
        for relation, number in ordered
    ]
    head = f"The most frequent relation holds {percent(sum(numbers[:1]) / total)} of the labels"
    for k in (5, 10, 20):
        if k < len(numbers):
            head += f", the {k} most frequent {percent(sum(numbers[:k]) / total)}"
    reach = [("labelled pairs", [(name, counts.reach[name]) for name in ("single sentence", "cross-sentence")])]
    title = f"The {len(drawn)} most frequent relations, of {len(ordered)}"
    header = ("id", "relation", "labels", "of all labels", "documents", "of all documents")
    return (
        f"<p>{head}. {counts.reach['single sentence']:,} labelled pairs have a sentence that mentions both ends, "
        f"{counts.reach['cross-sentence']:,} have none (cross-sentence).</p>"
        f"<div class=wide>{picture(pictures.names_svg(title, 'labels, log scale', drawn, total, log=True), title)}<div>"
        f"{picture(pictures.head_svg('Share of labels in the head', 'relations', numbers), 'share of the head')}"
        f"{picture(pictures.shares_svg('Reach of labelled pairs', reach), 'single- and cross-sentence pairs')}"
        f"</div></div>{folded('all relations', header, rows)}"
    )


def _entities(counts: CorpusCounts) -> str:
    sources = sorted(counts.sources.items(), key=lambda entry: (-entry[1], entry[0]))
    types = sorted(counts.types.items(), key=lambda entry: (entry[0] == NO_TYPE, -entry[1], entry[0]))
    of_entities = counts.popularity.counts
    documents = max(counts.documents, 1)
    popular: list[Row] = [
        (identifier, name, number, percent(number / documents))
        for (identifier, name), number in counts.popularity.most_frequent(NAMES_DRAWN)
    ]
    spelt: list[Row] = [
        (surface, name, identifier, number)
        for (surface, name, identifier), number in counts.spellings.most_frequent(NAMES_DRAWN)
    ]
    by_source = ", ".join(f"{name} {percent(number / max(counts.mentions.total, 1))}" for name, number in sources)
    rank = f"{len(of_entities):,} distinct entities, {int((of_entities == 1).sum()):,} of them in one document only"
    title, unit = "Types of entities (NER labels)", "entities of documents"
    return (
        f"<p>Mentions by what found them: {escape(by_source)}. {rank}.</p><div class=wide>"
        f"{picture(pictures.names_svg(title, unit, types, counts.entities.total), 'types')}<div>"
        f"{picture(pictures.shares_svg('What found the mentions', [('mentions', sources)]), 'share of each source')}"
        f"{picture(pictures.ranks_svg('Popularity of entities', of_entities), 'documents of each entity by rank')}"
        f"</div></div><h3>The most popular entities</h3>"
        f"{table(('id', 'entity', 'documents', 'of all'), popular[:_SHORT_LIST], linked=0)}"
        f"<h3>The most frequent mentions that are spelt otherwise than their entity</h3>"
        f"{table(('mention', 'entity', 'id', 'mentions'), spelt, linked=2)}"
    )


def _identity(manifest: Mapping[str, Any]) -> str:
    counts = manifest["counts"]
    rows: list[Row] = [("complete", "yes" if manifest["complete"] and not manifest.get("incomplete") else "no")]
    rows += [(text, as_text(manifest.get(key, ""))) for key, text in _IDENTITY.items()]
    rows.append(("mentions", _ner(manifest)))
    known = {*_TOLD, *_IDENTITY, "ner", "format", "version"}
    rows += [(key, as_text(value)) for key, value in sorted(manifest.items()) if key not in known]
    leaked: list[Row] = [
        (stage, reason, number, unit_of(stage, reason))
        for stage, of_stage in counts.items()
        for reason, number in of_stage.items()
        if "leak" in f"{stage} {reason}" or "barred" in reason
    ]
    inputs: list[Row] = [(str(file["path"]), int(file["bytes"]), str(file["sha256"])) for file in manifest["inputs"]]
    settings: list[Row] = [(key, value) for key, value in flat(manifest["settings"])]
    removed = table(("stage", "what", "number", "unit"), leaked) if leaked else "<p>Nothing.</p>"
    return (
        f"{table(('', ''), rows)}<h3>Inputs</h3>{table(('file', 'bytes', 'sha256'), inputs)}"
        f"<h3>What leakage removed</h3>{removed}<h3>Settings</h3>{table(('setting', 'value'), settings)}"
        f"<h3>NER</h3>{table(('', ''), list(flat(manifest['ner'])))}"
    )


def _drawn(drawn: Sequence[tuple[int, dict[str, Any]]], names: Mapping[str, str], seed: int, documents: int) -> str:
    legend = "".join(
        f"<mark class={source}>{text}<small>entity</small></mark> "
        for source, text in (
            ("link", "found by a link"),
            ("name", "by a known name"),
            ("ner", "by NER and a known name"),
        )
    )
    return f"<p>Drawn of {documents:,} by seed {seed}, each equally likely. {legend}</p>" + "".join(
        document_html(key, document, names) for key, document in drawn
    )
