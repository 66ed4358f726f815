"""Numbers that make no sense are refused in one line before anything is done."""

import pytest

from erica_dist.config import ElectraJob, EricaJob
from erica_dist.limits import LIMITS
from erica_dist.settings import flatten
from erica_dist.training.job import main


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("erica.temperature=0", "erica.temperature=0.0 must be above 0"),
        ("erica.temperature=-0.05", "erica.temperature=-0.05 must be above 0"),
        ("erica.temperature=.nan", "erica.temperature=nan must be above 0"),
        ("erica.temperature=.inf", "erica.temperature=inf must be above 0"),
        ("erica.no_relation_pairs=-1", "erica.no_relation_pairs=-1 must be at least 0"),
        ("erica.weights.ed=-1", "erica.weights.ed=-1.0 must be at least 0"),
        ("erica.weights.rd=.nan", "erica.weights.rd=nan must be at least 0"),
        ("erica.weights.rd_parts=[-1,1,1,1]", "erica.weights.rd_parts must be at least 0 each"),
        ("erica.weights={rd: 0, ed: 0, mlm: 0}", "leave nothing to train on"),
        ("model.dropout=1", "model.dropout=1.0 must be at least 0 and below 1"),
        ("model.dropout=-0.1", "model.dropout=-0.1 must be at least 0 and below 1"),
        ("model.layers=-1", "model.layers=-1 must be at least 0"),
        ("train.lr=.nan", "train.lr=nan must be at least 0"),
        ("train.beta1=2", "train.beta1=2.0 must be at least 0 and below 1"),
        ("train.log_every=0", "train.log_every=0 must be at least 1"),
        ("train.seed=99999999999999999999", "train.seed=99999999999999999999 must be at least 0 and below 4294967296"),
        ("train.warmup_steps=-5", "train.warmup_steps=-5 must be at least 0"),
    ],
)
def test_a_number_without_sense_is_refused(word: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("erica", [word, "run.dir=x", "data.shards=y"]) == 2
    assert text in capsys.readouterr().err


def test_every_limit_is_of_a_setting() -> None:
    known = set(flatten(EricaJob())) | set(flatten(ElectraJob()))
    assert set(LIMITS) <= known
