"""Several corpora, token budgets, damage and remote shards: the stream stays the same documents, each once an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from erica_dist import settings
from erica_dist.config import DataConfig, ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import read_manifest, write_manifest
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.corpora import open_corpora
from erica_dist.stream.loader import ElectraStream, EricaStream, erica_validation
from tests.http_shards import ShardServer
from tests.synthetic import compile_indices, write_documents_folder, write_sequences_folder


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Path:
    return write_documents_folder(tmp_path_factory.mktemp("a") / "documents", documents=90, validation=9)


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    """Documents under the same keys, with the relations in another order in the manifest's table."""
    folder = write_documents_folder(tmp_path_factory.mktemp("b") / "documents", documents=40, validation=0, seed=5)
    manifest = read_manifest(folder)
    manifest["relations"] = [*manifest["relations"][1:], manifest["relations"][0]]
    write_manifest(folder, manifest)
    return folder


def erica_job(*words: str) -> EricaJob:
    base = ["model.max_length=64", "train.global_batch=16", "train.micro_batch=4", "train.steps=6", "data.workers=0"]
    return settings.load(EricaJob, None, [*base, *words])


def keys_of(batch) -> list[int]:
    """Keys of the RD documents of a step that have a pair."""
    return [key for micro in batch.micro_batches for key in dict.fromkeys(micro.pair_document_P.tolist())]


def flat(value) -> list:
    """All tensors and numbers of a batch, in order."""
    if isinstance(value, torch.Tensor):
        return [value.tolist()]
    if isinstance(value, int | float | str):
        return [value]
    if isinstance(value, list):
        return [item for part in value for item in flat(part)]
    return [item for part in vars(value).values() for item in flat(part)]


# ------------------------------------------------------------------------------------------------ mixtures


