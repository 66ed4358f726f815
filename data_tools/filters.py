"""Which passages become documents: exact rules, each with its reason.

`length_fault` and `cannot_pass` run before NER. The second is lossless: the entities of a document are among those of
its possible mentions, so fewer entities or labelled pairs among all of these than asked for can only become fewer
still.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from data_tools.documents import Passage
from data_tools.kb import KnowledgeBase
from data_tools.labelling import Labelled, facts_between
from data_tools.linking import NO_ENTITY
from data_tools.mentions import Possible
from erica_dist.config import FilterConfig


def length_fault(passage: Passage, config: FilterConfig, special_tokens: int) -> str:
    """Why the length of `passage` forbids a document, "" if it does not. `special_tokens`: counted in the maximum."""
    if passage.pieces < config.min_tokens:
        return "too short"
    if passage.pieces + special_tokens > config.max_tokens:
        return "too long"
    return ""


def cannot_pass(possible: Iterable[Possible], kb: KnowledgeBase, config: FilterConfig, excluded: frozenset[int]) -> str:
    """Why no choice among the `possible` mentions makes a document, "" if one might. `excluded`: relation numbers."""
    entities = sorted({candidate.entity for candidate in possible} - {NO_ENTITY})
    if len(entities) < config.min_entities:
        return "too few possible entities"
    if config.min_pairs:
        facts = facts_between(kb, entities) if len(entities) > 1 else []
        if len({(head, tail) for head, tail, relation in facts if relation not in excluded}) < config.min_pairs:
            return "too few possible labelled pairs"
    return ""


def labels_fault(labelled: Labelled, config: FilterConfig) -> str:
    """Why a labelled passage is no document, "" if it is one."""
    if len(labelled.entities) < config.min_entities:
        return "too few entities"
    if labelled.labelled_pairs < config.min_pairs:
        leaked = len({fact[:2] for fact in labelled.leaked})
        enough = labelled.labelled_pairs + leaked >= config.min_pairs
        return "too few labelled pairs without the leaked ones" if enough else "too few labelled pairs"
    return ""


def list_fault(passage: Passage, labelled: Labelled, config: FilterConfig) -> str:
    """Why a passage is a list of names: more than `config.max_mention_share` of its words are in mentions; else ""."""
    text = passage.text
    named = sum(
        len(text[mention.start : mention.end].split()) for entity in labelled.entities for mention in entity.mentions
    )
    return "a list of names" if named > config.max_mention_share * len(text.split()) else ""


def content_hash(*texts: str) -> str:
    """32 hex digits that are equal for equal texts, white space aside: what tells duplicates."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(" ".join(text.split()).encode())
        digest.update(b"\n")
    return digest.hexdigest()
