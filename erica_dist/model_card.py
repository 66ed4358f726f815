"""The README.md of an export: what the model is, how to load it, what it was trained on, how, and how well it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from erica_dist.errors import UserError
from erica_dist.shards.manifest import read_manifest
from erica_dist.tracking.journal import EVALUATION, METRICS, Record, iterate

_ABOUT = {
    "erica": (
        "An encoder that was further pre-trained with ERICA's objectives (Qin et al., ACL 2021): relation "
        "discrimination and entity discrimination over distantly labelled documents, with masked language modelling."
    ),
    "electra": (
        "A discriminator and a generator, pre-trained together with ELECTRA's objective (Clark et al., ICLR 2020): "
        "replaced-token detection. The discriminator is the encoder to fine-tune."
    ),
}
# Places of this machine and of the tracking server are nobody else's business.
_PRIVATE_SECTIONS = ("run", "tracking")
_NO_RESULT = frozenset({"step", "time", "epoch", "lr", "documents", "tokens", "seconds"})


def model_card(
    run: Path, state: dict[str, Any], job: str, loaders: dict[str, str], markers: dict[str, Any] | None = None
) -> str:
    """Markdown with Hugging Face's YAML head.

    Args:
        run: the run's folder; what is missing in it is left out of the card.
        state: the checkpoint's state.json.
        job: erica or electra.
        loaders: folder within the export -> name of the transformers class that loads it.
        markers: `start` and `end`, the pieces around a mention, of a model that was trained with entity markers.
    """
    settings = _settings(run)
    parts = [
        "---\nlibrary_name: transformers\ntags:\n" + f"- {job}\n- pre-training\n---\n",
        f"# {run.resolve().name}\n",
        f"{_ABOUT[job]} Exported from optimizer step {state['step']:,}.\n",
        "## Use\n\n```python\n" + _usage(job, loaders) + "```\n",
        _markers(markers) if markers else "",
        "## Data\n\n" + _provenance(settings, state),
        _scores("Held-out scores", run / EVALUATION, state["step"], first_too=True),
        _scores("Training metrics at this step", run / METRICS, state["step"], first_too=False),
        _settings_section(settings),
        _versions(run),
    ]
    return "\n".join(part for part in parts if part)


def _usage(job: str, loaders: dict[str, str]) -> str:
    classes = dict.fromkeys([*(["AutoModel"] if job == "erica" else []), *loaders.values(), "AutoTokenizer"])
    lines = [f"from transformers import {', '.join(classes)}\n"]
    if job == "erica":
        lines.append('encoder = AutoModel.from_pretrained("PATH")  # hidden states; its pooler, if any, is untrained')
    for folder, loader in loaders.items():
        name = "masked_lm" if folder == "." else folder
        path = "PATH" if folder == "." else f"PATH/{folder}"
        lines.append(f'{name} = {loader}.from_pretrained("{path}")')
    first = next(iter(loaders))
    lines.append(f'tokenizer = AutoTokenizer.from_pretrained("{"PATH" if first == "." else f"PATH/{first}"}")')
    return "\n".join(lines) + "\n"


def _markers(markers: dict[str, Any]) -> str:
    start, end = markers["start"], markers["end"]
    return f"""## Entity markers

Trained with `{start}` before and `{end}` behind each mention of an entity. The last hidden state of `{start}` stands
for the mention, the mean over its mentions for the entity. The tokenizer knows both pieces:

```python
text = tokenizer("{start} Ada Lovelace {end} lived in {start} London {end}.", return_tensors="pt")
states = encoder(**text).last_hidden_state
mentions = states[text.input_ids == tokenizer.convert_tokens_to_ids("{start}")]  # one row a mention
```
"""


def _settings(run: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _provenance(settings: dict[str, Any], state: dict[str, Any]) -> str:
    """Fingerprints and counts from the shard folder's manifest, where the folder is still there."""
    folder = str(settings.get("data", {}).get("shards", ""))
    fingerprint = state.get("shards")
    try:
        manifest = read_manifest(folder) if folder else {}
    except UserError:
        manifest = {}
    if fingerprint and manifest.get("fingerprint") != fingerprint:
        manifest = {}  # the folder holds other shards by now
    rows = {
        "Shards": fingerprint or manifest.get("fingerprint"),
        "Corpus": manifest.get("corpus_fingerprint"),
        "Tokenizer": manifest.get("tokenizer", {}).get("fingerprint"),
    }
    for split in ("train", "validation"):
        shards = [shard for shard in manifest.get("shards", []) if shard.get("split") == split]
        if shards:
            documents, tokens = (sum(shard.get(key, 0) for shard in shards) for key in ("documents", "tokens"))
            rows[f"{split.capitalize()} split"] = (
                f"{documents:,} {manifest.get('kind', 'documents')}, {tokens:,} tokens"
            )
    if manifest.get("relations"):
        rows["Relation types"] = f"{len(manifest['relations']):,}"
    for stage, reasons in (manifest.get("counts") or {}).items():
        rows[f"Counts: {stage}"] = (
            ", ".join(f"{reason} {count}" for reason, count in reasons.items())
            if isinstance(reasons, dict)
            else reasons
        )
    known = {name: value for name, value in rows.items() if value}
    if not known:
        return "Not recorded: the shard folder was not at hand when this was exported.\n"
    return _table(
        ("", ""), [(name, f"`{v}`" if name in ("Shards", "Corpus", "Tokenizer") else v) for name, v in known.items()]
    )


def _scores(title: str, path: Path, step: int, first_too: bool) -> str:
    records = [record for record in iterate(path) if record["step"] <= step]
    if not records:
        return ""
    first, last = records[0], records[-1]
    names = [name for name, value in last.items() if name not in _NO_RESULT and isinstance(value, int | float)]
    if first_too and first["step"] < last["step"]:
        rows = [(f"`{name}`", _number(first, name), _number(last, name)) for name in names]
        return f"## {title}\n\n" + _table(("", f"step {first['step']}", f"step {last['step']}"), rows)
    return f"## {title}\n\n" + _table(("", f"step {last['step']}"), [(f"`{n}`", _number(last, n)) for n in names])


def _number(record: Record, name: str) -> str:
    value = record.get(name)
    return "" if value is None else f"{value:.5g}"


def _settings_section(settings: dict[str, Any]) -> str:
    public = {name: section for name, section in settings.items() if name not in _PRIVATE_SECTIONS}
    if not public:
        return ""
    # Folders are shown by their last part only.
    for section, key in (("data", "shards"), ("data", "cache"), ("model", "init"), ("train", "deepspeed_config")):
        if public.get(section, {}).get(key):
            public[section] = public[section] | {key: Path(public[section][key]).name}
    if mix := public.get("data", {}).get("mix"):
        public["data"] = public["data"] | {"mix": {Path(place).name: weight for place, weight in mix.items()}}
    return f"## Settings\n\n```yaml\n{yaml.safe_dump(public, sort_keys=False, allow_unicode=True)}```\n"


def _versions(run: Path) -> str:
    try:
        found = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        rows = [(name, version) for name, version in found["packages"].items()]
    except (OSError, ValueError, KeyError, AttributeError):
        return ""
    git = found.get("git")
    if git:
        rows.append(("source", f"commit `{git['commit']}`" + (" with changes" if git["dirty"] else "")))
    return "## Software\n\n" + _table(("", ""), rows)


def _table(header: tuple[str, ...], rows: list[Any]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"