def test_every_corpus_of_a_mixture_runs_through_its_own_epochs(documents, others):
    corpora = open_corpora(DataConfig(mix={str(documents): 3.0, str(others): 1.0}), "train")
    assert len(corpora) == 130
    epochs, numbers = corpora.orders(7).at(np.arange(1600))
    first = numbers < 90
    assert first.sum() == 1200  # three quarters
    for own, size, start in ((first, 90, 0), (~first, 40, 90)):
        for epoch in range(own.sum() // size):
            assert sorted((numbers[own & (epochs == epoch)] - start).tolist()) == list(range(size))
        assert (np.diff(epochs[own]) >= 0).all()
    # evenly at every place: any 16 hold 12 and 4
    assert {int(first[i : i + 16].sum()) for i in range(0, 1584)} <= {11, 12, 13}


def test_a_mixture_numbers_relations_by_their_ids_and_keeps_documents_apart(documents, others):
    corpora = open_corpora(DataConfig(mix={str(documents): 1.0, str(others): 1.0}), "train")
    names = [relation["id"] for relation in corpora.relations]
    columns = corpora.read(np.arange(130))
    assert len(set(columns.arrays["document_key"].tolist())) == 130
    start = np.concatenate([[0], np.cumsum(columns.counts["relation_offsets"])])
    for number in range(130):
        folder = ShardFolder.open(documents if number < 90 else others)
        alone = folder.document(number if number < 90 else number - 90)
        own = columns.arrays["relations"][start[number] : start[number + 1]].tolist()
        assert [[h, t, names[r]] for h, t, r in own] == [
            [h, t, folder.relations[r]["id"]] for h, t, r in alone.relations.tolist()
        ]


def test_a_mixture_is_streamed_alike_at_any_shape(documents, others):
    words = [f"data.mix={{{documents}: 2, {others}: 1}}"]
    whole = EricaStream(open_corpora(erica_job(*words).data, "train"), erica_job(*words, "train.micro_batch=16"))
    parts = [
        iter(EricaStream(open_corpora(erica_job(*words).data, "train"), erica_job(*words), rank, 2)) for rank in (0, 1)
    ]
    seen = Counter()
    for expected in whole:
        mine = [next(part) for part in parts]
        found = sorted(key for part in mine for key in keys_of(part))
        assert found == sorted(keys_of(expected))
        seen.update(found)
    assert len(seen) > 30
    held_out = erica_validation(open_corpora(erica_job(*words).data, "validation"), erica_job(*words))
    assert sum(batch.documents for batch in held_out if batch) == 18  # the second corpus has none held out


def test_what_cannot_be_mixed_is_refused(documents, others, tmp_path):
    sequences = write_sequences_folder(tmp_path / "sequences")
    for data, message in (
        (DataConfig(), "give data.shards"),
        (DataConfig(shards=str(documents), mix={str(others): 1.0}), "not both"),
        (DataConfig(mix={str(documents): 1.0, str(sequences): 1.0}), "different tokenizers or are of different kinds"),
        (DataConfig(mix={str(documents): 1.0, str(others): -1.0}), "positive numbers"),
        (DataConfig(mix={str(documents): 1.0, str(others): 1e-9}), "leave that corpus out"),
        (DataConfig(shards=str(documents), window_shards=0), "window_shards=0 must be positive"),
        (DataConfig(mix={str(documents): 1.0, f"{documents}/": 1.0}), "name the same shards twice"),
        (DataConfig(shards="https://me:secret@host/shards"), r"^https://host/shards is given with a password"),
        (DataConfig(shards="https://host/shards?signature=1"), r"^https://host/shards is given with a password"),
    ):
        with pytest.raises(UserError, match=message):
            open_corpora(data, "train")
    renamed = write_documents_folder(tmp_path / "renamed", documents=8, validation=0)
    manifest = read_manifest(renamed)
    manifest["relations"][0]["name"] = "nation"
    write_manifest(renamed, manifest)
    with pytest.raises(UserError, match=r"P17 is called 'country' in one corpus of data\.mix and 'nation' in another"):
        open_corpora(DataConfig(mix={str(documents): 1.0, str(renamed): 1.0}), "train")


# ------------------------------------------------------------------------------------------------ token budget


@pytest.mark.parametrize(("ranks", "budget"), [(1, 64), (1, 300), (2, 130), (3, 100), (4, 5000)])
def test_under_a_budget_the_global_batches_are_the_same(documents, ranks, budget):
    folder = ShardFolder.open(documents)
    whole = EricaStream(folder, erica_job("train.micro_batch=16"))
    job = erica_job(f"train.micro_tokens={budget}")
    streams = [iter(EricaStream(folder, job, rank, ranks)) for rank in range(ranks)]
    for expected in whole:
        parts = [next(stream) for stream in streams]
        assert len({len(part.micro_batches) for part in parts}) == 1
        assert sorted(key for part in parts for key in keys_of(part)) == sorted(keys_of(expected))
        assert sum(part.tokens for part in parts) == expected.tokens
        assert sum(part.documents for part in parts) == 16
        tokens = [micro.tokens for part in parts for micro in part.micro_batches]
        # a document alone may be as long as max_length; more than one are within the budget
        assert max(tokens) <= max(budget, 64)
        queries = sum(len(micro.query_head_Q) for part in parts for micro in part.micro_batches)
        assert queries == sum(len(micro.query_head_Q) for micro in expected.micro_batches)


def test_a_budget_below_the_longest_document_is_refused(documents):
    with pytest.raises(UserError, match=r"train.micro_tokens=63 is below model.max_length=64"):
        EricaStream(ShardFolder.open(documents), erica_job("train.micro_tokens=63"))


# ------------------------------------------------------------------------------------------------ compiled index


def test_the_compiled_index_says_what_the_indices_say(tmp_path):
    folder = write_documents_folder(tmp_path, documents=90, validation=9)
    one_by_one = ShardFolder.open(folder)
    compile_indices(folder)
    for path in folder.glob("train-*.index.json"):
        path.unlink()  # it needs none of them
    compiled = ShardFolder.open(folder)
    assert isinstance(compiled.index.lengths, np.memmap)
    for name in ("lengths", "block_shard", "block_start", "offset_BC", "rows_BC"):
        assert getattr(compiled.index, name).tolist() == getattr(one_by_one.index, name).tolist(), name
    assert compiled.index.dtypes == one_by_one.index.dtypes
    for number in range(90):
        assert flat_view(compiled.document(number)) == flat_view(one_by_one.document(number))


def flat_view(view) -> list:
    return [np.asarray(getattr(view, name)).tolist() for name in view.__slots__]


def test_a_compiled_index_that_does_not_fit_is_refused(tmp_path):
    folder = write_documents_folder(tmp_path, documents=40, validation=9)
    compile_indices(folder)
    for name in ("train.lengths.npy", "train.blocks.npy"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-8])
        with pytest.raises(UserError, match=f"{name} has {len(data) - 8} bytes, the manifest says {len(data)}"):
            ShardFolder.open(folder)
        (folder / name).write_bytes(data)
    blocks = np.load(folder / "train.blocks.npy")
    blocks[0, 3] = 10**9
    np.save(folder / "train.blocks.npy", blocks)
    with pytest.raises(
        UserError, match=r"train.blocks.npy: column .* of block 0 of train-00000.tar lies outside the shard"
    ):
        ShardFolder.open(folder)
    blocks[0, 1] += 1
    np.save(folder / "train.blocks.npy", blocks)
    with pytest.raises(UserError, match="tells of 41 documents and 40 lengths, the manifest of 40"):
        ShardFolder.open(folder)


