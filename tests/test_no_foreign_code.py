"""Code that lies in a model's or tokenizer's folder never runs, and nobody is asked whether it may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from erica_dist.errors import UserError
from erica_dist.shards.tokenizers import read_tokenizer
from erica_dist.training.job import main
from tests.synthetic import tiny_tokenizer, write_documents_folder

CODE = "import pathlib\npathlib.Path({trace!r}).touch()\nfrom transformers import PreTrainedTokenizerFast as Custom\n"


def foreign(folder: Path, trace: Path) -> Path:
    """A folder whose tokenizer and model ask for a class of a file beside them."""
    tiny_tokenizer().save_pretrained(folder)
    (folder / "custom.py").write_text(CODE.format(trace=str(trace)))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings |= {"tokenizer_class": "Custom", "auto_map": {"AutoTokenizer": [None, "custom.Custom"]}}
    path.write_text(json.dumps(settings))
    config = {"model_type": "custom", "auto_map": {"AutoConfig": "custom.Custom", "AutoModelForMaskedLM": "custom.C"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def somebody_who_says_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")


def test_a_tokenizer_that_brings_code_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(UserError, match="cannot be read without running code of that folder or is damaged"):
        read_tokenizer(foreign(tmp_path / "model", trace))
    assert not trace.exists()


def test_a_model_that_brings_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, shards = tmp_path / "trace", write_documents_folder(tmp_path / "shards", documents=20)
    model = foreign(tmp_path / "model", trace)
    words = [f"model.init={model}", f"data.shards={shards}", f"run.dir={tmp_path / 'run'}", "model.max_length=64"]
    words += ["train.global_batch=8", "train.micro_batch=8"]
    assert main("erica", words) == 2
    assert "cannot be read without running code" in capsys.readouterr().err
    assert not trace.exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": "32", "model_type": "bert"}'])
def test_a_damaged_folder_is_one_error(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, model = write_documents_folder(tmp_path / "shards", documents=20), tmp_path / "model"
    tiny_tokenizer().save_pretrained(model)
    (model / "config.json").write_text('{"model_type": "bert"}')
    (model / name).write_text(text)
    words = [f"model.init={model}", f"data.shards={shards}", f"run.dir={tmp_path / 'run'}", "model.max_length=64"]
    words += ["train.global_batch=8", "train.micro_batch=8", "tracking.uri=none", "data.workers=0"]
    assert main("erica", words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert str(model) in line
