"""`erica-dist build-kb`: a Wikidata JSON dump, or tables -> the memory-mapped folder that `data_tools.kb` reads.

    settings and inputs checked --> the folder locked --> the steps (`stages`) --> files moved to OUT --> manifest

An external sort: each task holds one unit or one range of keys, so memory is bounded by `unit_mb` and `task_mb` for
each worker whatever the size of the dump. Tasks run on Ray; where there is one only, in this process. A task's result
stands in OUT/.build under a name that depends on inputs and settings only, so a build that was stopped goes on, and
the bytes that come out do not depend on the number of workers or on what failed on the way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.output_folder import WORK, check_folder, locked
from data_tools.wikidata import dump
from data_tools.wikidata.link_priors import LinkStatistics
from data_tools.wikidata.names import LABEL_WEIGHT
from data_tools.wikidata.stages import Slots, Stages
from erica_dist.config import KnowledgeBaseJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import MANIFEST, fingerprint, write_manifest
from erica_dist.shards.tarfiles import sha256_file, write_atomically

BUILD_VERSION = 2  # raise it when the same inputs give other results
NEEDED = {"plain": 0.3, "bz2": 6.0, "gz": 4.0, "zst": 4.0}  # bytes on the disk for a byte of the dump


def build_kb(job: KnowledgeBaseJob) -> dict[str, int]:
    """Build (or go on building) the folder `job.out`; gives the counts of its manifest.

    Raises:
        UserError: a setting or input is missing or wrong, a dump is damaged, nothing is left, or `job.out` is something
            else.
    """
    settings, inputs = _check(job)
    job = _absolute(job)
    request = fingerprint([BUILD_VERSION, erica_dist.__version__, settings, inputs])
    out = Path(job.out)
    if (standing := _standing(out, request, job.allow_incomplete)) is not None:
        print(f"build-kb: {out} is already built with these settings, nothing to do", flush=True)
        return standing
    try:
        with locked(out) as work, contextlib.ExitStack() as stack:
            try:
                manifest = _finished(job, work, request, stack)
            except BaseException:
                _remove_unbegun(job, work)
                raise
            manifest |= {"settings": settings, "inputs": inputs, "request": request}
            for name in manifest["files"]:
                (work / "kb" / name).rename(out / name)
            write_manifest(out, manifest)
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write the knowledge base {out}: {error.strerror or error}; is the disk full?"
        ) from error
    counts: dict[str, int] = manifest["counts"]
    print(f"build-kb: done: {', '.join(f'{key} {value:,}' for key, value in counts.items())}", flush=True)
    return counts


# ------------------------------------------------------------------------------------------------ before the work


def _check(job: KnowledgeBaseJob) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings and inputs that the result depends on."""
    if bool(job.dump) == bool(job.entities or job.triples):
        raise UserError("build-kb needs either --dump (a Wikidata JSON dump) or --entities and --triples (tables)")
    for key in ("out",) if job.dump else ("entities", "triples", "out"):
        if not getattr(job, key):
            raise UserError(f"build-kb needs --{key} (setting {key!r})")
    if job.ranks not in ("best", "nondeprecated"):
        raise UserError(f"ranks={job.ranks!r} must be best or nondeprecated")
    for key, value in (("unit_mb", job.unit_mb), ("task_mb", job.task_mb)):
        if value < 1:
            raise UserError(f"{key}={value} must be at least 1")
    if set(job.only_relations) & set(job.excluded_relations):
        raise UserError("a relation stands both in only_relations and in excluded_relations")
    paths = [path for path in (job.dump, job.entities, job.triples, job.relations) if path]
    for path in paths:
        if not Path(path).is_file():
            raise UserError(
                f"cannot read {path}: {'it is a folder' if Path(path).is_dir() else 'there is no such file'}"
            )
    if not job.language.code.strip() or job.language.code != job.language.code.lower():
        raise UserError(
            f"language.code={job.language.code!r} must be a code of Wikidata in lower case, such as en or zh-hans"
        )
    if not 0 <= job.links.min_share <= 1 or job.links.min_links < 1:
        raise UserError(
            f"links.min_share must lie between 0 and 1 and links.min_links be at least 1, found {job.links.min_share} "
            f"and {job.links.min_links}"
        )
    needed = Path(job.dump).stat().st_size * NEEDED[dump.packing_of(job.dump)] if job.dump else 0.0
    out = Path(job.out)
    if (out / MANIFEST).is_file() or not out.exists() or out.is_dir():
        begun = sum(path.stat().st_size for path in (out / WORK).rglob("*") if path.is_file())
        check_folder(out, max(needed - begun, 0.0))
    else:
        raise UserError(f"{out} is a file; give another --out")
    left_out = ("dump", "entities", "triples", "relations", "out", "ray", "allow_incomplete", "links")
    settings = {key: value for key, value in dataclasses.asdict(job).items() if key not in left_out}
    settings |= {
        "only_relations": sorted(job.only_relations),
        "excluded_relations": sorted(job.excluded_relations),
        "label_weight": LABEL_WEIGHT,
        "links": None,
    }
    if job.links.counts:
        counted, missing = LinkStatistics.check(job.links.counts)
        if missing and not job.allow_incomplete:
            raise UserError(
                f"{job.links.counts} was counted from a damaged dump ({missing[0]['file']}: {missing[0]['place']}); "
                "count again, or go on with what there is by --allow-incomplete"
            )
        settings["links"] = {
            "fingerprint": counted,
            "incomplete": missing,
            "min_links": job.links.min_links,
            "min_share": job.links.min_share,
        }
    return settings, [dump.identity(path) if path == job.dump else _identity(path) for path in paths]


