"""The whole way of the data by the commands of the README, on small pages made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import webdataset
from transformers import AutoModel, AutoTokenizer, ElectraForPreTraining

from tests.corpora import make_kb, make_pages, make_tokenizer

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.end_to_end, pytest.mark.ray, pytest.mark.distributed]


def run(*words: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=500, check=False)
    assert done.returncode == 0, f"{words}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_from_pages_to_exported_models(tmp_path: Path) -> None:
    make_kb(tmp_path)
    pages = make_pages(tmp_path / "pages.jsonl", 150)
    tokenizer = str(make_tokenizer(tmp_path))
    erica_dist = (sys.executable, "-m", "erica_dist.cli")
    corpus = str(tmp_path / "corpus")
    small = ["filters.min_tokens=16", "ner.enabled=false", "documents_per_shard=40", "pages_per_task=40"]
    words = ["--input", str(pages), "--kb", str(tmp_path / "kb"), "--tokenizer", tokenizer, "--out", corpus]
    run(*erica_dist, "build-corpus", *words, *small)
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["documents"] >= 40
    run(*erica_dist, "verify", corpus)

    shards = {}
    for kind in ("documents", "sequences"):
        shards[kind] = tmp_path / kind
        words = ["--corpus", corpus, "--tokenizer", tokenizer, "--kind", kind, "--out", str(shards[kind])]
        run(
            *erica_dist, "tokenize", *words, "validation_share=0.2", *(["max_length=64"] if kind == "sequences" else [])
        )
        run(*erica_dist, "verify", str(shards[kind]))
    block = next(iter(webdataset.WebDataset(str(shards["documents"] / "train-00000.tar"), shardshuffle=False).decode()))
    assert len(block["tokens.npy"]) == block["token_offsets.npy"][-1]

    runs = tmp_path / "runs"
    deepspeed = [str(Path(sys.executable).with_name("deepspeed")), "--num_accelerators", "2", "--master_port"]
    common = ["model.size=tiny", "train.steps=8", "train.global_batch=8", "train.micro_batch=2", "train.lr=1e-3"]
    common += ["train.warmup_steps=2", "tracking.experiment=e2e"]
    for i, (name, kind, extra) in enumerate(
        (
            ("erica-gather", "erica", ["model.max_length=512"]),
            ("erica-local", "erica", ["model.max_length=512", "erica.negatives=local"]),
            ("electra", "electra", ["model.max_length=64", "electra.generator_hidden_size=0.5"]),
        )
    ):
        data = f"data.shards={shards['documents' if kind == 'erica' else 'sequences']}"
        port = str(20000 + (os.getpid() * 7 + i) % 20000)
        run(*deepspeed, port, f"launchers/{kind}.py", data, f"run.dir={runs / name}", *common, *extra)
        rows = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, 9))
        losses = ["loss_rd", "loss_ed", "loss_mlm"] if kind == "erica" else ["loss_generator", "loss_discriminator"]
        common_keys = ["loss", "grad_norm", "lr", "documents", "tokens", "tokens_per_second", "data_wait_share"]
        assert set(rows[0]) >= {*common_keys, *losses}
        assert all(row["documents"] == 8 for row in rows)

    table = run(
        *erica_dist,
        "compare",
        "--uri",
        f"sqlite:///{runs}/mlflow.db",
        "--experiment",
        "e2e",
        "--out",
        str(tmp_path / "report"),
    )
    for name in ("erica-gather", "erica-local", "electra"):
        assert name in table
    assert "erica.negatives" in table
    assert (tmp_path / "report" / "index.html").stat().st_size > 1000
    assert list((tmp_path / "report").glob("*.png"))

    run(*erica_dist, "export", str(runs / "erica-gather"), str(tmp_path / "model"))
    run(*erica_dist, "export", str(runs / "electra"), str(tmp_path / "pair"))
    encoder = AutoModel.from_pretrained(tmp_path / "model", local_files_only=True).eval()
    text = AutoTokenizer.from_pretrained(tmp_path / "model", local_files_only=True)(
        "the capital of france", return_tensors="pt"
    )
    assert torch.isfinite(encoder(**text).last_hidden_state).all()
    discriminator = ElectraForPreTraining.from_pretrained(tmp_path / "pair" / "discriminator", local_files_only=True)
    assert torch.isfinite(discriminator(**text).logits).all()
