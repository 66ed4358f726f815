"""Tables of entities, triples and labels -> the memory-mapped folder that `data_tools.kb` reads.

    tables --> entities numbered by id, names, titles
           --> facts as sorted keys --> facts of each entity --> priors of the candidates of each name
           --> arrays and tries in a temporary folder --> renamed to the folder asked for

Every choice depends on the set of lines only, so tables in another order give the same bytes.

Prior of a candidate: the tables hold no link counts, so the share is taken by how much is known of an entity,
`(facts + 1)`, and an entity whose label (first name) it is counts `LABEL_WEIGHT` times as much as one that bears it
as an alias. Priors of one name sum to 1.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import marisa_trie
import numpy as np
from numpy.typing import NDArray

import erica_dist
from data_tools.kb import FORMAT, HEAD_SHIFT, fold_name, pair_keys
from data_tools.wikidata.tables import read_entities, read_relations, read_triples
from data_tools.wikipedia.titles import normalise_title
from erica_dist.config import KnowledgeBaseJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import fingerprint, write_manifest
from erica_dist.shards.tarfiles import sha256_file

LABEL_WEIGHT = 4.0
MAX_RELATIONS = 1 << 16


@dataclass
class Entities:
    """All entities, numbered in the order of their ids."""

    ids: list[str]
    names: list[tuple[str, ...]]  # label first
    titles: list[str]  # "" where the table gives none

    def numbers(self) -> dict[str, int]:
        return {entity: number for number, entity in enumerate(self.ids)}


@dataclass
class Facts:
    """Distinct facts sorted by (head, tail, relation); relations numbered in the order of their ids."""

    keys: NDArray[np.uint64]  # head << 32 | tail
    relations: NDArray[np.uint16]
    relation_ids: list[str]

    @property
    def heads(self) -> NDArray[np.int64]:
        return (self.keys >> HEAD_SHIFT).astype(np.int64)

    @property
    def tails(self) -> NDArray[np.int64]:
        return (self.keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def build_kb(job: KnowledgeBaseJob) -> dict[str, int]:
    """Build the folder `job.out` (replaced if a knowledge base stands there) and return the counts of its manifest.

    Raises:
        UserError: a setting or table is missing, a line is malformed, nothing is left, or `job.out` is something else.
    """
    for key in ("entities", "triples", "out"):
        if not getattr(job, key):
            raise UserError(f"build-kb needs --{key} (setting {key!r})")
    out = Path(job.out)
    if out.exists() and not (out / "manifest.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no knowledge base; give another --out or remove it")
    counts: Counter[str] = Counter()
    print(f"build-kb: reading {job.entities}", flush=True)
    entities = _entities(job.entities, counts)
    print(f"build-kb: {len(entities.ids):,} entities; reading {job.triples}", flush=True)
    facts = _facts(job.triples, entities.numbers(), frozenset(job.excluded_relations), counts)
    labels = _labels(job.relations, facts.relation_ids, counts)
    print(f"build-kb: {len(facts.keys):,} facts of {len(facts.relation_ids)} relations; writing {out}", flush=True)

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"cannot write beside {out}: {error.strerror}") from error
    try:
        temporary.chmod(0o755)
        _write(temporary, entities, facts, labels, counts)
        files = {path.name: sha256_file(path) for path in sorted(temporary.iterdir())}
        manifest = {
            "format": FORMAT,
            "version": 1,
            "tool_version": erica_dist.__version__,
            "settings": {"excluded_relations": sorted(job.excluded_relations), "label_weight": LABEL_WEIGHT},
            "inputs": _inputs(job),
            "counts": dict(sorted(counts.items())),
            "files": files,
            "fingerprint": fingerprint(files),
            "complete": True,
        }
        write_manifest(temporary, manifest)
        if out.exists():
            old = out.rename(temporary.with_name(temporary.name + ".old"))
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
    except OSError as error:
        raise UserError(f"cannot write the knowledge base {out}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"build-kb: done: {', '.join(f'{key} {value:,}' for key, value in sorted(counts.items()))}", flush=True)
    return dict(counts)


def _inputs(job: KnowledgeBaseJob) -> list[dict[str, str | int]]:
    paths = [Path(path) for path in (job.entities, job.triples, job.relations) if path]
    return [{"path": path.name, "bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in paths]


def _entities(path: str, counts: Counter[str]) -> Entities:
    rows = sorted(read_entities(path))
    if not rows:
        raise UserError(f"{path} holds no entity; a line is id<TAB>name|name|...")
    found = Entities([], [], [])
    for row in rows:
        if found.ids and found.ids[-1] == row.id:
            # The label of an entity that stands in several lines is the first of them in sorted order.
            found.names[-1] = tuple(dict.fromkeys(found.names[-1] + row.names))
            found.titles[-1] = found.titles[-1] or row.title
            counts["entity lines merged"] += 1
        else:
            found.ids.append(row.id)
            found.names.append(row.names)
            found.titles.append(row.title)
    counts["entities"] = len(found.ids)
    return found


def _facts(path: str, numbers: dict[str, int], excluded: frozenset[str], counts: Counter[str]) -> Facts:
    heads: list[int] = []
    tails: list[int] = []
    relations: list[int] = []
    relation_numbers: dict[str, int] = {}
    for head, relation, tail in read_triples(path):
        counts["triples read"] += 1
        if relation in excluded:
            counts["triples of excluded relations"] += 1
        elif head not in numbers or tail not in numbers:
            counts["triples with an unknown end"] += 1
        elif head == tail:
            counts["triples from an entity to itself"] += 1
        else:
            heads.append(numbers[head])
            tails.append(numbers[tail])
            relations.append(relation_numbers.setdefault(relation, len(relation_numbers)))
    if not heads:
        raise UserError(f"{path} holds no triple between two entities of the table ({dict(counts)})")
    if len(relation_numbers) > MAX_RELATIONS:
        raise UserError(f"{path} holds {len(relation_numbers)} relations, more than {MAX_RELATIONS}; exclude some")

    relation_ids = sorted(relation_numbers)
    renumber = np.empty(len(relation_ids), np.uint16)
    renumber[[relation_numbers[relation] for relation in relation_ids]] = np.arange(len(relation_ids))
    keys = pair_keys(np.array(heads, np.int64), np.array(tails, np.int64))
    relation_of = renumber[np.array(relations, np.int64)]
    order = np.lexsort((relation_of, keys))
    keys, relation_of = keys[order], relation_of[order]
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:] != keys[:-1]) | (relation_of[1:] != relation_of[:-1])
    counts["duplicate triples"] += int((~new).sum())
    counts["facts"] = int(new.sum())
    counts["relations"] = len(relation_ids)
    return Facts(keys[new], relation_of[new], relation_ids)


def _labels(path: str, relation_ids: list[str], counts: Counter[str]) -> list[str]:
    table: dict[str, str] = {}
    for relation, label in read_relations(path) if path else ():
        if table.setdefault(relation, label) != label:
            raise UserError(f"{path}: relation {relation!r} has two labels, {table[relation]!r} and {label!r}")
    labels = [table.get(relation, "") for relation in relation_ids]
    counts["relations without a label"] = labels.count("")
    return labels


def _write(folder: Path, entities: Entities, facts: Facts, labels: list[str], counts: Counter[str]) -> None:
    known = np.bincount(facts.heads, minlength=len(entities.ids)) + np.bincount(
        facts.tails, minlength=len(entities.ids)
    )
    names = [name for of_entity in entities.names for name in of_entity]
    name_counts = np.array([len(of_entity) for of_entity in entities.names], np.int64)
    owners = np.repeat(np.arange(len(entities.ids)), name_counts)
    weights = (known[owners] + 1).astype(np.float64)
    weights[np.cumsum(name_counts) - name_counts] *= LABEL_WEIGHT
    counts["names"] = _write_candidates(folder, "names", names, owners, weights)
    _write_candidates(folder, "folded", [fold_name(name) for name in names], owners, weights)

    title_of = _titles(entities, known, counts)
    trie = marisa_trie.Trie(sorted(title_of))
    title_entities = np.empty(len(title_of), np.int32)
    for title, entity in title_of.items():
        title_entities[trie[title]] = entity
    trie.save(str(folder / "titles.marisa"))
    np.save(folder / "titles_entities.npy", title_entities)

    np.save(folder / "facts_keys.npy", facts.keys)
    np.save(folder / "facts_relations.npy", facts.relations)
    back = np.lexsort((facts.heads, facts.tails))
    np.save(folder / "incoming_heads.npy", facts.heads[back].astype(np.int32))
    np.save(folder / "incoming_offsets.npy", _offsets(np.bincount(facts.tails, minlength=len(entities.ids))))
    _write_strings(folder, "entity_ids", entities.ids)
    _write_strings(folder, "entity_names", [of_entity[0] for of_entity in entities.names])
    _write_strings(folder, "relation_ids", facts.relation_ids)
    _write_strings(folder, "relation_names", labels)


def _titles(entities: Entities, known: NDArray[np.int64], counts: Counter[str]) -> dict[str, int]:
    """The entity of each title. A title of the table names the entity of most facts, should several claim it; a label
    serves as title only where no title is given and no other entity has a claim on it."""
    claims: dict[str, int] = {}
    for entity, title in enumerate(entities.titles):
        if title:
            rival = claims.get(title)
            counts["titles claimed twice"] += rival is not None
            if rival is None or known[entity] > known[rival]:
                claims[title] = entity
    guesses: dict[str, list[int]] = {}
    for entity, title in enumerate(entities.titles):
        if not title:
            guesses.setdefault(normalise_title(entities.names[entity][0]), []).append(entity)
    for title, bearers in guesses.items():
        if title in claims or len(bearers) > 1:
            counts["labels too ambiguous to be a title"] += 1
        elif title:
            claims[title] = bearers[0]
    counts["titles"] = len(claims)
    return claims


def _write_candidates(
    folder: Path, name: str, keys: Sequence[str], owners: NDArray[np.int64], weights: NDArray[np.float64]
) -> int:
    """The trie of the distinct keys and, for each, its owners by falling weight; returns the number of keys.

    An owner that has the key several times (spellings that fold to the same) counts with its largest weight.
    """
    trie = marisa_trie.Trie(sorted(set(keys)))
    rows = np.fromiter((trie[key] for key in keys), np.int64, len(keys))
    order = np.lexsort((-weights, owners, rows))
    rows, owners, weights = rows[order], owners[order], weights[order]
    first = np.ones(len(rows), bool)
    first[1:] = (rows[1:] != rows[:-1]) | (owners[1:] != owners[:-1])
    rows, owners, weights = rows[first], owners[first], weights[first]
    order = np.lexsort((owners, -weights, rows))
    rows, owners, weights = rows[order], owners[order], weights[order]
    total = np.bincount(rows, weights=weights, minlength=len(trie))
    trie.save(str(folder / f"{name}.marisa"))
    np.save(folder / f"{name}_offsets.npy", _offsets(np.bincount(rows, minlength=len(trie))))
    np.save(folder / f"{name}_entities.npy", owners.astype(np.int32))
    np.save(folder / f"{name}_priors.npy", (weights / total[rows]).astype(np.float32))
    return len(trie)


def _write_strings(folder: Path, name: str, strings: Iterable[str]) -> None:
    encoded = [string.encode() for string in strings]
    np.save(folder / f"{name}_offsets.npy", _offsets(np.array([len(item) for item in encoded], np.int64)))
    np.save(folder / f"{name}_bytes.npy", np.frombuffer(b"".join(encoded), np.uint8))


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
