"""Statistics of link use: exact counts, the same bytes whoever counts in whatever parts, resumed after any end."""

from __future__ import annotations

import bz2
import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import marisa_trie
import pytest

from data_tools.wikipedia import link_counts, ranges, sorted_counts
from data_tools.wikipedia.link_counts import count_links
from data_tools.wikipedia.link_units import find_surfaces
from data_tools.wikipedia.sorted_counts import MergeTask, is_storable, merge, write_counts
from erica_dist.config import LinkCountsJob, RayConfig
from erica_dist.errors import UserError
from erica_dist.settings import dump
from erica_dist.shards.manifest import read_manifest
from tests.corpora import folder_bytes
from tests.test_wikipedia_dump import HEAD, TAIL, page

PAGES = [
    page(1, "One", "The [[Old name|city]] is a city. [[Two]] and [[two|Two's]]. A (B) here, Twofold, x(Two)."),
    page(
        2, "Two", "[[One|city]], [[one|city]] and [[Loop a|city]]; see [[(B)]] in [[Old name|the  city]]. City limits."
    ),
    page(3, "Old name", "#REDIRECT [[Older]]", redirect="Older"),
    page(4, "Older", "#REDIRECT [[One]]", redirect="One"),
    page(5, "Loop a", "#REDIRECT [[Loop b]]", redirect="Loop b"),
    page(6, "Loop b", "#REDIRECT [[Loop a]]", redirect="Loop a"),
    page(7, "Talk:One", "[[Two|never]] city", namespace=1),
    page(8, "Three", "the city. The [[Zürich|Zürich]]er in Zürich, [[Zürich]]."),
    page(1, "One", "[[Two|again]] city city"),
    page(9, "Four", "Two words, ''the city'' and [[Two|Two]]."),
]
LINKS = """\
(B)	(B)	1
Two	Two	2
Two's	Two	1
Zürich	Zürich	1
Züricher	Zürich	1
city	One	3
the city	One	1
"""
SURFACES = """\
(B)	1	1
Two	2	2
Two's	1	0
Zürich	1	1
Züricher	1	0
city	3	1
the city	1	2
"""


def write(path: Path, pages: list[str] = PAGES) -> Path:
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in (HEAD, *pages, TAIL)))
    return path


def job(folder: Path, out: str = "counts", workers: int = 0) -> LinkCountsJob:
    path = folder / "d.xml.bz2"
    return LinkCountsJob(
        inputs=[str(path if path.exists() else write(path))],
        out=str(folder / out),
        ray=RayConfig(disabled=not workers, workers=workers),
    )


def test_links_and_unlinked_occurrences_are_counted(tmp_path: Path) -> None:
    manifest = count_links(job(tmp_path))
    # "city" of a link into a loop counts as unlinked: it leads nowhere
    assert (tmp_path / "counts" / "links.tsv").read_text() == LINKS
    assert (tmp_path / "counts" / "surfaces.tsv").read_text() == SURFACES.replace("city\t3\t1", "city\t3\t2")
    assert manifest["counts"]["links"] == {
        "surfaces": 7,
        "pairs of surface and target": 7,
        "occurrences linked": 10,
        "occurrences unlinked": 8,
    }
    assert manifest["counts"]["pages"]["pages repeated"] == 1
    assert read_manifest(tmp_path / "counts", "erica-dist/link-statistics") == manifest
    assert sorted(path.name for path in (tmp_path / "counts").iterdir()) == [
        "links.tsv",
        "manifest.json",
        "surfaces.tsv",
    ]


@pytest.mark.parametrize("range_bytes", [1, 400])
@pytest.mark.parametrize("pages_per_task", [1, 3])
def test_the_parts_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int, pages_per_task: int
) -> None:
    count_links(job(tmp_path))
    monkeypatch.setattr(ranges, "RANGE_BYTES", {"bz2": range_bytes})
    monkeypatch.setattr(link_counts, "PAGES_PER_TASK", pages_per_task)
    for module in (sorted_counts, link_counts):
        monkeypatch.setattr(module, "FAN_IN", 2)
    count_links(job(tmp_path, "other"))
    assert folder_bytes(tmp_path / "other") == folder_bytes(tmp_path / "counts")


@pytest.mark.ray
def test_workers_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_links(job(tmp_path))
    monkeypatch.setattr(ranges, "RANGE_BYTES", {"bz2": 300})
    count_links(job(tmp_path, "two", workers=2))
    assert folder_bytes(tmp_path / "two") == folder_bytes(tmp_path / "counts")


