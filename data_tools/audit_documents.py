"""One document of the audit as HTML: its text with the mentions drawn by spaCy's displaCy, entities and relations.

displaCy escapes the text between and inside mentions, but not what its template is filled with: that is escaped here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from data_tools.audit_counts import reach_of_pairs

SOURCES = ("link", "name", "ner")
_MARK = '<mark class="{source}" title="{about}">{text}<small>{entity}</small></mark>'
_WIKIDATA = re.compile(r"Q[1-9][0-9]*")

CSS = """
.document { border-top: 2px solid var(--line); margin-top: 26px; padding-top: 4px; }
.document h3 { margin: 12px 0 0; }
.document .entities { margin: 10px 0 12px; line-height: 2.1 !important; max-width: 115ch; overflow-wrap: anywhere; }
mark { color: inherit; padding: 2px 4px; border-radius: 4px; border-bottom: 3px solid; }
mark small { font-size: 11px; color: #3c4043; margin-left: 5px; }
mark.link { background: #dcebf7; border-color: #0072B2; }
mark.name { background: #fbe3d3; border-color: #D55E00; border-bottom-style: dashed; }
mark.ner { background: #d5f0e7; border-color: #009E73; border-bottom-style: dotted; }
.relations { columns: 3 340px; column-gap: 28px; list-style: none; padding: 0; margin: 6px 0; font-size: 13px; }
.relations li { break-inside: avoid; padding: 2px 0; overflow-wrap: anywhere; }
.relations i { color: var(--accent); font-style: normal; }
.relations small { color: var(--soft); }
.relations .barred i { color: #b3261e; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
a { color: inherit; }
"""


def document_html(key: int, document: Mapping[str, Any], relation_names: Mapping[str, str]) -> str:
    """An article element; `relation_names`: names by relation id."""
    entities = document["entities"]
    labels = len(document["relations"])
    about = escape(
        f"page {document['page_id']}, passage {document['chunk']}, key {key:012d} · "
        f"{len(document['text'].split()):,} words, {len(entities)} entities, {labels} labels"
    )
    return (
        f'<article class=document id="document-{key:012d}"><h3>{escape(str(document["title"]))}</h3>'
        f"<p class=note>{about}</p>{_text(document)}{_relations(document, relation_names)}"
        f"<details><summary>{len(entities)} entities</summary>{_entities(document)}</details></article>\n"
    )


def _text(document: Mapping[str, Any]) -> str:
    from spacy import displacy

    text = document["text"]
    spans = [
        {"start": start, "end": end, "label": source, "params": _filling(text[start:end], source, entity)}
        for entity in document["entities"]
        for start, end, source in entity["mentions"]
    ]
    drawn = {"text": text, "ents": spans}
    return str(displacy.render(drawn, style="ent", manual=True, jupyter=False, options={"template": _MARK}))


def _filling(surface: str, source: str, entity: Mapping[str, Any]) -> dict[str, str]:
    name, identifier = str(entity["name"]), str(entity["id"])
    shown = identifier if surface.casefold() == name.casefold() else f"{name} {identifier}"
    return {
        "source": source if source in SOURCES else "other",
        "about": escape(f"{name} ({identifier}), {entity['type'] or 'no type'}, found as {source}"),
        "entity": escape(shown),
    }


def _relations(document: Mapping[str, Any], relation_names: Mapping[str, str]) -> str:
    names = [escape(str(entity["name"])) for entity in document["entities"]]
    reach = reach_of_pairs(document)
    rows = []
    for head, tail, relation in document["relations"]:
        name = escape(f"{relation_names.get(relation, '')} ({relation})")
        far = "" if reach[head, tail] else " <small>cross-sentence</small>"
        rows.append(f"<li>{names[head]} — <i>{name}</i> — {names[tail]}{far}</li>")
    barred = document.get("barred", [])
    for head, tail in barred:
        rows.append(f"<li class=barred>{names[head]} — <i>barred</i> — {names[tail]}</li>")
    note = "<p class=note>Barred pairs are neither labelled nor drawn as unrelated.</p>" if barred else ""
    return f"<ul class=relations>{''.join(rows)}</ul>{note}"


def _entities(document: Mapping[str, Any]) -> str:
    rows = []
    for entity in document["entities"]:
        surfaces = Counter(document["text"][start:end] for start, end, _ in entity["mentions"])
        found = Counter(source for _, _, source in entity["mentions"])
        cells = (
            str(entity["name"]),
            str(entity["type"] or ""),
            ", ".join(f"{number} {source}" for source, number in found.items()),
            "; ".join(f"{surface} ({number})" if number > 1 else surface for surface, number in surfaces.items()),
        )
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{entity_link(str(entity["id"]))}</th>{row}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in ("id", "name", "type", "mentions", "as"))
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def entity_link(identifier: str) -> str:
    """The id, as a link to its page where it is one of Wikidata's; nothing is fetched unless it is followed."""
    text = escape(identifier)
    if _WIKIDATA.fullmatch(identifier):
        return f'<a rel=noreferrer href="https://www.wikidata.org/wiki/{text}">{text}</a>'
    return text
