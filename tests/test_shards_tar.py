"""Deterministic tars, corpus shards and manifests."""

from __future__ import annotations

import io
import json
import resource
import tarfile

import pytest

from erica_dist.cli import main
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents, write_documents
from erica_dist.shards.manifest import CORPUS, TRAINING_SHARDS, fingerprint, read_manifest, write_manifest
from erica_dist.shards.tarfiles import BLOCK, TarShardWriter, read_members, sha256_file
from erica_dist.shards.verify import verify

SAMPLES = [(7, {"title": "Zürich", "text": "a"}), (12, {"title": "Ōsaka", "text": "b" * 600})]


def test_tar_is_plain_ustar_with_fixed_owner_time_and_mode(tmp_path):
    with TarShardWriter(tmp_path / "a.tar") as tar:
        start = tar.write("1.json", b"x" * 700)
        assert tar.write("2.json", b"") == start + 1024 + BLOCK
    assert (tar.bytes_written, tar.sha256) == ((tmp_path / "a.tar").stat().st_size, sha256_file(tmp_path / "a.tar"))
    assert (tmp_path / "a.tar").read_bytes()[start : start + 700] == b"x" * 700
    with tarfile.open(tmp_path / "a.tar") as opened:
        for info in opened:
            assert (info.uid, info.gid, info.uname, info.gname, info.mtime, info.mode) == (0, 0, "", "", 0, 0o644)
    assert list(read_members(tmp_path / "a.tar")) == [("1.json", b"x" * 700), ("2.json", b"")]


def test_a_failing_writer_leaves_nothing(tmp_path):
    def samples():
        yield SAMPLES[0]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_documents(tmp_path / "documents-00000.tar", samples())
    assert list(tmp_path.iterdir()) == []