def _identity(table: str) -> dict[str, str | int]:
    return {"path": Path(table).name, "bytes": Path(table).stat().st_size, "sha256": sha256_file(Path(table))}


def _absolute(job: KnowledgeBaseJob) -> KnowledgeBaseJob:
    """`job` by paths that workers in other folders understand."""
    dump_file, out, counts = (path and str(Path(path).absolute()) for path in (job.dump, job.out, job.links.counts))
    return dataclasses.replace(job, dump=dump_file, out=out, links=dataclasses.replace(job.links, counts=counts))


def _standing(out: Path, request: str, allow_incomplete: bool) -> dict[str, int] | None:
    """The counts of a knowledge base that stands complete and as requested; None where there is none."""
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{out / MANIFEST} is damaged ({error}); remove {out} or give another --out") from error
    if manifest.get("request") != request:
        raise UserError(f"{out} holds the result of other inputs, settings or code; give another --out or remove it")
    changed = [
        name
        for name, size in manifest["bytes"].items()
        if not (out / name).is_file() or (out / name).stat().st_size != size
    ]
    if changed:
        raise UserError(f"{out} has lost or changed {', '.join(changed)} since; remove the folder and build again")
    if manifest["incomplete"] and not allow_incomplete:
        raise UserError(
            f"{out} was built of a damaged dump ({manifest['incomplete'][0]}); take it as it is by --allow-incomplete, "
            "or remove the folder and build again"
        )
    shutil.rmtree(out / WORK, ignore_errors=True)
    counts: dict[str, int] = manifest["counts"]
    return counts


def _finished(job: KnowledgeBaseJob, work: Path, request: str, stack: contextlib.ExitStack) -> dict[str, Any]:
    """The manifest of what lies in WORK/kb after all steps."""
    mark = work / "request"
    if mark.is_file() and mark.read_text() != request:
        print("build-kb: what was begun with other inputs or settings is removed", flush=True)
        for path in work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
    write_atomically(mark, request.encode())
    manifest = Stages(job, work, Slots(job.ray, stack)).run()
    manifest["files"] = {path.name: sha256_file(path) for path in sorted((work / "kb").iterdir())}
    manifest["bytes"] = {path.name: path.stat().st_size for path in sorted((work / "kb").iterdir())}
    manifest["fingerprint"] = fingerprint(manifest["files"])
    return manifest


def _remove_unbegun(job: KnowledgeBaseJob, work: Path) -> None:
    """Leave no folder behind where nothing of a dump has been done; tables are read anew each time."""
    if not job.dump or not any((work / "runs").glob("*.json")):
        shutil.rmtree(work, ignore_errors=True)
        if not any(work.parent.iterdir()):
            work.parent.rmdir()
