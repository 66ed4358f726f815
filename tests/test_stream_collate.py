"""Collation against an independent checker that walks over documents, entities and pairs one by one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erica_dist.config import EricaConfig
from erica_dist.shards import ragged
from erica_dist.shards.reader import DocumentView, SequenceView
from erica_dist.stream import collate
from erica_dist.stream.collate import EricaCollation, Vocabulary, collate_electra
from erica_dist.stream.randomness import KeyedRandom
from tests.columns import columns_of, numbers

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary.of(
    {"vocab_size": 60, "special_ids": [PAD, UNK, CLS, SEP, MASK], "cls_id": CLS, "sep_id": SEP, "mask_id": MASK}
)
NAMES = [[50], [51, 52], [], [53, 54, 55]]  # the third relation has no name


def collation_of(max_length: int, **changes) -> EricaCollation:
    return EricaCollation(
        vocabulary=VOCABULARY,
        name_pieces=np.array([piece for name in NAMES for piece in name]),
        name_start=ragged.offsets(np.array([len(name) for name in NAMES])),
        max_length=max_length,
        erica=EricaConfig(**changes),
    )


def collate_erica(rd, ed, collation, random):
    """One micro-batch of pairs (view, epoch)."""
    both = [*rd, *ed]
    epochs = np.array([epoch for _, epoch in both])
    return collate.collate_erica(columns_of([view for view, _ in both]), epochs, len(rd), collation, random)


def view_of(key, tokens, mentions, relations, barred=()) -> DocumentView:
    """`mentions`: (start, end, entity, sentence)."""
    table = np.array(mentions, np.int32).reshape(-1, 4)
    entities = int(table[:, 2].max(initial=-1)) + 1
    return DocumentView(
        key=key,
        tokens=np.array(tokens, np.uint16),
        mention_spans=table[:, :2],
        mention_entity=table[:, 2],
        mention_sentence=table[:, 3],
        entity_hash=np.arange(entities, dtype=np.uint64),
        entity_type=np.zeros(entities, np.uint8),
        relations=np.array(sorted(relations), np.int32).reshape(-1, 3),
        barred=np.array(sorted(barred), np.int32).reshape(-1, 2),
    )


def random_view(random: np.random.Generator, key: int) -> DocumentView:
    pieces = int(random.integers(1, 41))
    tokens = random.integers(5, 60, pieces)
    tokens[random.random(pieces) < 0.1] = UNK
    borders = np.sort(random.choice(pieces + 1, min(pieces + 1, 2 * int(random.integers(0, 9))), replace=False))
    spans = [(int(a), int(b)) for a, b in zip(borders[::2], borders[1::2], strict=False)]
    entities = int(random.integers(1, 6))
    owners = random.integers(0, entities, len(spans))
    owners = np.unique(owners, return_inverse=True)[1]  # each entity has a mention
    sentences = np.cumsum(random.random(len(spans)) < 0.4)
    mentions = [(a, b, int(e), int(s)) for (a, b), e, s in zip(spans, owners, sentences, strict=True)]
    count = len(set(owners.tolist()))
    pairs = [(h, t) for h in range(count) for t in range(count) if h != t]
    relations = [(h, t, r) for h, t in pairs for r in range(len(NAMES)) if random.random() < 0.2]
    labelled = {(h, t) for h, t, _ in relations}
    barred = [pair for pair in pairs if pair not in labelled and random.random() < 0.2]
    return view_of(key, tokens, mentions, relations, barred)


# ------------------------------------------------------------------------------------------------ the slow checker


def alive_entities(view, window):
    return {
        e
        for (_, end), e in zip(view.mention_spans.tolist(), view.mention_entity.tolist(), strict=True)
        if end <= window
    }


def first_mention(view, entity):
    own = [
        tuple(s) for s, e in zip(view.mention_spans.tolist(), view.mention_entity.tolist(), strict=True) if e == entity
    ]
    return min(own)


def kept_triples(view, epoch, config, random):
    by_pair: dict[tuple[int, int], list[int]] = {}
    for head, tail, relation in view.relations.tolist():
        by_pair.setdefault((head, tail), []).append(relation)
    if config.relations_per_pair == "one":
        total = len(view.entity_hash)
        uniform = numbers(random, "relation", epoch, view.key, total * total)
        by_pair = {(h, t): [own[int(uniform[h * total + t] * len(own))]] for (h, t), own in by_pair.items()}
    return [(head, tail, relation) for (head, tail), own in by_pair.items() for relation in own]


def slow_query(view, epoch, max_length, random, config):
    triples = [t for t in kept_triples(view, epoch, config, random) if NAMES[t[2]]]
    if not triples:
        return None
    prompt = {t: len(NAMES[t[2]]) + first_mention(view, t[0])[1] - first_mention(view, t[0])[0] for t in triples}
    alive = alive_entities(view, max_length - 3 - max(prompt.values()))
    drawable = [t for t in triples if t[0] in alive and t[1] in alive]
    if not drawable:
        return None
    return drawable[int(numbers(random, "triple", epoch, view.key, 1)[0] * len(drawable))]


def slow_erica(rd, ed, collation, random):
    """Every tensor of the micro-batch as a plain list."""
    config, max_length = collation.erica, collation.max_length
    out: dict[str, list] = {
        name: []
        for name in (
            "ids", "position", "type", "masked_positions", "masked_labels", "piece_positions", "piece_mention",
            "mention_entity", "query_head", "query_tail", "candidate_entity", "candidate_query", "masked_of_rd",
        )
    }  # fmt: skip
    cu, entity_base, mentions = [0], 0, 0
    labelled, drawn = [], []
    for place, (view, epoch) in enumerate([*rd, *ed]):
        is_rd = place < len(rd)
        query = None if is_rd else slow_query(view, epoch, max_length, random, config)
        tokens = view.tokens.tolist()
        if query:
            start, end = first_mention(view, query[0])
            front = [CLS, *NAMES[query[2]], *tokens[start:end], SEP]
        else:
            front = [CLS]
        kept = min(len(tokens), max_length - len(front) - 1)
        sequence = [*front, *tokens[:kept], SEP]
        base, text = cu[-1], cu[-1] + len(front)
        alive = sorted(alive_entities(view, kept))
        number = {entity: entity_base + i for i, entity in enumerate(alive)}
        taking_part = set()
        own_mentions = []
        sentences: dict[int, set[int]] = {}
        for (start, end), entity, sentence in zip(
            view.mention_spans.tolist(), view.mention_entity.tolist(), view.mention_sentence.tolist(), strict=True
        ):
            if end <= kept:
                own_mentions.append((start, end, entity))
                sentences.setdefault(entity, set()).add(sentence)
                out["mention_entity"].append(number[entity])
                for piece in range(start, end):
                    out["piece_positions"].append(text + piece)
                    out["piece_mention"].append(mentions)
                mentions += 1
        relations = [tuple(t) for t in view.relations.tolist()]

        def fits(head, tail, sentences=sentences):
            found = "single" if sentences[head] & sentences[tail] else "cross"
            return config.sentences in ("any", found)

        if is_rd:
            labels: dict[tuple[int, int], list[int]] = {}
            for head, tail, relation in kept_triples(view, epoch, config, random):
                if head in alive and tail in alive and fits(head, tail):
                    labels.setdefault((head, tail), []).append(relation)
            known = {(h, t) for h, t, _ in relations} | {tuple(p) for p in view.barred.tolist()}
            total = len(view.entity_hash)
            score = numbers(random, "no_relation", epoch, view.key, total * total)
            free = [(h, t) for h in alive for t in alive if h != t and (h, t) not in known and fits(h, t)]
            lowest = sorted(free, key=lambda pair: score[pair[0] * total + pair[1]])[: config.no_relation_pairs]
            for pairs, target in ((labels, labelled), ({pair: [] for pair in sorted(lowest)}, drawn)):
                for (head, tail), relation in pairs.items():
                    taking_part |= {head, tail}
                    together = bool(sentences[head] & sentences[tail])
                    bits = int(random.bits(random.streams("pair", [epoch], [view.key]), head * total + tail)[0])
                    target.append((number[head], number[tail], view.key, head, tail, relation, together, bits))
        if query:
            head, tail, relation = query
            taken = set(alive) - {head}
            if not config.other_tails_as_negatives:
                taken -= {t for h, t, r in relations if (h, r) == (head, relation) and t != tail}
                taken -= {t for h, t in view.barred.tolist() if h == head}
            taken |= {tail}
            taking_part |= taken | {head}
            out["candidate_entity"] += [number[entity] for entity in sorted(taken)]
            out["candidate_query"] += [len(out["query_head"])] * len(taken)
            out["query_head"].append(number[head])
            out["query_tail"].append(number[tail])
        protected = {
            piece for start, end, entity in own_mentions for piece in range(start, end) if entity in taking_part
        }
        if config.mask_mentions:
            protected = set()
        eligible = [i for i in range(kept) if tokens[i] > MASK and i not in protected]
        names = ("mlm choice", "mlm action", "mlm piece")
        uniform = np.stack([numbers(random, name, epoch, view.key, len(tokens)) for name in names])
        count = max(1, math.floor(config.mask_probability * len(eligible) + 0.5)) if eligible else 0
        for piece in sorted(sorted(eligible, key=lambda i: uniform[0, i])[:count]):
            out["masked_positions"].append(text + piece)
            out["masked_labels"].append(tokens[piece])
            if uniform[1, piece] < 0.8:
                sequence[len(front) + piece] = MASK
            elif uniform[1, piece] < 0.9:
                sequence[len(front) + piece] = 5 + int(uniform[2, piece] * 55)
        out["masked_of_rd"] += [None] * count * is_rd
        out["ids"] += sequence
        out["position"] += range(len(sequence))
        out["type"] += [0] * len(front) + [1 if query else 0] * (kept + 1)
        cu.append(base + len(sequence))
        entity_base += len(alive)
    return out, cu, labelled + drawn, entity_base, mentions


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_length=st.integers(8, 48),
    pairs=st.sampled_from([0, 1, 3, 32]),
    other_tails=st.booleans(),
    mask_mentions=st.booleans(),
    relations=st.sampled_from(["all", "one"]),
    sentences=st.sampled_from(["any", "single", "cross"]),
)
def test_collation_equals_the_slow_checker(seed, max_length, pairs, other_tails, mask_mentions, relations, sentences):
    random = np.random.default_rng(seed)
    collation = collation_of(
        max_length,
        no_relation_pairs=pairs,
        other_tails_as_negatives=other_tails,
        mask_mentions=mask_mentions,
        relations_per_pair=relations,
        sentences=sentences,
    )
    views = [(random_view(random, int(random.integers(10**12))), int(random.integers(5))) for _ in range(8)]
    half = int(random.integers(0, 9))
    batch = collate_erica(views[:half], views[half:], collation, KeyedRandom(seed))
    out, cu, expected_pairs, entities, mentions = slow_erica(views[:half], views[half:], collation, KeyedRandom(seed))

    assert batch.packed.cu_seqlens.tolist() == cu
    assert batch.packed.max_seqlen == max(np.diff(cu)) <= max_length
    assert batch.tokens == cu[-1]
    assert batch.documents == 8
    assert (batch.entity_count, batch.mention_count) == (entities, mentions)
    found = {
        "ids": batch.packed.input_ids_T,
        "position": batch.packed.position_ids_T,
        "type": batch.packed.token_type_ids_T,
        "masked_positions": batch.masked_positions_K,
        "masked_labels": batch.masked_labels_K,
        "piece_positions": batch.piece_positions_N,
        "piece_mention": batch.piece_mention_N,
        "mention_entity": batch.mention_entity_M,
        "query_head": batch.query_head_Q,
        "query_tail": batch.query_tail_Q,
        "candidate_entity": batch.candidate_entity_C,
        "candidate_query": batch.candidate_query_C,
    }
    assert batch.masked_of_rd == len(out.pop("masked_of_rd"))
    assert {name: tensor.tolist() for name, tensor in found.items()} == out
    assert [
        (head, tail, document, i, j, [r for r in labels if r >= 0], together, bits % 2**64)
        for head, tail, document, i, j, labels, together, bits in zip(
            batch.pair_head_P.tolist(),
            batch.pair_tail_P.tolist(),
            batch.pair_document_P.tolist(),
            batch.pair_head_local_P.tolist(),
            batch.pair_tail_local_P.tolist(),
            batch.pair_labels_PL.tolist(),
            batch.pair_same_sentence_P.tolist(),
            batch.pair_draw_P.tolist(),
            strict=True,
        )
    ] == expected_pairs


# ------------------------------------------------------------------------------------------------ by hand

#                0   1   2   3   4   5   6   7   8   9
TOKENS = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
MENTIONS = [(0, 1, 0, 0), (2, 4, 1, 0), (5, 6, 2, 1), (7, 8, 0, 1), (8, 10, 3, 2)]


def no_masking(max_length: int, **changes) -> EricaCollation:
    return collation_of(max_length, mask_probability=0.0, **changes)


def test_rd_document_by_hand():
    view = view_of(77, TOKENS, MENTIONS, [(0, 1, 1), (0, 1, 3), (2, 0, 0)], barred=[(3, 0), (0, 3)])
    batch = collate_erica([(view, 0)], [], no_masking(64), KeyedRandom(1))
    assert batch.packed.input_ids_T.tolist() == [CLS, *TOKENS, SEP]
    assert batch.packed.token_type_ids_T.sum() == 0
    assert batch.piece_positions_N.tolist() == [1, 3, 4, 6, 8, 9, 10]
    assert batch.piece_mention_N.tolist() == [0, 1, 1, 2, 3, 4, 4]
    assert batch.mention_entity_M.tolist() == [0, 1, 2, 0, 3]
    pairs = list(zip(batch.pair_head_P.tolist(), batch.pair_tail_P.tolist(), strict=True))
    # 12 ordered pairs, 2 labelled, 2 barred
    assert pairs == [(0, 1), (2, 0), (0, 2), (1, 0), (1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
    assert batch.pair_labels_PL.tolist() == [[1, 3], [0, -1], *[[-1, -1]] * 8]
    together = dict(zip(pairs, batch.pair_same_sentence_P.tolist(), strict=True))
    assert [pair for pair in pairs if together[pair]] == [(0, 1), (2, 0), (0, 2), (1, 0)]
    assert batch.pair_document_P.tolist() == [77] * 10


def test_ed_document_by_hand():
    view = view_of(7, TOKENS, MENTIONS, [(1, 0, 1)])
    batch = collate_erica([], [(view, 0)], no_masking(64), KeyedRandom(1))
    # [CLS] relation's name, head's first mention [SEP] document [SEP]
    assert batch.packed.input_ids_T.tolist() == [CLS, 51, 52, 12, 13, SEP, *TOKENS, SEP]
    assert batch.packed.token_type_ids_T.tolist() == [0] * 6 + [1] * 11
    assert batch.packed.position_ids_T.tolist() == list(range(17))
    assert (batch.query_head_Q.tolist(), batch.query_tail_Q.tolist()) == ([1], [0])
    assert batch.candidate_entity_C.tolist() == [0, 2, 3]
    assert batch.candidate_query_C.tolist() == [0, 0, 0]
    assert batch.piece_positions_N.tolist()[0] == 6
    assert len(batch.pair_head_P) == 0
    assert batch.pair_labels_PL.shape == (0, 1)


@pytest.mark.parametrize(("switch", "expected"), [(False, {(1, 3), (2, 3)}), (True, {(1, 2, 3)})])
def test_another_true_tail_is_no_negative(switch, expected):
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0), (0, 2, 0)])
    found = set()
    for epoch in range(20):
        batch = collate_erica([], [(view, epoch)], no_masking(64, other_tails_as_negatives=switch), KeyedRandom(1))
        assert batch.query_tail_Q.item() in batch.candidate_entity_C.tolist()
        found.add(tuple(batch.candidate_entity_C.tolist()))
    assert found == expected


def test_a_barred_tail_is_no_candidate():
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0)], barred=[(0, 3)])
    batch = collate_erica([], [(view, 0)], no_masking(64), KeyedRandom(1))
    assert batch.candidate_entity_C.tolist() == [1, 2]


def test_entities_behind_the_cut_vanish_with_their_labels():
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0), (0, 3, 1), (3, 1, 1)])
    batch = collate_erica([(view, 0)], [(view, 0)], no_masking(11), KeyedRandom(1))
    # RD keeps 9 pieces: the last mention [8, 10) is cut; ED keeps 6 beside the prompt
    assert batch.packed.input_ids_T.tolist() == [CLS, *TOKENS[:9], SEP, CLS, 50, 10, SEP, *TOKENS[:6], SEP]
    assert batch.entity_count == 6
    assert batch.pair_labels_PL.tolist()[0] == [0]
    assert 3 not in batch.pair_head_P.tolist() + batch.pair_tail_P.tolist()
    assert batch.candidate_entity_C.tolist() == [4, 5]


def test_document_without_a_named_relation_serves_mlm_only():
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 2)])
    batch = collate_erica([], [(view, 0)], collation_of(64), KeyedRandom(1))
    assert batch.packed.cu_seqlens.tolist() == [0, 12]
    assert len(batch.query_head_Q) == len(batch.candidate_entity_C) == 0
    assert len(batch.masked_positions_K) == 2  # 15 % of 10 pieces, halves up


def test_triples_are_drawn_evenly_and_anew_each_epoch():
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0), (0, 1, 1), (2, 3, 3), (1, 2, 2)])
    drawn = []
    for epoch in range(600):
        batch = collate_erica([], [(view, epoch)], no_masking(64), KeyedRandom(3))
        drawn.append(batch.packed.input_ids_T[1].item())
    counts = [drawn.count(first) for first in (50, 51, 53)]
    assert sum(counts) == 600  # the nameless relation never
    assert all(150 < count < 250 for count in counts)


def test_chance_belongs_to_the_document_not_to_its_place():
    random = np.random.default_rng(5)
    views = [random_view(random, key) for key in range(6)]
    alone = collate_erica([(views[3], 2)], [], collation_of(48), KeyedRandom(9))
    among = collate_erica([(view, 2) for view in views], [], collation_of(48), KeyedRandom(9))
    first, last = among.packed.cu_seqlens[3:5].tolist()
    assert among.packed.input_ids_T[first:last].tolist() == alone.packed.input_ids_T.tolist()
    own = among.pair_document_P == 3
    assert among.pair_head_local_P[own].tolist() == alone.pair_head_local_P.tolist()
    other_epoch = collate_erica([(views[3], 3)], [], collation_of(48), KeyedRandom(9))
    assert other_epoch.masked_positions_K.tolist() != alone.masked_positions_K.tolist()


# ------------------------------------------------------------------------------------------------ ELECTRA


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), max_length=st.integers(8, 40), probability=st.sampled_from([0.15, 0.25]))
def test_electra_equals_the_slow_checker(seed, max_length, probability):
    random = np.random.default_rng(seed)
    views = []
    for key in range(6):
        tokens = random.integers(0, 60, int(random.integers(1, 45))).astype(np.uint16)
        split = int(random.integers(0, len(tokens)))
        views.append((SequenceView(key, tokens, split), int(random.integers(4))))
    keyed = KeyedRandom(seed)
    epochs = np.array([epoch for _, epoch in views])
    columns = columns_of([view for view, _ in views])
    batch = collate_electra(columns, epochs, VOCABULARY, max_length, probability, keyed)
    ids, types, positions, keep, uniform = [], [], [], [], []
    for view, epoch in views:
        tokens, split = view.tokens.tolist(), view.segment_split
        if 0 < split < max_length - 3:
            body = tokens[: max_length - 3]
            sequence = [CLS, *body[:split], SEP, *body[split:], SEP]
            places = [i + 1 if i < split else i + 2 for i in range(len(body))]
            kinds = [0] * (split + 2) + [1] * (len(body) - split + 1)
        else:
            body = tokens[: max_length - 2]
            sequence, places, kinds = [CLS, *body, SEP], list(range(1, len(body) + 1)), [0] * (len(body) + 2)
        assert len(sequence) <= max_length
        names = ("electra choice", "electra keep", "electra sample")
        draws = np.stack([numbers(keyed, name, epoch, view.key, len(tokens) + 1) for name in names])
        # the [SEP] between two segments has numbers, too
        draws = draws[:, [place - 1 for place in places]]
        eligible = [i for i, token in enumerate(body) if token > MASK]
        most = int((probability + 0.005) * max_length)
        count = min(max(1, min(most, math.floor(probability * len(eligible) + 0.5))), len(eligible))
        chosen = sorted(sorted(eligible, key=lambda i: draws[0, i])[:count])
        positions += [len(ids) + places[i] for i in chosen]
        keep += [bool(draws[1, i] >= 0.85) for i in chosen]
        uniform += [draws[2, i] for i in chosen]
        ids += sequence
        types += kinds
    assert batch.packed.input_ids_T.tolist() == ids
    assert batch.packed.token_type_ids_T.tolist() == types
    assert batch.masked_positions_K.tolist() == positions
    assert batch.keep_K.tolist() == keep
    assert batch.sample_uniform_K.tolist() == uniform
    assert (batch.documents, batch.tokens) == (6, len(ids))


def test_to_moves_every_tensor():
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0)])
    batch = collate_erica([(view, 0)], [(view, 0)], collation_of(64), KeyedRandom(1)).to("meta")
    for part in (batch, batch.packed):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if hasattr(value, "device"):
                assert value.device.type == "meta", field.name
    assert batch.documents == 2