def test_a_writer_without_room_says_so_and_leaves_nothing(tmp_path):
    """The limit on the size of files stands for a full disk: what is left in the buffer cannot be written either."""
    samples = [(number, {"title": "a", "text": "b" * 3000}) for number in range(200)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*documents-00000\.tar: .*; is the disk full\?"):
            write_documents(tmp_path / "documents-00000.tar", samples)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_writer_leaves_the_former_file(tmp_path):
    path = tmp_path / "documents-00000.tar"
    record = write_documents(path, SAMPLES)
    with pytest.raises(ValueError, match="no samples"):
        write_documents(path, [])
    assert sha256_file(path) == record["sha256"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/b", ".hidden", ""])
def test_no_member_name_leads_elsewhere(tmp_path, name):
    with pytest.raises(ValueError, match="no plain member name"), TarShardWriter(tmp_path / "a.tar") as tar:
        tar.write(name, b"")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        TarShardWriter(tmp_path / "nowhere" / "a.tar")


def test_documents_come_back_and_bytes_repeat(tmp_path):
    first = write_documents(tmp_path / "documents-00000.tar", SAMPLES)
    second = write_documents(tmp_path / "again.tar", iter(SAMPLES))
    assert list(read_documents(tmp_path / "documents-00000.tar")) == SAMPLES
    assert first == {
        "file": "documents-00000.tar",
        "kind": "documents",
        "samples": 2,
        "bytes": (tmp_path / "again.tar").stat().st_size,
        "sha256": second["sha256"],
    }
    with tarfile.open(tmp_path / "again.tar") as tar:
        assert tar.getnames() == ["000000000007.json", "000000000012.json"]


@pytest.mark.parametrize(("keys", "message"), [([1, 1], "twice"), ([-1], "range"), ([10**12], "range")])
def test_bad_keys_are_refused(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        write_documents(tmp_path / "a.tar", [(key, {}) for key in keys])


@pytest.mark.parametrize("size", [0, 1, 511, 512, 1024, 1536, 2047, 2048, 3071, 3583])
def test_a_tar_cut_anywhere_is_noticed(tmp_path, size):
    path = tmp_path / "documents-00000.tar"
    write_documents(path, SAMPLES)
    assert path.stat().st_size == 3584
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=r"documents-00000.tar is cut off"):
        list(read_documents(path))


def test_a_damaged_header_does_not_pass_as_the_end(tmp_path):
    path = tmp_path / "documents-00000.tar"
    write_documents(path, SAMPLES)
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1  # in the name of the second member
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"documents-00000.tar is damaged"):
        list(read_documents(path))


def test_members_that_are_no_documents_are_named(tmp_path):
    for name, data, message in (
        ("1.json", b"{", "no valid JSON"),
        ("1.json", b"[]", "must be a JSON object"),
        ("name.json", b"{}", "not <digits>.json"),
    ):
        with TarShardWriter(tmp_path / "a.tar") as tar:
            tar.write(name, data)
        with pytest.raises(UserError, match=message):
            list(read_documents(tmp_path / "a.tar"))
    with tarfile.open(tmp_path / "link.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        link = tarfile.TarInfo("1.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link, io.BytesIO())
    with pytest.raises(UserError, match="no plain file"):
        list(read_members(tmp_path / "link.tar"))


# ------------------------------------------------------------------------------------------------ manifests


def test_manifest_round_trip_and_refusals(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*missing.*erica-dist build-corpus"):
        read_manifest(tmp_path / "missing", CORPUS)
    with pytest.raises(UserError, match=r"holds no manifest.json.*erica-dist tokenize"):
        read_manifest(tmp_path, TRAINING_SHARDS)
    manifest = {"format": CORPUS, "version": 1, "complete": True, "name": "Ōsaka"}
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path, CORPUS) == manifest
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
    with pytest.raises(UserError, match="wanted is 'erica-dist/training-shards'; run `erica-dist tokenize`"):
        read_manifest(tmp_path, TRAINING_SHARDS)
    for change, message in (({"complete": False}, "incomplete"), ({"version": 2}, "version 2")):
        write_manifest(tmp_path, manifest | change)
        with pytest.raises(UserError, match=message):
            read_manifest(tmp_path, CORPUS)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read_manifest(tmp_path, CORPUS)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(UserError, match="no manifest of this program"):
        read_manifest(tmp_path)


def test_fingerprint_does_not_depend_on_the_order_of_keys():
    assert fingerprint({"b": 1, "a": [1, 2]}) == fingerprint({"a": [1, 2], "b": 1})
    assert fingerprint({"a": [2, 1]}) != fingerprint({"a": [1, 2]})


# ------------------------------------------------------------------------------------------------ verify a corpus

DOCUMENT = {
    "title": "Bern",
    "page_id": 3,
    "chunk": 0,
    "text": "Bern is the seat of Switzerland.",
    "entities": [
        {"id": "Q70", "name": "Bern", "type": "GPE", "mentions": [[0, 4, "name"]]},
        {"id": "Q39", "name": "Switzerland", "type": None, "mentions": [[20, 31, "link"]]},
    ],
    "relations": [[0, 1, "P17"], [1, 0, "P36"]],
}


def corpus(folder, document, relations=("P17", "P36")):
    folder.mkdir(exist_ok=True)
    shards = [
        write_documents(folder / "documents-00000.tar", [(5, document)]),
        write_documents(folder / "text-00000.tar", [(5, {"title": "B", "page_id": 3, "paragraphs": ["x"]})], "text"),
    ]
    manifest = {"format": CORPUS, "version": 1, "complete": True, "shards": shards, "documents": 1, "text_pages": 1}
    write_manifest(folder, manifest | {"relations": [{"id": number, "name": number} for number in relations]})
    return folder


def test_verify_counts_a_whole_corpus(tmp_path, capsys):
    counts = verify(corpus(tmp_path, DOCUMENT))
    assert counts == {"shards": 2, "documents": 1, "text_pages": 1, "entities": 2, "mentions": 2, "relations": 2}
    assert "is whole: 2 shards, 1 documents" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("entities", 0, "mentions"), [[0, 40, "name"]], "outside the text"),
        (("entities", 0, "mentions"), [[4, 4, "name"]], "empty"),
        (("entities", 0, "mentions"), [[19, 22, "name"]], "overlaps"),
        (("entities", 0, "mentions"), [[8, 11, "ner"], [0, 4, "name"]], "not sorted"),
        (("entities", 0, "mentions"), [], "no mention"),
        (("relations",), [[0, 2, "P17"]], "not between two entities"),
        (("relations",), [[0, 0, "P17"]], "not between two entities"),
        (("relations",), [[1, 0, "P36"], [0, 1, "P17"]], "not sorted and unique"),
        (("relations",), [[0, 1, "P99"]], "P99 is not in the manifest"),
        (("text",), None, "wrong kind"),
    ],
)
def test_verify_names_the_damaged_document(tmp_path, path, value, message):
    document = json.loads(json.dumps(DOCUMENT))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(UserError, match=f"documents-00000.tar: document 000000000005: .*{message}"):
        verify(corpus(tmp_path, document))


def test_verify_names_every_damaged_file_of_a_corpus(tmp_path, capsys, monkeypatch):
    folder = corpus(tmp_path / "corpus", DOCUMENT | {"relations": [[0, 0, "P17"]]})
    flip(folder / "text-00000.tar")
    assert main(["verify", str(folder)]) == 2
    first, document, text = capsys.readouterr().err.splitlines()
    assert first == f"erica-dist verify: error: {folder}: 2 files are damaged:"
    assert document.startswith(f"  {folder}/documents-00000.tar: document 000000000005: relation [0, 0, P17] is not")
    assert text.startswith(f"  {folder}/text-00000.tar is damaged: its sha256 is")
    monkeypatch.setattr("erica_dist.shards.verify.SHOWN", 1)
    with pytest.raises(UserError) as caught:
        verify(folder)
    assert str(caught.value).splitlines()[2:] == ["  ... and 1 more"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_verify_compares_hashes_and_counts(tmp_path):
    corpus(tmp_path, DOCUMENT)
    manifest = read_manifest(tmp_path)
    write_manifest(tmp_path, manifest | {"documents": 2})
    with pytest.raises(UserError, match="holds 1 documents, the manifest says 2"):
        verify(tmp_path)
    write_manifest(tmp_path, manifest)
    data = bytearray((tmp_path / "text-00000.tar").read_bytes())
    data[520] ^= 1
    (tmp_path / "text-00000.tar").write_bytes(data)
    with pytest.raises(UserError, match=r"text-00000.tar is damaged: its sha256"):
        verify(tmp_path)
    (tmp_path / "text-00000.tar").unlink()
    with pytest.raises(UserError, match=r"cannot read .*text-00000.tar"):
        verify(tmp_path)