@pytest.mark.ray
def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    names = [f"Name {number}" for number in range(400)]
    texts = [" and ".join(f"[[{names[(n * m) % 400]}|word {m}]]" for m in range(1, 300)) for n in range(400)]
    write(tmp_path / "d.xml.bz2", [page(n + 1, names[n], f"{text} word 7.") for n, text in enumerate(texts)])
    count_links(job(tmp_path))
    settings = tmp_path / "job.yaml"
    settings.write_text(dump(job(tmp_path, "killed", workers=2)))
    command = [sys.executable, "-m", "erica_dist.cli", "count-links", "--config", str(settings)]
    units = tmp_path / "killed" / ".build" / "units"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(units.glob("*.json")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert 0 < len(list(units.glob("*.json"))) < 8
    assert not (tmp_path / "killed" / "manifest.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert folder_bytes(tmp_path / "killed") == folder_bytes(tmp_path / "counts")


def test_a_run_that_ended_anywhere_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(link_counts, "PAGES_PER_TASK", 2)
    monkeypatch.setattr(link_counts, "FAN_IN", 2)
    count_links(job(tmp_path))
    done: Counter[str] = Counter()

    def once_each(name: str, allowed: int):  # type: ignore[no-untyped-def]
        real = getattr(link_counts, name)

        def limited(task: object) -> object:
            if done[name] == allowed:
                done[name] = -1000
                raise KeyboardInterrupt
            done[name] += 1
            return real(task)

        return limited

    for name in ("count_links_of", "merge", "count_unlinked"):
        with monkeypatch.context() as patch:
            patch.setattr(link_counts, name, once_each(name, 2))
            with pytest.raises(KeyboardInterrupt):
                count_links(job(tmp_path, "resumed"))
            assert not (tmp_path / "resumed" / "manifest.json").exists()
    units = tmp_path / "resumed" / ".build" / "units"
    stamps = {path: path.stat().st_mtime_ns for path in units.iterdir()}
    monkeypatch.setattr(link_counts.shutil, "rmtree", lambda *_, **__: None)
    count_links(job(tmp_path, "resumed"))
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    for name in ("links.tsv", "surfaces.tsv", "manifest.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "counts" / name).read_bytes()
    capsys.readouterr()
    count_links(job(tmp_path))
    assert "nothing to do" in capsys.readouterr().out


def test_refusals_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs --input"):
        count_links(LinkCountsJob(out=str(tmp_path / "x")))
    plain = tmp_path / "p.jsonl"
    plain.write_text('{"title": "a", "text": "b"}\n')
    other = dataclasses.replace(job(tmp_path), inputs=[str(plain)], out=str(tmp_path / "none"))
    with pytest.raises(UserError, match="holds no link; give a dump"):
        count_links(other)
    count_links(job(tmp_path))
    with pytest.raises(UserError, match="other inputs"):
        count_links(dataclasses.replace(other, out=str(tmp_path / "counts")))
    (tmp_path / "counts" / "links.tsv").write_text("x")
    with pytest.raises(UserError, match=r"links\.tsv is lost or changed"):
        count_links(job(tmp_path))


def test_an_incomplete_dump_is_marked(tmp_path: Path) -> None:
    one = job(tmp_path)
    path = Path(one.inputs[0])
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(UserError, match=r"--allow-incomplete"):
        count_links(one)
    manifest = count_links(dataclasses.replace(one, allow_incomplete=True))
    assert [entry["file"] for entry in manifest["incomplete"]] == ["d.xml.bz2"]


# ------------------------------------------------------------------------------------------------ parts


def expected(text: str, surfaces: set[str]) -> list[str]:
    """By definition: at each place from left to right the longest surface between word borders."""

    def border(place: int) -> bool:
        return place in (0, len(text)) or not (text[place - 1].isalnum() and text[place].isalnum())

    found, start = [], 0
    while start < len(text):
        fits = [s for s in surfaces if text.startswith(s, start) and border(start) and border(start + len(s))]
        if fits:
            found.append(max(fits, key=len))
            start += len(found[-1])
        else:
            start += 1
    return found


def test_surfaces_are_found_leftmost_longest_between_word_borders() -> None:
    draw = random.Random(7)
    for _ in range(300):
        surfaces = {"".join(draw.choices("ab (é_.", k=draw.randint(1, 4))).strip() for _ in range(8)} - {""}
        opening = "".join(sorted({surface[0] for surface in surfaces if not surface[0].isalnum()}))
        text = "".join(draw.choices("aab  (é_.", k=60))
        assert find_surfaces(text, marisa_trie.Trie(surfaces), opening) == expected(text, surfaces)
    trie = marisa_trie.Trie(["a b", "b"])
    assert find_surfaces("a\ufffcb a\nb a b", trie, "") == ["b", "b", "a b"]


def test_merged_counts_are_sums_in_the_order_of_bytes(tmp_path: Path) -> None:
    draw = random.Random(3)
    total: Counter[tuple[str, ...]] = Counter()
    paths = []
    for number in range(7):
        counts = Counter(
            {
                (
                    "".join(draw.choices("ab é", k=2)).strip() or "x",
                    "".join(draw.choices("aZé ", k=2)).strip() or "y",
                ): n
                for n in range(1, 40)
            }
        )
        total.update(counts)
        paths.append(tmp_path / f"{number}.links")
        write_counts(paths[-1], counts)
    assert merge(MergeTask(tuple(map(str, paths)), str(tmp_path / "all"))) == len(total)
    lines = (tmp_path / "all").read_bytes().splitlines()
    rows = sorted(([text.encode() for text in texts], count) for texts, count in total.items())
    assert lines == [b"\t".join([*texts, str(count).encode()]) for texts, count in rows]
    assert [is_storable(text) for text in ("a b", "", "a\tb", "a\nb", "\x01", "é")] == [True] + [False] * 4 + [True]


def test_the_command_is_there(tmp_path: Path) -> None:
    from erica_dist.cli import main

    path = write(tmp_path / "d.xml.bz2")
    assert main(["count-links", "--input", str(path), "--out", str(tmp_path / "c"), "ray.disabled=true"]) == 0
    assert json.loads((tmp_path / "c" / "manifest.json").read_text())["complete"] is True
    assert main(["config", "count-links"]) == 0
