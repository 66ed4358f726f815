"""What `stream.py` compares with and how it measures: webdataset, a torch DataLoader over it, MDS; time and memory.

MDS (mosaicml-streaming) wants other versions of its dependencies than ours, so it gets a throw-away environment in the
work folder, which borrows torch from ours, and this file is run there as a program:

    python benchmarks/stream_peers.py make COLUMNS.npz FOLDER     documents as columns -> MDS, one document a sample
    python benchmarks/stream_peers.py read FOLDER PASSES          reads them; figures as JSON

Of mosaicml-streaming only `streaming.base` is imported: its image data sets need a torchvision that fits torch. Nothing
here imports erica_dist.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch.utils.data import DataLoader

# what streaming.base imports and our environment does not hold in a fitting version
MDS_PACKAGES = (
    *("mosaicml-streaming==0.13.0", "numpy>=2.1,<2.2", "xxhash>=3,<4", "zstd>=1.5.2.5,<2"),
    *("python-snappy>=0.6.1,<1", "cramjam<3", "Brotli>=1.0.9,<2"),
)
BATCH = 16


def cpu_seconds() -> float:
    """Of this process, all its threads, and its ended children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def rates(ways: dict[str, Callable[[], int]], passes: int) -> dict[str, float]:
    """Documents a CPU second of each way, medians of `passes` after one that warms up.

    Each pass goes through all ways, so that what else the machine does falls on all of them.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(passes + 1):
        for name, function in ways.items():
            began = cpu_seconds()
            documents = function()
            found[name].append(documents / (cpu_seconds() - began))
    return {name: statistics.median(of_way[1:]) for name, of_way in found.items()}


def memory(folder: Path) -> dict[str, float]:
    """MB of this process: resident, its peak, private, and pages of files in the folder."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found: dict[str, float] = {name: int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon")}
    found["mapped"], inside = 0.0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split(" ", 1)[0].endswith(":"):
            inside = str(folder) in line
        elif inside and line.startswith("Rss:"):
            found["mapped"] += int(line.split()[1]) / 1024
    return found


# ------------------------------------------------------------------------------------------------ webdataset


def tars(folder: Path, pattern: str) -> list[str]:
    return sorted(str(path) for path in folder.glob(pattern))


def samples(files: list[str]) -> Any:
    """One document a sample, JSON decoded: the yardstick."""
    return webdataset.WebDataset(files, shardshuffle=False).decode()


def with_webdataset(files: list[str]) -> int:
    return sum(len(sample["json"]["text"]) > 0 for sample in samples(files))


def with_loader(files: list[str], workers: int) -> int:
    loader = DataLoader(samples(files), batch_size=BATCH, num_workers=workers, collate_fn=list)
    return sum(len(sample["json"]["text"]) > 0 for batch in loader for sample in batch)


def our_blocks_with_webdataset(files: list[str]) -> int:
    """Our shards as any user of webdataset reads them: a sample is a block of documents, its members are arrays."""
    return sum(len(sample["document_key.npy"]) for sample in samples(files))


# ------------------------------------------------------------------------------------------------ MDS


def mds(folder: Path, environment: Path, columns: Path, passes: int) -> tuple[dict[str, Any], str]:
    """Figures of MDS over the documents in `columns`; or an empty dict, and the reason why there are none."""
    python = environment / "bin" / "python"
    try:
        if not (environment / "installed").is_file():
            install(environment)
        if not (folder / "index.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            run([str(python), "-W", "ignore", __file__, "make", str(columns), str(folder)])
        found = json.loads(run([str(python), "-W", "ignore", __file__, "read", str(folder), str(passes)]))
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        return {}, lines[-1] if lines else str(error)
    assert isinstance(found, dict)
    return found, ""


def install(folder: Path) -> None:
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    inner = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (inner / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    run([*pip, *MDS_PACKAGES])
    (folder / "installed").touch()


def run(words: list[str]) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def streaming_base() -> Any:
    """`streaming.base` without what `streaming` itself imports."""
    found = importlib.util.find_spec("streaming")
    assert found is not None
    assert found.submodule_search_locations is not None
    package = types.ModuleType("streaming")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["streaming"] = package
    return importlib.import_module("streaming.base")


def documents_of(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """The arrays of each document; `path` holds the rows of all documents by column, and `<column>:counts`."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    names = [name for name in arrays if f"{name}:counts" in arrays]
    ends = {name: np.cumsum(arrays[f"{name}:counts"]) for name in names}
    for i in range(len(arrays["document_key"])):
        document = {"document_key": arrays["document_key"][i : i + 1]}
        for name in names:
            document[name] = arrays[name][ends[name][i] - arrays[f"{name}:counts"][i] : ends[name][i]]
        yield document


def make_mds(columns: Path, folder: Path) -> None:
    documents = list(documents_of(columns))
    # MDS stores no empty array: a column that may be empty travels as bytes
    empty = {name for document in documents for name, array in document.items() if not array.size}
    kinds = {name: "bytes" if name in empty else f"ndarray:{array.dtype.name}" for name, array in documents[0].items()}
    with streaming_base().MDSWriter(out=str(folder), columns=kinds) as writer:
        for document in documents:
            writer.write({name: array.tobytes() if name in empty else array for name, array in document.items()})


def read_mds(folder: Path, passes: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    base = streaming_base()
    plain = base.LocalDataset(str(folder))
    shuffled = base.StreamingDataset(
        local=str(folder), shuffle=True, shuffle_seed=42, batch_size=BATCH, num_canonical_nodes=1
    )
    ways: dict[str, Callable[[], int]] = {
        "MDS, LocalDataset, by number": lambda: sum(len(plain[i]["tokens"]) > 0 for i in range(len(plain))),
        "MDS, StreamingDataset, its own shuffle": lambda: sum(len(sample["tokens"]) > 0 for sample in shuffled),
    }
    return {
        "versions": f"mosaicml-streaming 0.13.0, numpy {np.__version__}, torch {torch.__version__}",
        "documents": len(plain),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "rates": rates(ways, passes),
    }


def main() -> None:
    command, *words = sys.argv[1:]
    if command == "make":
        make_mds(Path(words[0]), Path(words[1]))
    else:
        print(json.dumps(read_mds(Path(words[0]), int(words[1]))))


if __name__ == "__main__":
    main()


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def bar(text: str, met: bool) -> str:
    return f"{text}: {verdict(met)}"


def load() -> str:
    return "load " + " ".join(f"{value:.1f}" for value in os.getloadavg())
