"""A run's newest checkpoint -> folders that Hugging Face's `from_pretrained` loads, offline and without this package.

In: RUN_DIR/checkpoints/step-*/weights/model.safetensors (the trained module in float32, tied weights once, the ties in
state.json), model_config.json, tokenizer/. Out: for ERICA one folder (encoder with its masked-language-model head), for
ELECTRA `discriminator/` and `generator/`, each whole in itself; with the tokenizer and a model card. The folder is
written under a temporary name, loaded back and compared with the checkpoint, and only then gets its name.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erica_dist.errors import UserError
from erica_dist.model_card import model_card
from erica_dist.shards.tarfiles import sha256_file
from erica_dist.shards.tokenizers import read_tokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

FORMAT = "erica-dist/export"
MARK = "export.json"  # tells an export from other folders
_PARTS = {  # part of model_config.json -> (name in the trained module, folder in the export, loader)
    "encoder": ("model", ".", "AutoModelForMaskedLM"),
    "discriminator": ("discriminator", "discriminator", "ElectraForPreTraining"),
    "generator": ("generator", "generator", "ElectraForMaskedLM"),
}


def export_run(run_dir: str | Path, out: str | Path) -> None:
    """Write the export of `run_dir`'s newest complete checkpoint to the folder `out` and say how to load it.

    An earlier export at `out` is replaced.

    Raises:
        UserError: no complete checkpoint or a part of the run is missing or damaged; `out` holds something else than an
            export; too little disk space.
    """
    import transformers

    from erica_dist.training.checkpoint import newest_checkpoint, read_state

    run, target = Path(run_dir), Path(out)
    if not run.is_dir():
        raise UserError(f"there is no run folder {run}")
    _check_target(target)
    checkpoint = newest_checkpoint(run)
    state = read_state(checkpoint)
    models = _read_json(run / "model_config.json")
    weights_file = checkpoint / "weights" / "model.safetensors"
    weights = _read_weights(weights_file, state.get("tied", {}))
    _check_space(target, 2 * weights_file.stat().st_size)

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    # One line of ours says more than its bars for files that take a second.
    transformers.logging.disable_progress_bar()
    try:
        parts = [name for name in _PARTS if name in models]
        for name in parts:
            _write_part(run, temporary, name, models[name], weights)
        mark = {
            "format": FORMAT,
            "version": 1,
            "job": models["job"],
            "step": state["step"],
            "run": run.resolve().name,
            "weights_sha256": sha256_file(weights_file),
            "shards": state.get("shards"),
            "markers": models.get("markers"),
        }
        (temporary / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")
        loaders = {_PARTS[name][1]: _PARTS[name][2] for name in parts}
        card = model_card(run, state, models["job"], loaders, models.get("markers"))
        (temporary / "README.md").write_text(card, encoding="utf-8")
        os.chmod(temporary, 0o755)
        _put_in_place(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write the export {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"exported step {state['step']} of {run} to {target}; load it with:")
    shown = {".": "AutoModel"} if "encoder" in parts else loaders
    for folder, loader in shown.items():
        print(f"  transformers.{loader}.from_pretrained({str(target / folder)!r})")
    if "encoder" in parts:
        print("  (or AutoModelForMaskedLM, with its masked-language-model head)")


def _check_target(target: Path) -> None:
    if target.is_dir() and (not any(target.iterdir()) or (target / MARK).is_file()):
        return
    if os.path.lexists(target):
        raise UserError(f"{target} exists and is no export of this program: choose another folder, or remove it first")


def _check_space(target: Path, needed: int) -> None:
    existing = next(folder for folder in target.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(f"{existing} has {free / 1e9:.2f} GB free, the export {target} needs {needed / 1e9:.2f} GB")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {path.parent} is no whole run folder of erica-dist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("job") not in ("erica", "electra"):
        raise UserError(f"{path} does not say which job (erica or electra) the run is")
    return content


def _read_weights(path: Path, tied: dict[str, str]) -> dict[str, Tensor]:
    """All weights by name, tied ones under each of their names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the checkpoint is not whole; remove it to export the one before") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error}); remove the checkpoint to export the one before") from error
    lost = sorted(set(tied.values()) - set(weights))
    if lost:
        raise UserError(f"{path} lacks {lost[0]}, which other weights are tied to: the checkpoint is damaged")
    return weights | {name: weights[stored] for name, stored in tied.items()}


def _write_part(run: Path, out: Path, part: str, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """One model with its tokenizer, written, then loaded back and compared."""
    import transformers

    prefix, folder, loader = _PARTS[part]
    own = {name.removeprefix(f"{prefix}."): value for name, value in weights.items() if name.startswith(f"{prefix}.")}
    model = _model(loader, config, own, run)
    place = out / folder
    # The tokenizer first: its folder may hold the config.json of the model that it came with
    shutil.copytree(_tokenizer(run), place, dirs_exist_ok=True)
    model.save_pretrained(place)
    if part != "encoder":
        # Each part is a folder of its own that may be copied away from its sister.
        (place / "README.md").write_text("See ../README.md for where this model comes from.\n", encoding="utf-8")

    again = (
        getattr(transformers, loader)
        .from_pretrained(place, local_files_only=True, trust_remote_code=False)
        .state_dict()
    )
    different = [name for name, value in own.items() if name not in again or not bool((again[name] == value).all())]
    if different:
        raise RuntimeError(f"the export does not load back as it was trained: {', '.join(different[:5])}")
    read_tokenizer(place)


def _model(loader: str, config: dict[str, Any], weights: dict[str, Tensor], run: Path) -> PreTrainedModel:
    """The Hugging Face model of `config` with exactly the given weights."""
    import transformers

    values = {name: value for name, value in config.items() if "attn_implementation" not in name}
    try:
        made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        maker = getattr(transformers, loader)
        # The classes of one model are called, the Auto classes have a function for it.
        model = getattr(maker, "from_config", maker)(made).float().eval()
    except (KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{run / 'model_config.json'} describes no model that {loader} knows: {error}") from error
    parameters = dict(model.named_parameters(remove_duplicate=False))
    odd = sorted(set(weights) ^ set(parameters))
    odd += [name for name, value in weights.items() if name in parameters and value.shape != parameters[name].shape]
    if odd:
        raise UserError(
            f"the checkpoint of {run} and its model_config.json do not belong together: {', '.join(odd[:5])}"
        )
    model.load_state_dict(weights, strict=False)
    return model


def _tokenizer(run: Path) -> Path:
    folder = run / "tokenizer"
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: {run} is no whole run folder of erica-dist")
    return folder


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename the finished folder to `target`; an earlier export is moved aside first and removed after."""
    if not target.exists():
        temporary.rename(target)
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
    target.rename(aside / "export")
    try:
        temporary.rename(target)
    except OSError:
        (aside / "export").rename(target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
