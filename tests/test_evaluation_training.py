"""Sentences, the classifier and whole fine-tunings on a task made from nothing that a linear layer can learn.

The relation follows from the last pieces of the two names: `..a` before `..b` is r(e1,e2), `..b` before `..a`
r(e2,e1), equal ones Other. Whoever mixes up head and tail cannot tell the first two apart.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from erica_dist.config import ModelConfig
from erica_dist.errors import UserError
from erica_dist.evaluation.readers import Example
from erica_dist.evaluation.relation_classification import RelationClassifier, build_classifier
from erica_dist.evaluation.results import SeedResult, mean_and_std, table
from erica_dist.evaluation.sentences import Sentence, cut_sentences, pack
from erica_dist.models.encoder import build_encoder
from erica_dist.shards.tokenizers import tokenizer_record
from erica_dist.tracking import store
from tests.ranks import ROOT, run_ranks
from tests.synthetic import FILLERS, STEMS, tiny_tokenizer

pytest_plugins = ["tests.tracking_stores"]

STEPS = 60  # of one seed
LABELS = ["Other", "r(e1,e2)", "r(e2,e1)"]


def _examples(count: int, seed: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        names = [f"{STEMS[random.integers(len(STEMS))]}{'ab'[random.integers(2)]}" for _ in range(2)]
        gaps = [" ".join(random.choice(FILLERS, random.integers(1, 4))) for _ in range(3)]
        head = len(gaps[0]) + 1
        tail = head + len(names[0]) + 1 + len(gaps[1]) + 1
        endings = names[0][-1] + names[1][-1]
        rows.append(
            {
                "text": f"{gaps[0]} {names[0]} {gaps[1]} {names[1]} {gaps[2]}",
                "head": [head, head + len(names[0])],
                "tail": [tail, tail + len(names[1])],
                "label": {"ab": LABELS[1], "ba": LABELS[2]}.get(endings, LABELS[0]),
            }
        )
    return rows


def _as_examples(rows: list[dict[str, Any]]) -> list[Example]:
    return [Example(r["text"], tuple(r["head"]), tuple(r["tail"]), r["label"], f"f:{i}") for i, r in enumerate(rows)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = build_encoder(ModelConfig(size="tiny", max_length=64), tokenizer_record(tokenizer, 64), seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# ------------------------------------------------------------------------------------------------ sentences


def _pieces(tokenizer: PreTrainedTokenizerFast, sentence: Sentence, positions: np.ndarray) -> list[str]:
    return tokenizer.convert_ids_to_tokens(sentence.pieces[positions].tolist())


def test_the_pieces_of_both_mentions_are_found(tokenizer: PreTrainedTokenizerFast) -> None:
    example = Example("bab Voronb dod Zaniaa .", (4, 10), (15, 21), "Other", "f:1")
    (sentence,) = cut_sentences([example], tokenizer, LABELS, 64)
    whole = ["[CLS]", "bab", "voron", "##b", "dod", "zania", "##a", ".", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(sentence.pieces.tolist()) == whole
    assert _pieces(tokenizer, sentence, sentence.head) == ["voron", "##b"]
    assert _pieces(tokenizer, sentence, sentence.tail) == ["zania", "##a"]
    assert sentence.label == 0


def test_a_long_sentence_is_cut_around_its_mentions(tokenizer: PreTrainedTokenizerFast) -> None:
    before, after = "bab " * 30, " dod" * 30
    start = len(before)
    text = f"{before}Zaniaa bak Voronb{after}"
    example = Example(text, (start + 11, start + 17), (start, start + 6), LABELS[1], "f:1")
    (sentence,) = cut_sentences([example], tokenizer, LABELS, 13)
    assert len(sentence.pieces) == 13
    assert _pieces(tokenizer, sentence, sentence.head) == ["voron", "##b"]
    assert _pieces(tokenizer, sentence, sentence.tail) == ["zania", "##a"]
    assert tokenizer.convert_ids_to_tokens(sentence.pieces.tolist())[1:4] == ["bab"] * 3
    with pytest.raises(UserError, match=r"f:1: head and tail lie 5 word pieces apart, the model sees 4"):
        cut_sentences([example], tokenizer, LABELS, 6)


def test_a_mention_of_nothing_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match=r"f:9: the tokenizer keeps nothing of the mention '\\x00'"):
        cut_sentences([Example("bab \x00 dod", (4, 5), (6, 9), "Other", "f:9")], tokenizer, LABELS, 64)


def _classifier(tokenizer: PreTrainedTokenizerFast) -> RelationClassifier:
    record = tokenizer_record(tokenizer, 64)
    encoder = build_encoder(ModelConfig(size="tiny", max_length=64), record, seed=3)
    torch.manual_seed(5)
    return RelationClassifier(encoder.base_model, len(LABELS)).eval()


def test_a_packed_batch_gives_what_its_sentences_give_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    sentences = cut_sentences(_as_examples(_examples(9, seed=1)), tokenizer, LABELS, 64)
    module = _classifier(tokenizer)
    with torch.no_grad():
        together = module(pack(sentences))
        alone = torch.cat([module(pack([sentence])) for sentence in sentences])
    assert together.shape == (9, 3)
    assert alone.std(0).min() > 1e-3, "different sentences give different logits"
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_the_logits_are_the_linear_layer_over_both_means(tokenizer: PreTrainedTokenizerFast) -> None:
    (sentence,) = cut_sentences(_as_examples(_examples(1, seed=2)), tokenizer, LABELS, 64)
    module = _classifier(tokenizer)
    ids = torch.from_numpy(sentence.pieces)[None]
    bounds = [0, ids.shape[1]]
    with torch.no_grad():
        states = module.encoder(ids, cu_seqlens=torch.tensor(bounds), bounds=bounds)[0][0]
        pair = torch.cat([states[sentence.head].mean(0), states[sentence.tail].mean(0)])
        wanted = module.classifier.weight @ pair + module.classifier.bias
        torch.testing.assert_close(module(pack([sentence]))[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_classifier_starts_from_the_folder_and_its_seed(
    model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    record = tokenizer_record(tokenizer, 64)
    first, again, other = (build_classifier(model_folder, 0.1, 64, record, 3, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    different = {name for name in first if not torch.equal(first[name], other[name])}
    assert different == {"classifier.weight"}


# ------------------------------------------------------------------------------------------------ whole runs


def program(calls: list[list[str]]) -> list[list[Any]]:
    """What each rank runs: one fine-tuning after the other -> [exit status, what it said] of each."""
    from erica_dist.evaluation.job import main

    results = []
    for arguments in calls:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            results.append([main(arguments), said.getvalue()])
    return results


def _arguments(work: Path, model: Path, run: str, *more: str) -> list[str]:
    settings = {
        "finetune.model": model,
        "finetune.train": work / "train.jsonl",
        "finetune.test": work / "test.jsonl",
        "finetune.max_length": 64,
        "finetune.dropout": 0.1,
        "finetune.dev_percent": 25,
        "finetune.seeds": "[1, 2]",
        "train.epochs": 1,
        "train.min_steps": STEPS,
        "train.global_batch": 16,
        "train.micro_batch": 4,
        "train.lr": "2e-3",
        "train.dev_scorings": 3,
        "tracking.uri": "none",
        "run.dir": work / run,
    }
    return [*(f"{key}={value}" for key, value in settings.items()), *more]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    for name, count, seed in (("train", 400, 10), ("test", 60, 11)):
        lines = [json.dumps(row) for row in _examples(count, seed)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def single(work: Path, model_folder: Path) -> list[list[Any]]:
    """One process: a run, the same command again, the same folder with another setting, and two wrong calls."""
    first = _arguments(work, model_folder, "first")
    calls = [
        first,
        first,
        [*first, "train.lr=1e-3"],
        _arguments(work, model_folder, "bad", "finetune.model=/nowhere"),
        _arguments(work, model_folder, "bad", "train.micro_batch=5"),
        _arguments(work, model_folder, "bad", "finetune.select=semeval_f1"),
    ]
    return run_ranks("tests.test_evaluation_training:program", 1, {"calls": calls})[0]


def _predictions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def test_a_separable_task_is_learnt_whole(single: list[list[Any]], work: Path) -> None:
    assert single[0][0] == 0, single[0][1]
    result = json.loads((work / "first" / "result.json").read_text())
    assert result["scores"] == {
        "accuracy": {"mean": 1.0, "std": 0.0},
        "micro_f1": {"mean": 1.0, "std": 0.0},
    }
    assert result["labels"] == LABELS
    assert result["selection"] == {"by": "micro_f1", "dev": "taken out of the training file"}
    assert result["examples"] == {"train_file": 400, "dev": 100, "test": 60}
    assert [(run["seed"], run["train_examples"], run["steps"]) for run in result["runs"]] == [
        (1, 300, STEPS),
        (2, 300, STEPS),
    ]
    assert all(run["best_step"] in (20, 40, 60) and run["dev"]["micro_f1"] == 1.0 for run in result["runs"])
    gold = [json.loads(line)["label"] for line in (work / "test.jsonl").read_text().splitlines()]
    predictions = _predictions(work / "first")
    assert [p["gold"] for p in predictions] == gold * 2
    assert [p["predicted"] for p in predictions] == gold * 2
    assert [p["index"] for p in predictions] == [*range(60)] * 2


def test_the_journal_goes_on_from_seed_to_seed(single: list[list[Any]], work: Path) -> None:
    metrics = [json.loads(line) for line in (work / "first" / "metrics.jsonl").read_text().splitlines()]
    assert [(m["step"], m["seed"]) for m in metrics] == [(s, 1 if s <= STEPS else 2) for s in range(1, 121)]
    assert metrics[0]["loss"] == pytest.approx(np.log(3), abs=0.2)
    assert metrics[59]["loss"] < 0.01
    assert [m["lr"] for m in metrics[4:8]] == pytest.approx([2e-3 * 5 / 6, 2e-3, 2e-3, 2e-3 * 53 / 54])
    assert metrics[59]["lr"] == pytest.approx(2e-3 / 54)
    scores = [json.loads(line) for line in (work / "first" / "evaluation.jsonl").read_text().splitlines()]
    assert [s["step"] for s in scores] == [20, 40, 60, 80, 100, 120]
    assert [s.get("test_accuracy") for s in scores] == [None, None, 1.0, None, None, 1.0]
    assert scores[2]["best_dev_micro_f1"] == 1.0
    assert (scores[5]["test_micro_f1_mean"], scores[5]["test_micro_f1_std"]) == (1.0, 0.0)


def test_a_complete_run_is_not_computed_again_nor_overwritten(single: list[list[Any]]) -> None:
    assert single[1][0] == 0
    assert "is complete; nothing is computed again" in single[1][1]
    assert "100.00" in single[1][1]
    assert single[2][0] == 2
    assert "holds a run with other settings: give another run.dir" in single[2][1]


def test_a_wrong_setting_is_refused_before_anything_is_written(single: list[list[Any]], work: Path) -> None:
    for (status, said), text in zip(
        single[3:],
        [
            "finetune.model=/nowhere is no Hugging Face folder",
            "keep the global batch with train.micro_batch=4",
            "finetune.select=semeval_f1 needs the labels of SemEval-2010 Task 8",
        ],
        strict=True,
    ):
        assert status == 2
        assert text in said
    assert not (work / "bad").exists()


def test_a_terminal_that_is_gone_leaves_no_run_running(store_uri: str, work: Path, model_folder: Path) -> None:
    words = _arguments(work, model_folder, "gone", f"tracking.uri={store_uri}", "tracking.experiment=test")
    with open("/dev/full", "w") as gone:
        command = [sys.executable, "launchers/finetune.py", *words]
        done = subprocess.run(command, cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    client = store.connect(store_uri)
    experiment = client.get_experiment_by_name("test")
    assert experiment is not None
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["FAILED"]


@pytest.mark.distributed
def test_two_ranks_and_a_second_run_predict_the_same(single: list[list[Any]], work: Path, model_folder: Path) -> None:
    call = _arguments(work, model_folder, "again")
    ((status, said),) = run_ranks("tests.test_evaluation_training:program", 1, {"calls": [call]})[0]
    assert status == 0, said
    assert _predictions(work / "again") == _predictions(work / "first"), "the seed decides everything"

    two = run_ranks(
        "tests.test_evaluation_training:program", 2, {"calls": [_arguments(work, model_folder, "two ranks")]}
    )
    assert [status for ((status, _),) in two] == [0, 0], two
    assert two[1][0][1] == "", "only the first rank speaks"
    one, both = _predictions(work / "first"), _predictions(work / "two ranks")
    assert [p["predicted"] for p in both] == [p["predicted"] for p in one]
    assert [p["probability"] for p in both] == pytest.approx([p["probability"] for p in one], abs=1e-3)


# ------------------------------------------------------------------------------------------------ results


def test_mean_and_deviation_over_seeds_by_hand() -> None:
    runs = [SeedResult(seed, 8, 3, 5, 5, {"f1": s}, {"f1": s}) for seed, s in ((13, 0.5), (42, 0.6), (87, 0.7))]
    spread = mean_and_std(runs)["f1"]
    assert spread == {"mean": pytest.approx(0.6), "std": pytest.approx(0.1)}
    assert mean_and_std(runs[:1])["f1"]["std"] is None
    rows = [vars(run) for run in runs]
    text = table({"scores": {"f1": spread}, "selection": {"by": "f1"}, "runs": rows}).splitlines()
    assert text[0].split() == ["seed", "examples", "best", "step", "dev", "f1", "test", "f1"]
    assert text[2].split() == ["13", "8", "5/5", "50.00", "50.00"]
    assert [line.split() for line in text[6:8]] == [["mean", "60.00"], ["std", "10.00"]]
