"""The steps of `build-kb`, one method each; what they leave on disk is in OUT/.build (see `builder`).

    dump --> units --> runs of names, titles, facts, instance-of          (extract; tables: table_runs)
    ids of all runs --> the entities, numbered
    runs --> facts by entity numbers --> the way back, titles, names, names without case    (facts, names)
    merged runs --> arrays and tries                                                        (finish)

A step is a list of tasks, each with the run that it writes: those whose run stands are done.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.kb import FORMAT
from data_tools.progress import StepProgress
from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.wikidata import dump, finish, types
from data_tools.wikidata.arrays import mapped
from data_tools.wikidata.extract import MAX_RELATIONS, ExtractTask, Selection, extract
from data_tools.wikidata.facts import RangeTask, merge_facts, merge_incoming, merge_types
from data_tools.wikidata.items import Language
from data_tools.wikidata.names import Links, StringsTask, merge_folded, merge_names, merge_titles
from data_tools.wikidata.runs import Run, number_ranges, read_index, string_ranges, unpacked
from data_tools.wikidata.table_runs import table_runs
from data_tools.wikidata.tables import read_relations
from erica_dist.config import KnowledgeBaseJob, RayConfig
from erica_dist.errors import UserError
from erica_dist.shards.manifest import VERSION
from erica_dist.shards.tarfiles import write_atomically

MB = 10**6
# What a task of a merge holds for a row, at most
BYTES_A_FACT = 100
BYTES_A_NAME = 500
UNPACKED = 12  # bytes of JSON in a byte of a gz or zst dump, roughly
LISTED = 5


def _forget_damaged(runs: Path) -> None:
    """Have what was read of a damaged dump read again, and all that was made of it: the dump may have been mended."""
    damaged = {
        path for path in runs.glob("unit-*.json") if (index := read_index(path.with_suffix(""))) and index["damages"]
    }
    for path in runs.glob("*.json") if damaged else ():
        if path in damaged or not path.name.startswith("unit-"):
            path.unlink()


@dataclass
class Slots:
    """Ray, started when the first step has more than one task."""

    config: RayConfig
    stack: contextlib.ExitStack
    count: int = 0

    def get(self, tasks: int) -> int:
        if not self.count and tasks > 1 and not self.config.disabled:
            self.count = self.stack.enter_context(local_or_remote(self.config))
        return self.count if tasks > 1 else 0


@dataclass
class Stages:
    """The steps of one build, their results in `work` and what they counted."""

    job: KnowledgeBaseJob
    work: Path
    slots: Slots
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> dict[str, Any]:
        """All steps; the files lie in WORK/kb then."""
        job, work, out = self.job, self.work, self.work / "kb"
        shutil.rmtree(out, ignore_errors=True)
        for folder in (work / "runs", work / "pieces", out):
            folder.mkdir(exist_ok=True)
        language = Language(job.language.code, tuple(job.language.fallbacks), job.language.site)
        wanted, excluded = frozenset(job.only_relations), frozenset(job.excluded_relations)
        selection = Selection(language, "best" if job.ranks == "best" else "nondeprecated", wanted, excluded)
        ids_of: Sequence[str] | None = None
        if job.dump:
            runs, damages = self._extract(selection)
        else:
            print(f"build-kb: reading {job.entities} and {job.triples}", flush=True)
            runs, numbering = table_runs(job.entities, job.triples, selection, work / "runs")
            damages, ids_of = [], numbering.ids
        source = job.dump or job.entities
        labels = self._relation_labels(runs)
        for path in runs:
            self.counts.update(Run.open(path).said["counts"])
        entities, repeated = finish.write_ids(runs, work / "ids.npy")
        self.counts["entities"] = entities
        self.counts["entity lines merged"] += repeated
        if not entities:
            where = f" in language.code={job.language.code}, its fallbacks or language.site" if job.dump else ""
            raise UserError("; ".join([f"{source} holds no entity with a name{where}{self._counted()}", *damages[:1]]))

        print(f"build-kb: {entities:,} entities", flush=True)
        relations = self._facts(runs, entities, source)
        self._types(runs, entities, relations, ids_of is None)
        tables = self._strings(runs, entities)
        self._identifiers(ids_of)
        finish.write_strings(out, "relation_ids", relations)
        finish.write_strings(out, "relation_names", [labels.get(relation, "") for relation in relations])
        self.counts["relations"] = len(relations)
        self.counts["relations without a label"] = sum(relation not in labels for relation in relations)
        return {
            "format": FORMAT,
            "version": VERSION,
            "tool_version": erica_dist.__version__,
            "counts": dict(sorted(self.counts.items())),
            "tables": tables,
            "types": list(types.NAMES),
            "q_ids": ids_of is None,
            "links": bool(job.links.counts),
            "incomplete": [self._without_folder(damage) for damage in damages],
            "complete": True,
        }

    def _extract(self, selection: Selection) -> tuple[list[Path], list[str]]:
        job, folder = self.job, self.work / "runs"
        print(f"build-kb: reading {job.dump}", flush=True)
        if not job.allow_incomplete:
            _forget_damaged(folder)
        units = dump.plan(job.dump, job.unit_mb)
        damages: list[str] = []
        if units is not None:
            names = [folder / f"unit-{number:06d}" for number in range(len(units))]
            tasks = [ExtractTask(unit, selection, str(name)) for unit, name in zip(units, names, strict=True)]
            self._run("units", extract, tasks)
        else:
            names = self._extract_in_order(selection)
        for name in names:
            damages += Run.open(name).said["damages"]
        damages = list(dict.fromkeys(damages))  # units side by side may meet the same one
        if damages and not job.allow_incomplete:
            listed = "\n".join(f"- {damage}" for damage in damages[:LISTED])
            raise UserError(
                f"{job.dump} is damaged in {len(damages)} place(s). What could be read is kept in {self.work}: fetch "
                f"the dump again, or go on with what there is by --allow-incomplete.\n{listed}"
            )
        return names, damages

    def _extract_in_order(self, selection: Selection) -> list[Path]:
        """A dump that is unpacked by one reader: its pieces are parsed while it reads on."""
        folder, names = self.work / "runs", []
        done = {int(path.stem[-6:]) for path in folder.glob("unit-*.json")}

        def tasks() -> Iterator[ExtractTask]:
            for number, unit in dump.feed(self.job.dump, self.job.unit_mb, self.work / "pieces", done):
                names.append(folder / f"unit-{number:06d}")
                if unit is not None:
                    yield ExtractTask(unit, selection, str(names[-1]))

        unpacked_mb = Path(self.job.dump).stat().st_size * UNPACKED / MB
        self._run_tasks("units", extract, tasks(), max(2, round(unpacked_mb / self.job.unit_mb)))
        return names

    def _facts(self, runs: Sequence[Path], entities: int, source: str) -> list[str]:
        relations = sorted({relation for path in runs for relation in Run.open(path).said["relations"]})
        if len(relations) >= MAX_RELATIONS:
            raise UserError(
                f"{len(relations):,} relations; at most {MAX_RELATIONS - 1:,} fit: name some in only_relations"
            )
        rows = self.job.task_mb * MB // BYTES_A_FACT
        facts = self._merge_numbers("facts", merge_facts, runs, "facts.", rows, tuple(relations))
        if not self.counts["facts"]:
            triples = self.job.dump or self.job.triples
            hint = "; see only_relations" if self.job.only_relations else ""
            raise UserError(f"{triples} holds no triple between two entities of {source}{hint}{self._counted()}")
        out = self.work / "kb"
        used = finish.write_facts(facts, relations, entities, out)
        incoming = self._merge_numbers("incoming", merge_incoming, facts, "back.", rows, ())
        finish.write_grouped(
            incoming, "tails", "heads", entities, out / "incoming_offsets.npy", out / "incoming_heads.npy"
        )
        return used

    def _types(self, runs: Sequence[Path], entities: int, relations: list[str], q_ids: bool) -> None:
        rows = self.job.task_mb * MB // BYTES_A_FACT
        out = self.work / "kb"
        merged = self._merge_numbers("types", merge_types, runs, "types.", rows, (), kept_bits=32)
        finish.write_grouped(merged, "items", "classes", entities, out / "types_offsets.npy", out / "types_classes.npy")
        finish.write_types(merged, relations, mapped(self.work / "ids.npy"), out, q_ids)

    def _merge_numbers(
        self,
        name: str,
        function: Callable[[RangeTask], dict[str, Any]],
        runs: Sequence[Path],
        part: str,
        rows: int,
        relations: tuple[str, ...],
        kept_bits: int = 64,
    ) -> list[Path]:
        listing = self._listing(name, runs)
        ranges = number_ranges((Run.open(path)[f"{part}sample"].copy() for path in runs), rows, kept_bits)
        names = [self.work / "runs" / f"{name}-{number:05d}" for number in range(len(ranges))]
        ids = str(self.work / "ids.npy")
        tasks = [
            RangeTask(listing, first, last, ids, relations, str(run))
            for run, (first, last) in zip(names, ranges, strict=True)
        ]
        return self._merged(name, function, tasks, names)

    def _strings(self, runs: Sequence[Path], entities: int) -> dict[str, list[tuple[str, str, int]]]:
        """Titles, names and names without case; gives the parts of their tries."""
        out, links = self.work / "kb", self.job.links
        for name in ("facts_offsets.npy", "incoming_offsets.npy", "titles_entities.npy"):
            (self.work / name).unlink(missing_ok=True)
            (self.work / name).symlink_to(out / name)
        titles, title_parts = self._merge_strings("titles", merge_titles, runs, "titles.")
        finish.write_columns(titles, [("entities", out / "titles_entities.npy", "u4")])
        finish.write_owned_rows(titles, entities, out / "entity_titles.npy")

        settings = Links(links.counts, links.min_links, links.min_share)
        paths = tuple((str(out / file), first, rows) for file, first, rows in title_parts)
        names, name_parts = self._merge_strings("names", merge_names, runs, "names.", settings, paths)
        finish.write_offsets(names, out / "names_offsets.npy")
        columns = [("entities", out / "names_entities.npy", "u4"), ("weights", out / "names_weights.npy", "f4")]
        if links.counts:
            columns.append(("linked", out / "names_linked.npy", "f2"))
        finish.write_columns(names, columns)
        finish.write_owned_rows(names, entities, out / "entity_labels.npy")

        folded, folded_parts = self._merge_strings("folded", merge_folded, names, "folded.")
        finish.write_offsets(folded, out / "folded_offsets.npy")
        finish.write_columns(folded, [("names", out / "folded_names.npy", "u4")])
        return {"titles": title_parts, "names": name_parts, "folded": folded_parts}

    def _merge_strings(
        self,
        name: str,
        function: Callable[[StringsTask], dict[str, Any]],
        runs: Sequence[Path],
        part: str,
        links: Links | None = None,
        titles: tuple[tuple[str, str, int], ...] = (),
    ) -> tuple[list[Path], list[tuple[str, str, int]]]:
        listing = self._listing(name, runs)
        samples = (
            key
            for path in runs
            for run in (Run.open(path),)
            for key in unpacked(run[f"{part}sample_bytes"], run[f"{part}sample_offsets"])
        )
        ranges = string_ranges(samples, self.job.task_mb * MB // BYTES_A_NAME)
        paths = [self.work / "runs" / f"{name}-{number:05d}" for number in range(len(ranges))]
        tasks = [
            StringsTask(listing, first, last, str(path), str(self.work), links or Links(), titles)
            for path, (first, last) in zip(paths, ranges, strict=True)
        ]
        self._merged(name, function, tasks, paths)
        parts: list[tuple[str, str, int]] = []
        for path, (first, _) in zip(paths, ranges, strict=True):
            file = path.with_name(path.name + ".marisa")
            shutil.copyfile(file, self.work / "kb" / file.name)
            parts.append((file.name, first.decode(), Run.open(path).said["rows"]))
        return paths, parts

    def _identifiers(self, ids_of: Sequence[str] | None) -> None:
        ids, out = mapped(self.work / "ids.npy"), self.work / "kb"
        if ids_of is None:
            shutil.copyfile(self.work / "ids.npy", out / "entity_numbers.npy")
        else:
            finish.write_strings(out, "entity_ids", [ids_of[number] for number in ids.tolist()])

    def _relation_labels(self, runs: Sequence[Path]) -> dict[str, str]:
        labels: dict[str, str] = {}
        for path in runs:
            for relation, label in Run.open(path).said["relation_labels"].items():
                labels.setdefault(relation, label)
        for relation, label in read_relations(self.job.relations) if self.job.relations else ():
            if labels.setdefault(relation, label) != label and not self.job.dump:
                raise UserError(
                    f"{self.job.relations}: relation {relation!r} has two labels, {labels[relation]!r} and {label!r}"
                )
        return {relation: label for relation, label in labels.items() if label}

    def _without_folder(self, damage: str) -> str:
        """The manifest is the same wherever the dump lies."""
        return damage.replace(self.job.dump, Path(self.job.dump).name)

    def _counted(self) -> str:
        return f" (counted: {', '.join(f'{key} {value:,}' for key, value in sorted(self.counts.items()))})"

    # -------------------------------------------------------------------------------------------- tasks

    def _listing(self, name: str, runs: Sequence[Path]) -> str:
        path = self.work / f"runs-{name}.txt"
        write_atomically(path, "".join(f"{run.absolute()}\n" for run in runs).encode())
        return str(path.absolute())

    def _merged(self, name: str, function: Callable[[Any], Any], tasks: Sequence[Any], paths: list[Path]) -> list[Path]:
        self._run(name, function, tasks)
        for path in paths:
            self.counts.update(Run.open(path).said.get("counts", {}))
        return paths

    def _run(self, name: str, function: Callable[[Any], Any], tasks: Sequence[Any]) -> None:
        todo = [task for task in tasks if read_index(Path(task.run)) is None]
        if len(todo) < len(tasks):
            print(f"build-kb: {name}: {len(tasks) - len(todo)} of {len(tasks)} were done before", flush=True)
        if todo:
            self._run_tasks(name, function, todo, len(todo))

    def _run_tasks(self, name: str, function: Callable[[Any], Any], tasks: Iterable[Any], count: int) -> None:
        failures: list[str] = []
        slots = self.slots.get(count)
        size = 0
        with StepProgress(f"build-kb: {name}", count) as progress:
            for finished in run_units(function, tasks, slots, self.job.ray.retries):
                if finished.error:
                    # of an error that the user can put right only its text
                    reason = finished.error.rpartition(f"{UserError.__module__}.{UserError.__name__}: ")[2].strip()
                    failures.append(f"{Path(finished.task.run).name}: {reason}")
                else:
                    size += finished.value.get("counts", {}).get("bytes of JSON", 0)
                    if isinstance(finished.task, ExtractTask) and finished.task.unit.source:
                        Path(finished.task.unit.path).unlink(missing_ok=True)
                text = f"{size / MB:,.0f} MB, {size / MB / progress.seconds:,.0f} MB/s" if size else ""
                progress.advance(text=text + (f", {len(failures)} failed" if failures else ""))
        if failures:
            listed = "\n".join(f"- {failure}" for failure in failures[:LISTED])
            raise UserError(
                f"{len(failures)} of the tasks of step {name!r} failed; the others are kept: run the same command "
                f"again once the cause is removed.\n{listed}"
            )