# ------------------------------------------------------------------------------------------------ damage


def damaged_folder(path: Path) -> tuple[Path, list[int]]:
    """A folder in which three documents are damaged; their numbers."""
    folder = write_documents_folder(path, documents=90, validation=9)
    index = ShardFolder.open(folder).index
    names = list(index.dtypes)
    shards = read_manifest(folder)["shards"]

    def overwrite(block: int, column: str, row: int, value: int) -> None:
        dtype = index.dtypes[column]
        with (folder / shards[int(index.block_shard[block])]["file"]).open("r+b") as file:
            file.seek(int(index.offset_BC[block, names.index(column)]) + row * dtype.itemsize)
            file.write(np.array([value], dtype).tobytes())

    overwrite(0, "mention_entity", 0, 99)  # the first document of block 0
    overwrite(1, "token_offsets", 3, -5)  # documents 2 and 3 of block 1 share this offset
    overwrite(4, "relations", 2, 77)  # the relation of the first triple of block 4
    return folder, [0, 16 + 2, 16 + 3, 64]


def test_a_damaged_document_stops_a_strict_stream_with_its_place(tmp_path):
    folder, _ = damaged_folder(tmp_path)
    with pytest.raises(UserError) as caught:
        list(EricaStream(ShardFolder.open(folder), erica_job()))
    assert "is damaged" in str(caught.value)
    assert "data.damaged=tolerant" in str(caught.value)
    texts = []
    for number in (0, 18, 19, 64):
        with pytest.raises(UserError) as caught:
            ShardFolder.open(folder).document(number)
        texts.append(str(caught.value).split(";")[0].removeprefix(f"{folder}/"))
    assert texts == [
        "train-00000.tar: document 0 of block 0 (key 0) is damaged: a mention belongs to no entity",
        "train-00000.tar: document 2 of block 1 (key 18) is damaged: its token_offsets do not fit the column",
        "train-00000.tar: document 3 of block 1 (key 19) is damaged: its token_offsets do not fit the column",
        "train-00002.tar: document 0 of block 0 (key 64) is damaged: a relation is not in the manifest's table",
    ]


