"""Entity markers: where they stand, what survives the cut, whose states count, and that a model is trained and exported
with them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)
from transformers import ElectraConfig as ElectraModelConfig
from transformers import ElectraForMaskedLM as ElectraModel

from erica_dist import settings
from erica_dist.config import EricaJob
from erica_dist.errors import UserError
from erica_dist.export import export_run
from erica_dist.models.encoder import build_encoder, grow_vocabulary
from erica_dist.objectives.pooling import entity_states
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.collate import EricaCollation, Vocabulary
from erica_dist.stream.corpora import Corpora
from erica_dist.stream.loader import EricaStream, erica_validation
from erica_dist.stream.markers import Markers, add_markers, find_markers
from erica_dist.stream.randomness import KeyedRandom
from erica_dist.training import checkpoint
from erica_dist.training import job as jobs
from erica_dist.training.run_folder import order
from erica_dist.training.tokenizer import check_tokenizer, write_tokenizer
from tests.plain_training import erica_terms
from tests.ranks import run_ranks
from tests.slow_erica import mean
from tests.slow_mentions import CLS, END, MASK, NAMES, PAD, SEP, START, UNK, slow_batch
from tests.synthetic import tiny_tokenizer, write_documents_folder
from tests.test_stream_collate import collate_erica, collation_of, random_view, view_of

RECORD = {"vocab_size": 60, "special_ids": [PAD, UNK, CLS, SEP, MASK], "cls_id": CLS, "sep_id": SEP, "mask_id": MASK}
MARKED = Markers("[E]", "[/E]", START, END).added_to(RECORD)
TINY = ["model.size=tiny", "model.max_length=48", "train.global_batch=16", "train.steps=3", "erica.entity_markers=true"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=40, seed=5))


UNMARKED = "erica.entity_markers=false"


def marked(max_length: int, **changes: Any) -> EricaCollation:
    plain = collation_of(max_length, entity_markers=True, **changes)
    return dataclasses.replace(plain, vocabulary=Vocabulary.of(MARKED))


def lists_of(batch: Any) -> dict[str, list[int]]:
    return {
        "ids": batch.packed.input_ids_T.tolist(),
        "position": batch.packed.position_ids_T.tolist(),
        "type": batch.packed.token_type_ids_T.tolist(),
        "cu": batch.packed.cu_seqlens.tolist(),
        "pooled": batch.piece_positions_N.tolist(),
        "pooled_mention": batch.piece_mention_N.tolist(),
        "mention_entity": batch.mention_entity_M.tolist(),
        "masked": batch.masked_positions_K.tolist(),
        "labels": batch.masked_labels_K.tolist(),
        "query_head": batch.query_head_Q.tolist(),
        "query_tail": batch.query_tail_Q.tolist(),
        "entities": [batch.entity_count],
    }


# ------------------------------------------------------------------------------------------------ collation


@hypothesis_settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_length=st.integers(8, 64),
    mask_mentions=st.booleans(),
    mask_probability=st.sampled_from([0.0, 0.15, 0.6]),
)
def test_marked_documents_equal_those_written_piece_by_piece(seed, max_length, mask_mentions, mask_probability) -> None:
    random = np.random.default_rng(seed)
    collation = marked(max_length, mask_mentions=mask_mentions, mask_probability=mask_probability)
    views = [(random_view(random, int(random.integers(10**12))), int(random.integers(5))) for _ in range(8)]
    half = int(random.integers(0, 9))
    batch = collate_erica(views[:half], views[half:], collation, KeyedRandom(seed))
    expected = slow_batch(views[:half], views[half:], max_length, collation.erica, KeyedRandom(seed))
    assert not expected.pop("hidden")
    assert lists_of(batch) == expected
    assert batch.packed.max_seqlen <= max_length
    assert batch.mention_count == len(batch.mention_entity_M) == len(batch.piece_positions_N)
    ids = batch.packed.input_ids_T
    assert (ids[batch.piece_positions_N] == START).all()
    assert (ids == START).sum() == (ids == END).sum() == batch.mention_count, "no marker without a mention"

    states_TD = torch.randn(len(ids), 5, dtype=torch.float64)
    found = entity_states(states_TD, batch)
    for entity in range(batch.entity_count):
        starts = batch.piece_positions_N[batch.mention_entity_M == entity]
        assert found[entity].tolist() == pytest.approx(mean([states_TD[i].tolist() for i in starts]), abs=1e-12)


#                0   1   2   3   4   5   6   7   8   9
TOKENS = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
# the second and the third touch; the first begins and the last ends with the document
MENTIONS = [(0, 1, 0, 0), (2, 4, 1, 0), (4, 6, 2, 0), (8, 10, 0, 1)]
TEXT = [START, 10, END, 11, START, 12, 13, END, START, 14, 15, END, 16, 17, START, 18, 19, END]


def test_markers_by_hand_touching_each_other_and_the_borders() -> None:
    view = view_of(7, TOKENS, MENTIONS, [(1, 2, 1)])
    batch = collate_erica([(view, 0)], [(view, 0)], marked(64, mask_probability=0.0), KeyedRandom(1))
    prompt = [CLS, *NAMES[1], 12, 13, SEP]  # the head stands there without markers
    assert batch.packed.input_ids_T.tolist() == [CLS, *TEXT, SEP, *prompt, *TEXT, SEP]
    assert batch.packed.token_type_ids_T.tolist() == [0] * (20 + len(prompt)) + [1] * 19
    assert batch.packed.position_ids_T.tolist() == [*range(20), *range(25)]
    assert batch.piece_positions_N.tolist() == [1, 5, 9, 15, 26, 30, 34, 40]
    assert batch.mention_entity_M.tolist() == [0, 1, 2, 0, 3, 4, 5, 3]


@pytest.mark.parametrize(
    ("max_length", "kept"),
    [
        (20, 18),
        (19, 14),  # the last end marker does not fit: the document ends before the mention
        (17, 14),  # neither do a word and the end marker
        (16, 14),
        (15, 13),
        (14, 12),
        (13, 8),  # between two mentions that touch
        (10, 8),
        (9, 4),
    ],
)
def test_a_mention_is_there_as_a_whole_with_both_markers_or_not_at_all(max_length: int, kept: int) -> None:
    view = view_of(7, TOKENS, MENTIONS, [(1, 2, 1)])
    batch = collate_erica([(view, 0)], [], marked(max_length, mask_probability=0.0), KeyedRandom(1))
    assert batch.packed.input_ids_T.tolist() == [CLS, *TEXT[:kept], SEP]
    assert batch.mention_count == TEXT[:kept].count(START)


def test_markers_are_never_masked_and_never_a_random_piece() -> None:
    random = np.random.default_rng(4)
    views = [(random_view(random, key), 0) for key in range(60)]
    batch = collate_erica(views[:30], views[30:], marked(48, mask_probability=0.99, mask_mentions=True), KeyedRandom(2))
    assert not set(batch.masked_labels_K.tolist()) & {START, END}
    shown = batch.packed.input_ids_T[batch.masked_positions_K].tolist()
    assert not set(shown) & {START, END}
    assert len(shown) > 500


# ------------------------------------------------------------------------------------------------ the stream


def job_of(*words: str) -> EricaJob:
    return settings.load(EricaJob, None, [*TINY, "train.micro_batch=4", *words])


def sequences(streams: list[EricaStream]) -> list[list[tuple]]:
    """For each step all sequences of all ranks, with their masks and pooled places, in an order of their own."""
    steps = []
    for parts in zip(*streams, strict=True):
        found = []
        for batch in (micro for part in parts for micro in part.micro_batches):
            bounds = batch.packed.cu_seqlens.tolist()
            labels = dict(zip(batch.masked_positions_K.tolist(), batch.masked_labels_K.tolist(), strict=True))
            pooled = batch.piece_positions_N.tolist()
            for first, last in itertools.pairwise(bounds):
                masks = [(i - first, label) for i, label in labels.items() if first <= i < last]
                places = [i - first for i in pooled if first <= i < last]
                found.append((batch.packed.input_ids_T[first:last].tolist(), masks, places))
        steps.append(sorted(found))
    return steps


@pytest.mark.parametrize(("ranks", "micro", "workers"), [(1, 16, 0), (2, 4, 0), (2, 2, 2), (4, 2, 0)])
def test_the_split_does_not_matter(documents: Path, ranks: int, micro: int, workers: int) -> None:
    shards = ShardFolder.open(documents, "train")
    expected = sequences([EricaStream(shards, job_of("data.workers=0"))])
    job = job_of(f"train.micro_batch={micro}", f"data.workers={workers}")
    streams = [EricaStream(shards, job, rank, ranks) for rank in range(ranks)]
    assert sequences(streams) == expected
    for stream in streams:
        stream.close()


def test_held_out_documents_have_markers_too(documents: Path) -> None:
    held_out = ShardFolder.open(documents, "validation")
    start_id = find_markers(held_out.tokenizer_folder()).start_id
    batches = erica_validation(held_out, job_of())
    assert all(batch and (batch.packed.input_ids_T == start_id).sum() == batch.mention_count > 0 for batch in batches)


def test_a_token_budget_is_refused(documents: Path) -> None:
    with pytest.raises(UserError, match=r"train\.micro_tokens=200 cannot be combined with erica\.entity_markers"):
        EricaStream(ShardFolder.open(documents, "train"), job_of("train.micro_tokens=200"))


# ------------------------------------------------------------------------------------------------ tokenizer and model


def folder_of(tmp_path: Path, tokenizer: Any) -> Path:
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_two_new_pieces_where_the_vocabulary_has_no_unused_ones(tmp_path: Path) -> None:
    count = len(tiny_tokenizer())
    markers = find_markers(folder_of(tmp_path, tiny_tokenizer()))
    assert markers == Markers("[E]", "[/E]", count, count + 1)
    record = markers.added_to(RECORD | {"vocab_size": count})
    assert (record["vocab_size"], record["marker_ids"]) == (count + 2, [count, count + 1])
    assert record["special_ids"][-2:] == [count, count + 1]
    # a tokenizer that knows its markers keeps them
    again = folder_of(tmp_path / "again", add_markers(tiny_tokenizer()))
    assert find_markers(again) == markers


def test_unused_pieces_of_the_vocabulary_are_taken(tmp_path: Path) -> None:
    vocabulary = tiny_tokenizer().get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    # as BERT's: the numbers are not in the order of the text, and the cased one begins at 1
    definition = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    pieces = [*words, "[unused10]", "[unused2]", "[unused1]", "unused0"]
    definition["model"]["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = folder_of(tmp_path, tiny_tokenizer())
    (tokenizer / "tokenizer.json").write_text(json.dumps(definition))
    markers = find_markers(tokenizer)
    assert markers == Markers("[unused1]", "[unused2]", len(words) + 2, len(words) + 1)
    assert markers.added_to(RECORD | {"vocab_size": len(pieces)})["vocab_size"] == len(pieces)
    knowing = add_markers(AutoTokenizer.from_pretrained(tokenizer))
    assert len(knowing) == len(pieces)
    assert knowing("bab [unused1] zania [unused2]", add_special_tokens=False).input_ids == [
        vocabulary["bab"], markers.start_id, vocabulary["zania"], markers.end_id
    ]  # fmt: skip


def test_text_around_markers_is_cut_as_without(tmp_path: Path) -> None:
    plain = tiny_tokenizer()
    markers = find_markers(folder_of(tmp_path, plain))
    tokenizer = add_markers(tiny_tokenizer())
    ids = tokenizer("Bab [E] Zaniaa [/E] dom [E]Voron[/E].", add_special_tokens=False).input_ids
    assert [i for i in ids if i not in (markers.start_id, markers.end_id)] == plain(
        "Bab Zaniaa dom Voron.", add_special_tokens=False
    ).input_ids
    assert [ids.index(markers.start_id), ids.index(markers.end_id)] == [1, 4]
    assert tokenizer.all_special_ids[-2:] == [markers.start_id, markers.end_id]


SMALL = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
FAMILIES = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SMALL)),
    "electra": lambda: ElectraModel(ElectraModelConfig(**SMALL, embedding_size=8)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grown_vocabulary_keeps_the_old_rows_and_draws_the_new_ones_by_the_seed(family: str) -> None:
    torch.manual_seed(3)
    before = FAMILIES[family]()
    with torch.no_grad():
        before.get_output_embeddings().bias.uniform_()
    ids = torch.tensor([[1, 5, 9, 2]])
    old = before.eval()(ids).logits
    grown = []
    for seed in (1, 1, 2):
        torch.manual_seed(3)
        model = FAMILIES[family]().eval()
        model.load_state_dict(before.state_dict())
        state = torch.random.get_rng_state()
        grow_vocabulary(model, 62, seed)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert model.config.vocab_size == 62
        logits = model(ids).logits
        torch.testing.assert_close(logits[..., :60], old, rtol=1e-6, atol=1e-6)
        assert logits.shape[-1] == 62
        rows = model.get_input_embeddings().weight
        assert model.get_output_embeddings().weight is rows
        assert model.get_output_embeddings().bias.shape == (62,)
        assert model.get_output_embeddings().bias[60:].tolist() == [0, 0]
        assert torch.equal(rows[:60], before.get_input_embeddings().weight)
        assert 0.002 < float(rows[60:].detach().std()) < 0.06
        grown.append(rows[60:].detach().clone())
    assert torch.equal(grown[0], grown[1])
    assert not torch.equal(grown[0], grown[2])
    names = len(list(model.parameters()))
    grow_vocabulary(model, 61, 1)
    assert model.config.vocab_size == 62
    assert len(list(model.parameters())) == names


def test_a_model_of_another_vocabulary_is_still_refused(tmp_path: Path) -> None:
    FAMILIES["bert"]().save_pretrained(tmp_path)
    job = settings.load(EricaJob, None, [*TINY, f"model.init={tmp_path}"])
    with pytest.raises(UserError, match="knows 60 word pieces, the shards' tokenizer 61"):
        build_encoder(job.model, {"vocab_size": 61, "pad_id": 0}, seed=0)


# ------------------------------------------------------------------------------------------------ training and export


@pytest.mark.distributed
def test_two_ranks_equal_one_plain_process(documents: Path, tmp_path: Path) -> None:
    base = [
        *TINY, "train.global_batch=8", "model.dropout=0", "train.lr=1e-3", "train.steps=2", "data.workers=0",
        "erica.temperature=0.3", "erica.entity_mask_probability=0.5", "erica.negatives=global",
    ]  # fmt: skip
    shards = ShardFolder.open(documents, "train")
    combinations = [[*base, f"train.zero_stage={stage}", "train.micro_batch=2"] for stage in (0, 3)]
    trainings = [{"folder": str(documents), "steps": 2, "combinations": [words]} for words in combinations]
    arguments = {"kind": "erica", "out": str(tmp_path), "groups": trainings}
    results = run_ranks("tests.rank_programs:train", 2, arguments)

    job = settings.load(EricaJob, None, [*base, "train.micro_batch=8"])
    module, _ = jobs._build_module("erica", job, shards)
    markers = find_markers(shards.tokenizer_folder())
    assert module.model.config.vocab_size == markers.end_id + 1 == len(tiny_tokenizer()) + 2
    groups = [[p for p in module.parameters() if (p.ndim > 1) == wide] for wide in (True, False)]
    decays = (job.train.weight_decay, 0.0)
    optimizer = torch.optim.AdamW(
        [{"params": group, "weight_decay": decay} for group, decay in zip(groups, decays, strict=True)],
        lr=job.train.lr,
        betas=(0.9, 0.999),
        eps=job.train.epsilon,
    )
    for step, part in enumerate(EricaStream(shards, job), start=1):
        (batch,) = part.micro_batches
        assert (batch.packed.input_ids_T[batch.piece_positions_N] == markers.start_id).all()
        optimizer.zero_grad()
        terms, _ = erica_terms(module.model, [[batch]], job, step)
        loss = terms["rd"] + terms["ed"] + terms["mlm"]
        loss.backward()
        if step == 1:
            rows = module.model.get_input_embeddings().weight.grad[[markers.start_id, markers.end_id]]
            assert (rows.norm(dim=1) > 1e-4).all(), "the markers are learnt"
            gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
        torch.nn.utils.clip_grad_norm_(module.parameters(), job.train.clip_norm)
        optimizer.step()
        for mine in (rows for result in results for of_engine in result for rows in of_engine):
            assert mine[step - 1]["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
            for name, value in terms.items():
                assert mine[step - 1][f"loss_{name}"] == pytest.approx(float(value.detach()), rel=1e-4, abs=1e-5)
    for number in range(len(combinations)):
        found = load_file(tmp_path / f"{number}-0.safetensors")
        for name, parameter in module.named_parameters():
            if name.endswith("key.bias"):  # attention does not depend on it: its gradient is rounding only
                continue
            error = (found[f"gradient.{name}"] - gradients[name]).norm() / (gradients[name].norm() + 1e-6)
            assert float(error) < 1e-4, name
            torch.testing.assert_close(found[f"weight.{name}"], parameter.detach(), rtol=0, atol=1e-4)


def corpora_of(folder: Path) -> Corpora:
    return Corpora([ShardFolder.open(folder, "train")])


@pytest.mark.distributed
def test_an_export_knows_its_markers_and_is_trained_further(documents: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    words = [*TINY, "train.steps=2", "train.micro_batch=8", f"data.shards={documents}", "tracking.uri=none"]
    words += ["data.validation_documents=4", "data.workers=0", f"run.dir={run}"]
    (status,) = run_ranks("tests.test_entity_markers:launch", 1, {"words": words})
    assert status == 0
    export_run(run, out)

    plain = tiny_tokenizer()
    ids = [len(plain), len(plain) + 1]
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    model = AutoModelForMaskedLM.from_pretrained(out, local_files_only=True).eval()
    encoder = AutoModel.from_pretrained(out, local_files_only=True).eval()
    weights = load_file(run / "checkpoints" / "step-00000002" / "weights" / "model.safetensors")
    rows = weights["model.bert.embeddings.word_embeddings.weight"]
    assert rows.shape[0] == len(tokenizer) == len(plain) + 2
    assert torch.equal(model.get_input_embeddings().weight, rows)
    assert tokenizer.convert_tokens_to_ids(["[E]", "[/E]"]) == ids
    # what a user of the export encodes is what the stream gave the model
    stream = EricaStream(corpora_of(documents), job_of("erica.mask_probability=0", "train.micro_batch=8"))
    batch = stream.step(0).micro_batches[0]
    sequence = batch.packed.input_ids_T[: batch.packed.cu_seqlens[1]].tolist()
    assert set(ids) < set(sequence)
    inner = " ".join(tokenizer.convert_ids_to_tokens(sequence[1:-1])).replace(" ##", "")
    text = tokenizer(inner, return_tensors="pt")
    assert text.input_ids[0].tolist() == sequence
    states = encoder(**text).last_hidden_state
    assert states[text.input_ids == tokenizer.convert_tokens_to_ids("[E]")].shape == (sequence.count(ids[0]), 128)
    card = (out / "README.md").read_text()
    assert "`[E]` before and `[/E]` behind each mention" in card
    assert json.loads((out / "export.json").read_text())["markers"]["start_id"] == ids[0]

    newest = checkpoint.newest_checkpoint(run)
    without = order("erica", settings.load(EricaJob, None, [*words, UNMARKED]), corpora_of(documents))
    with pytest.raises(UserError, match=r"erica\.entity_markers True there and False here"):
        checkpoint.check(newest, without)

    # the export begins another run on the same shards, with and without markers, and keeps its pieces
    for number, switch in enumerate(("true", "false")):
        job = job_of(f"model.init={out}", f"erica.entity_markers={switch}")
        check_tokenizer(job, corpora_of(documents))
        module, models = jobs._build_module("erica", job, corpora_of(documents))
        assert torch.equal(module.model.get_input_embeddings().weight, rows)
        assert ("markers" in models) == (switch == "true")
        write_tokenizer(tmp_path / str(number), job, corpora_of(documents))
        kept = AutoTokenizer.from_pretrained(tmp_path / str(number), local_files_only=True)
        assert kept.convert_tokens_to_ids(["[E]", "[/E]"]) == ids
    other = add_markers(tiny_tokenizer())
    other.add_tokens(["other"])
    other.save_pretrained(out)
    with pytest.raises(UserError, match=r"is not the one that cut data\.shards"):
        check_tokenizer(job_of(f"model.init={out}"), corpora_of(documents))


def launch(words: list[str]) -> int:
    """In a process of its own: the launcher's exit status."""
    return jobs.main("erica", words)


def test_without_markers_a_run_keeps_the_tokenizer_of_the_shards(documents: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "kept", job_of(UNMARKED), corpora_of(documents))
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == sorted(path.name for path in (documents / "tokenizer").iterdir())
    assert len(AutoTokenizer.from_pretrained(tmp_path / "kept", local_files_only=True)) == len(tiny_tokenizer())
