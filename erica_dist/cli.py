"""The `erica-dist` command: each subcommand parses its words and calls one function elsewhere, imported only then.

Jobs with many settings take `--config FILE.yaml` and dotted overrides (`filters.min_tokens=64`); the flags below are
shorthands for the settings that nearly everyone gives.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from erica_dist.errors import UserError
from erica_dist.offline import stay_offline

# flags of every command that runs on Ray -> their settings
RAY_FLAGS = {"ray_address": "ray.address", "workers": "ray.workers", "no_ray": "ray.disabled"}


def _job(job_type: type, args: argparse.Namespace, flags: Sequence[str]) -> Any:
    """The job from --config, the shorthands in `flags` that were given, then the overrides."""
    import yaml

    from erica_dist import settings

    names = {flag: flag for flag in flags} | RAY_FLAGS
    given = {names[flag]: value for flag, value in vars(args).items() if flag in names and value is not None}
    overrides = [f"{flag}={yaml.safe_dump(value, default_flow_style=True)}" for flag, value in given.items()]
    return settings.load(job_type, args.config, [*overrides, *args.overrides])


def sample(args: argparse.Namespace) -> None:
    from data_tools.sample import lay_out

    lay_out(args.out)


def build_kb(args: argparse.Namespace) -> None:
    from data_tools.wikidata.builder import build_kb
    from erica_dist.config import KnowledgeBaseJob

    if args.link_counts is not None:
        args.overrides = [f"links.counts={args.link_counts}", *args.overrides]
    build_kb(_job(KnowledgeBaseJob, args, ["dump", "entities", "triples", "relations", "out", "allow_incomplete"]))


def build_corpus(args: argparse.Namespace) -> None:
    from data_tools.build import build_corpus
    from erica_dist.config import CorpusJob

    flags = ["inputs", "kb", "tokenizer", "out", "allow_incomplete", "max_failed_share", "resume"]
    build_corpus(_job(CorpusJob, args, flags))


def count_links(args: argparse.Namespace) -> None:
    from data_tools.wikipedia.link_counts import count_links
    from erica_dist.config import LinkCountsJob

    count_links(_job(LinkCountsJob, args, ["inputs", "out", "allow_incomplete"]))


def tokenize(args: argparse.Namespace) -> None:
    from data_tools.tokenization import tokenize
    from erica_dist.config import TokenizeJob

    tokenize(_job(TokenizeJob, args, ["corpus", "tokenizer", "out", "kind"]))


def convert(args: argparse.Namespace) -> None:
    from data_tools.convert import convert
    from erica_dist.config import ConvertJob

    convert(_job(ConvertJob, args, ["inputs", "tokenizer", "out", "relations", "corpus_out", "kind", "tolerant"]))


def audit(args: argparse.Namespace) -> None:
    from data_tools.audit import audit

    audit(args.corpus, args.out, args.documents, args.seed)


def verify(args: argparse.Namespace) -> None:
    from erica_dist.shards.verify import verify

    verify(args.folder)


def export(args: argparse.Namespace) -> None:
    from erica_dist.export import export_run

    export_run(args.run, args.out)


def compare(args: argparse.Namespace) -> None:
    from erica_dist.tracking.comparison import compare

    compare(args.uri, args.experiment, args.out, runs=args.runs)


def track(args: argparse.Namespace) -> None:
    from erica_dist.tracking.mlflow_sink import resend

    resend(args.run)


def show_config(args: argparse.Namespace) -> None:
    from erica_dist import config, settings

    jobs = {
        "erica": config.EricaJob,
        "electra": config.ElectraJob,
        "finetune": config.FinetuneJob,
        "build-kb": config.KnowledgeBaseJob,
        "build-corpus": config.CorpusJob,
        "count-links": config.LinkCountsJob,
        "tokenize": config.TokenizeJob,
        "convert": config.ConvertJob,
    }
    print(settings.dump(settings.load(jobs[args.job], args.config, args.overrides)), end="")


def quickstart(args: argparse.Namespace) -> None:
    from erica_dist.quickstart import quickstart

    quickstart(args.cache, args.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="erica-dist", description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(function=function)
        return sub

    def job_arguments(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--config", metavar="FILE.yaml", help="settings; `erica-dist config` prints all with defaults")
        sub.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings laid over the file")

    def job_command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = command(name, function, text)
        job_arguments(sub)
        return sub

    sub = command("sample", sample, "lay out a real sample: pages, knowledge base, encoder (from the package index)")
    sub.add_argument("out", help="folder, outside the repository")

    def ray_command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = job_command(name, function, text)
        sub.add_argument("--workers", type=int, metavar="N", help="tasks at a time on a local Ray; default: one a core")
        sub.add_argument("--ray-address", metavar="HOST:PORT", help="run on this cluster; default: a local Ray")
        sub.add_argument("--no-ray", action="store_true", default=None, help="run in this process, for debugging")
        return sub

    sub = ray_command("build-kb", build_kb, "Wikidata dump, or tables -> knowledge base, a memory-mapped folder")
    sub.add_argument("--dump", metavar="FILE", help="Wikidata JSON dump, plain or .gz, .bz2, .zst")
    for flag in ("entities", "triples", "relations"):
        sub.add_argument(f"--{flag}", metavar="FILE.tsv")
    sub.add_argument("--out", metavar="FOLDER")
    sub.add_argument("--link-counts", metavar="FOLDER", help="of `count-links`: priors by how often names are linked")
    sub.add_argument("--allow-incomplete", action="store_true", default=None, help="go on with a damaged dump")

    def page_arguments(sub: argparse.ArgumentParser) -> None:
        text = "dump, JSON lines, or WikiExtractor's file or folder; repeatable"
        sub.add_argument("--input", dest="inputs", action="append", metavar="FILE", help=text)
        text = "go on with what could be read of a damaged or cut-off input"
        sub.add_argument("--allow-incomplete", action="store_true", default=None, help=text)

    sub = ray_command("count-links", count_links, "pages -> how often names are linked to what, and unlinked, on Ray")
    page_arguments(sub)
    sub.add_argument("--out", metavar="FOLDER")

    sub = ray_command("build-corpus", build_corpus, "pages and knowledge base -> document shards, on Ray")
    page_arguments(sub)
    for flag in ("kb", "tokenizer", "out"):
        sub.add_argument(f"--{flag}", metavar="FOLDER")
    text = "share of the units that may fail for good: the corpus is made without them, and says so"
    sub.add_argument("--max-failed-share", type=float, metavar="SHARE", help=text)
    text = "go on with what is finished (the default), or build everything anew"
    sub.add_argument("--resume", action=argparse.BooleanOptionalAction, default=None, help=text)

    sub = ray_command("tokenize", tokenize, "document shards -> training shards, on Ray")
    for flag in ("corpus", "tokenizer", "out"):
        sub.add_argument(f"--{flag}", metavar="FOLDER")
    sub.add_argument("--kind", choices=["documents", "sequences"], help="documents: ERICA; sequences: ELECTRA")

    text = "documents of other tools (WebDataset, DocRED's JSON) -> training shards, on Ray"
    sub = ray_command("convert", convert, text)
    text = "tar of one document a sample, JSON list or lines, plain or packed, or a folder of them; repeatable"
    sub.add_argument("--input", dest="inputs", action="append", metavar="PLACE", help=text)
    for flag in ("tokenizer", "out"):
        sub.add_argument(f"--{flag}", metavar="FOLDER")
    text = "names of the relations: .json {id: name}, or .tsv; default: their ids"
    sub.add_argument("--relations", metavar="FILE", help=text)
    sub.add_argument("--corpus-out", metavar="FOLDER", help="keep the corpus between; default: removed at the end")
    sub.add_argument("--kind", choices=["documents", "sequences"], help="documents: ERICA; sequences: ELECTRA")
    text = "leave out and count what is wrong in the inputs, in place of refusing it"
    sub.add_argument("--tolerant", action="store_true", default=None, help=text)

    sub = command("audit", audit, "what a corpus holds and what was dropped: an HTML page with pictures and documents")
    sub.add_argument("corpus", metavar="CORPUS", help="folder of `build-corpus`")
    sub.add_argument("--out", default="audit.html", metavar="FILE.html", help="default: audit.html")
    sub.add_argument("--documents", type=int, default=30, metavar="N", help="how many are drawn and shown; default: 30")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of the drawing; default: 0")

    sub = command("verify", verify, "check a shard folder: hashes, index, every document")
    sub.add_argument("folder")

    sub = command("export", export, "a run's newest checkpoint -> Hugging Face folder(s)")
    sub.add_argument("run", metavar="RUN_DIR")
    sub.add_argument("out", metavar="FOLDER")

    sub = command("compare", compare, "compare runs in MLflow: table, HTML page, curves")
    sub.add_argument("--uri", required=True, help="MLflow tracking URI, such as sqlite:////runs/mlflow.db")
    sub.add_argument("--experiment", default="erica-dist")
    sub.add_argument("--out", required=True, metavar="FOLDER", help="where index.html and the PNG curves go")
    sub.add_argument("runs", nargs="*", help="run names or ids; none: all of the experiment")

    sub = command("track", track, "send to MLflow what a run recorded while the server was away")
    sub.add_argument("run", metavar="RUN_DIR")

    sub = command("config", show_config, "print a job's settings, resolved")
    sub.add_argument(
        "job",
        choices=["erica", "electra", "finetune", "build-kb", "count-links", "build-corpus", "tokenize", "convert"],
    )
    job_arguments(sub)

    sub = command("quickstart", quickstart, "the whole way once on the sample (what `make quickstart` runs)")
    sub.add_argument("--cache", required=True, metavar="FOLDER", help="where the sample is laid")
    sub.add_argument("--out", required=True, metavar="FOLDER", help="where corpus, runs and reports go")
    return parser


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what is open is closed, Ray's processes go."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    status = 0

    def end(*_: object) -> None:
        nonlocal status
        status = 128 + signal.SIGTERM
        sys.exit(status)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except SystemExit:
        # where the signal comes while Ray waits, Ray makes another status of it
        if status:
            sys.exit(status)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    stay_offline()
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    # Settings may stand in several places among the flags
    unknown = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(args, "overrides")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    try:
        with _ended_by_sigterm():
            args.function(args)
    except UserError as error:
        print(f"erica-dist {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"erica-dist {args.command}: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