@pytest.mark.parametrize(("ranks", "words"), [(1, ()), (2, ()), (4, ()), (2, ("train.micro_tokens=130",))])
def test_a_tolerant_stream_leaves_them_out_alike_at_any_shape(tmp_path, ranks, words):
    folder, bad = damaged_folder(tmp_path)
    whole = write_documents_folder(tmp_path / "whole", documents=90, validation=9)
    opened = ShardFolder.open(folder, tolerant=True)
    streams = [EricaStream(opened, erica_job(*words), rank, ranks) for rank in range(ranks)]
    expected = EricaStream(ShardFolder.open(whole), erica_job("train.micro_batch=16"))
    faults = Counter()
    for step, parts in enumerate(zip(*streams, strict=True)):
        assert len({len(part.micro_batches) for part in parts}) == 1
        _, numbers = expected._orders.at(np.arange(step * 16, step * 16 + 16))
        assert sum(part.documents for part in parts) == 16 - len(set(bad) & set(numbers.tolist()))
        assert sorted(key for part in parts for key in keys_of(part)) == sorted(
            key for key in keys_of(expected.step(step)) if key not in bad
        )
        faults.update(fault.split("(key ")[1].split(")")[0] for part in parts for fault in part.faults)
    assert faults == Counter({str(key): 1 for key in bad})  # six steps of 16 are one epoch and a bit


def test_a_shard_that_is_cut_off_or_gone_loses_what_is_not_there(tmp_path):
    folder = write_documents_folder(tmp_path, documents=90, validation=9)  # shards of 32, 32 and 26
    index = ShardFolder.open(folder).index
    cut = int(index.offset_BC[1].min())  # the second block of the first shard
    first = folder / "train-00000.tar"
    first.write_bytes(first.read_bytes()[:cut])
    (folder / "train-00001.tar").unlink()
    with pytest.raises(UserError, match=r"train-00000.tar has .* bytes, the manifest says .*: copy it again"):
        ShardFolder.open(folder)
    tolerant = ShardFolder.open(folder, tolerant=True)
    stream = EricaStream(tolerant, erica_job("train.global_batch=90", "train.micro_batch=90", "train.steps=1"))
    (batch,) = stream
    assert batch.documents == 90 - 16 - 32
    assert len(batch.faults) == 48
    assert sum("the shard ends before it (cut off)" in fault for fault in batch.faults) == 16
    assert sum("cannot read the shard: No such file or directory" in fault for fault in batch.faults) == 32


def test_a_micro_batch_may_lose_all_its_documents(tmp_path):
    folder = write_sequences_folder(tmp_path, sequences=40, validation=0)
    (folder / "train-00000.tar").unlink()
    job = settings.load(ElectraJob, None, ["train.global_batch=40", "train.micro_batch=1", "train.steps=1"])
    job.model.max_length, job.data.workers = 32, 0
    (batch,) = ElectraStream(ShardFolder.open(folder, tolerant=True), job)
    assert len(batch.micro_batches) == 40
    assert Counter(micro.documents for micro in batch.micro_batches) == {0: 32, 1: 8}
    empty = next(micro for micro in batch.micro_batches if micro.documents == 0)
    assert (empty.tokens, empty.packed.cu_seqlens.tolist(), empty.packed.input_ids_T.tolist()) == (0, [0, 2], [2, 3])


# ------------------------------------------------------------------------------------------------ remote


@pytest.fixture
def served(tmp_path):
    """A folder of six shards of two blocks behind HTTP, with compiled indices."""
    folder = write_documents_folder(tmp_path / "documents", documents=180, validation=9)
    compile_indices(folder)
    with ShardServer(folder) as server:
        yield folder, server


@pytest.mark.parametrize("workers", [0, 2])
def test_a_remote_folder_gives_the_local_stream(served, tmp_path, workers):
    folder, server = served
    words = [f"data.cache={tmp_path / 'cache'}", "data.cache_gb=0.1", f"data.workers={workers}", "train.steps=14"]
    server.faults["/train-00000.tar"].cuts = 1
    server.faults["/train-00000.tar"].cut_after = 20_000
    server.faults["/train-00003.tar"].unavailable = 1
    local = [flat(batch) for batch in EricaStream(ShardFolder.open(folder), erica_job("train.steps=14"))]
    data = erica_job(*words, f"data.shards={server.url}").data
    with EricaStream(open_corpora(data, "train"), erica_job(*words)) as stream:
        assert [flat(batch) for batch in stream] == local
    shards = [name for name in server.requests if name.endswith(".tar")]
    assert len(shards) == 6
    for name in shards:  # each once, whoever asked; what was cut off was gone on with
        size = (folder / name[1:]).stat().st_size
        assert size <= server.bytes_sent[name] < size + 70_000, name
    assert server.requests["/train-00000.index.json"] == 0
    assert not list((tmp_path / "cache").glob("*.part"))


