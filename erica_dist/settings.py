"""The settings of a job: read from a YAML file and dotted overrides into its dataclass, and written again.

`load(EricaJob, "job.yaml", ["train.lr=1e-4"])` starts from the defaults of the dataclass, lays the file over them, then
each override. An unknown key is an error that names the nearest one; a value of a wrong type is an error that names the
key, the value and the type. `dump` gives the resolved YAML that is saved with every run and is itself a valid
`--config`. Any dataclass of dataclasses, lists, mappings and plain values will do; those of the jobs are in
`erica_dist.config`.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from erica_dist.errors import UserError

Job = TypeVar("Job")


def load(job_type: type[Job], path: str | Path | None = None, overrides: Iterable[str] = ()) -> Job:
    """Defaults, then the YAML file at `path`, then each `a.b=value` override.

    Raises:
        UserError: file missing or no YAML mapping, unknown key (with the nearest one), or a value of a wrong type.
    """
    job = job_type()
    if path:
        try:
            tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the configuration {path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is no valid YAML: {error}") from error
        if tree is not None and not isinstance(tree, dict):
            raise UserError(f"{path} must hold a mapping such as `train: {{lr: 1e-4}}`, not a {type(tree).__name__}")
        apply(job, tree or {}, origin=str(path))
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UserError(f"override {text!r} is not of the form section.key=value, such as train.lr=1e-4")
        try:
            parsed = yaml.safe_load(value) if value else ""
        except yaml.YAMLError:
            parsed = value
        tree = parsed
        for name in reversed(key.split(".")):
            tree = {name: tree}
        apply(job, tree, origin=f"override {text!r}")
    return job


def apply(node: Any, tree: Mapping[str, Any], origin: str, prefix: str = "") -> None:
    """Set the fields of the dataclass `node` from the nested mapping `tree`, in place."""
    types_of = typing.get_type_hints(type(node))
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if key not in types_of:
            raise UserError(f"{origin}: unknown setting {full!r}{_nearest(full, prefix, types_of)}")
        current = getattr(node, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UserError(f"{origin}: {full!r} is a section with keys {', '.join(vars(current))}, not a value")
            apply(current, value, origin, prefix=f"{full}.")
        else:
            setattr(node, key, _coerce(value, types_of[key], full, origin))


def _nearest(full: str, prefix: str, known: Mapping[str, Any]) -> str:
    names = [f"{prefix}{name}" for name in known]
    close = difflib.get_close_matches(full, names, n=1, cutoff=0.0)
    return f"; did you mean {close[0]!r}? (known here: {', '.join(names)})" if close else ""


def _coerce(value: Any, wanted: Any, key: str, origin: str) -> Any:
    """`value` as the annotated type `wanted`; only lossless conversions (YAML reads 1e-4 as a string, 1 as an int)."""
    wrong = UserError(f"{origin}: {key!r} must be {_type_name(wanted)}, got {value!r}")
    kind = typing.get_origin(wanted)
    if kind is Literal:
        text = value if value in typing.get_args(wanted) else str(value)
        if text not in typing.get_args(wanted):
            raise wrong
        return text
    if kind in (typing.Union, types.UnionType):
        for option in typing.get_args(wanted):
            try:
                return _coerce(value, option, key, origin)
            except UserError:
                continue
        raise wrong
    if kind is list:
        items = [value] if isinstance(value, str) and value else (value or [])
        if not isinstance(items, list):
            raise wrong
        return [_coerce(item, typing.get_args(wanted)[0], key, origin) for item in items]
    if kind is dict:
        if not isinstance(value or {}, dict):
            raise wrong
        return {
            str(name): _coerce(item, typing.get_args(wanted)[1], f"{key}.{name}", origin)
            for name, item in (value or {}).items()
        }
    if wanted is bool:
        if not isinstance(value, bool):
            raise wrong
        return value
    if wanted is str:
        if isinstance(value, bool | dict | list):
            raise wrong
        return "" if value is None else str(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    try:
        number = float(value)
        return number if wanted is float else _exact_int(value, number)
    except (ValueError, OverflowError):
        raise wrong from None


def _exact_int(value: int | float | str, number: float) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        return int(value)
    if number != int(number):
        raise ValueError(value)
    return int(number)


def _type_name(wanted: Any) -> str:
    if typing.get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(wanted)))
    if typing.get_origin(wanted) is list:
        return f"a list of {typing.get_args(wanted)[0].__name__}"
    if typing.get_origin(wanted) is dict:
        return "a mapping such as {name: 0.5}"
    return {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}.get(
        getattr(wanted, "__name__", ""), str(wanted)
    )


def dump(job: Any) -> str:
    """The resolved job as YAML, in the order of the dataclass."""
    return yaml.safe_dump(dataclasses.asdict(job), sort_keys=False, allow_unicode=True)


def flatten(job: Any) -> dict[str, Any]:
    """The resolved job as one flat mapping of dotted keys, as logged to MLflow."""
    flat: dict[str, Any] = {}

    def visit(node: Any, prefix: str) -> None:
        for field in dataclasses.fields(node):
            value = getattr(node, field.name)
            if dataclasses.is_dataclass(value):
                visit(value, f"{prefix}{field.name}.")
            else:
                flat[f"{prefix}{field.name}"] = value

    visit(job, "")
    return flat