def test_a_block_shuffle_streams_a_corpus_that_is_larger_than_the_cache(served, tmp_path):
    folder, server = served
    largest = max(shard["bytes"] for shard in read_manifest(folder)["shards"])
    cache = tmp_path / "cache"
    words = ["train.steps=24", f"data.cache={cache}", "data.shuffle=block", "data.window_shards=1"]
    limit = 3 * largest / 1e9
    data = erica_job(*words, f"data.shards={server.url}", f"data.cache_gb={limit}").data
    most = 0
    remote = []
    for batch in EricaStream(open_corpora(data, "train"), erica_job(*words)):
        remote.append(flat(batch))
        most = max(most, sum(path.stat().st_size for path in cache.glob("*.shard")))
    assert most <= 3 * largest + 10_000  # and the index
    corpora = open_corpora(erica_job(*words, f"data.shards={folder}").data, "train")
    assert [flat(batch) for batch in EricaStream(corpora, erica_job(*words))] == remote
    # 24 steps of 16 are 2.1 epochs, and each shard was fetched about once an epoch
    assert sum(server.requests[name] for name in server.requests if name.endswith(".tar")) <= 6 * 3 + 2

    for shuffle, need in (("full", "its shards take"), ("block", "two windows of 2 shards take")):
        small = erica_job(f"data.shards={server.url}", f"data.cache={cache}", f"data.cache_gb={limit}").data
        small.shuffle, small.window_shards = shuffle, 2
        with pytest.raises(UserError, match=f"is too small for .*{need}.*raise data.cache_gb"):
            open_corpora(small, "train")


def test_a_remote_shard_of_other_bytes_is_damage(served, tmp_path):
    _, server = served
    server.faults["/train-00002.tar"].corrupt = 100
    data = erica_job(f"data.shards={server.url}", f"data.cache={tmp_path / 'cache'}").data
    with pytest.raises(UserError, match=r"train-00002.tar is damaged or another file: its sha256 is .* upload"):
        list(EricaStream(open_corpora(data, "train"), erica_job("train.steps=12")))
    data.damaged = "tolerant"
    batches = list(EricaStream(open_corpora(data, "train"), erica_job("train.steps=12")))
    assert sum(len(batch.faults) for batch in batches) >= 32
    assert sum(batch.documents for batch in batches) == 12 * 16 - sum(len(batch.faults) for batch in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_copy_that_was_damaged_in_the_cache_is_fetched_anew(served, tmp_path, workers):
    folder, server = served
    words = [f"data.shards={server.url}", f"data.cache={tmp_path / 'cache'}", "train.steps=12"]
    data = erica_job(*words).data
    local = [flat(batch) for batch in EricaStream(ShardFolder.open(folder), erica_job("train.steps=12"))]
    assert [flat(batch) for batch in EricaStream(open_corpora(data, "train"), erica_job(*words))] == local
    record = read_manifest(folder)["shards"][1]
    copy = tmp_path / "cache" / f"{record['sha256']}.shard"
    copy.write_bytes(bytes(record["bytes"]))
    again = erica_job(*words, f"data.workers={workers}")
    with EricaStream(open_corpora(data, "train"), again) as stream:
        assert [flat(batch) for batch in stream] == local
    assert copy.read_bytes() == (folder / record["file"]).read_bytes()


def test_a_url_without_manifest_is_refused_at_once(tmp_path):
    with ShardServer(tmp_path) as server, pytest.raises(UserError, match=r"manifest.json: there is no such file"):
        open_corpora(DataConfig(shards=server.url, cache=str(tmp_path / "cache")), "train")
