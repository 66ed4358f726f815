"""The benchmark of RD: its shares of two ranks are the whole, and a way that does not run says why."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks import contrastive
from erica_dist.objectives.pair_labels import anchor_rows
from tests.ranks import run_ranks

pytestmark = pytest.mark.distributed


def test_the_gathered_shares_of_two_ranks_are_the_dense_loss_of_all_pairs() -> None:
    results = run_ranks("tests.rank_programs:contrastive_share", 2, {"count": 90, "width": 12})
    _, labels = contrastive.pairs_of(90, 12, 0)
    states = torch.tensor([row for result in results for row in result["states"]], requires_grad=True)
    assert states.shape == (90, 12)
    summed = contrastive.dense(states, labels)
    anchors = int(anchor_rows(labels, labels).sum())
    assert 20 < anchors < 60  # about half of the pairs hold a relation
    assert sum(result["loss"] for result in results) == pytest.approx(summed.item() / anchors, rel=1e-5)
    found = torch.tensor([row for result in results for row in result["gradient"]])
    torch.testing.assert_close(found, states.grad / anchors, rtol=1e-4, atol=1e-7)


def test_a_way_that_fails_on_its_ranks_is_given_with_its_reason(tmp_path: Path) -> None:
    peer = tmp_path / "peer" / "pytorch_metric_learning"
    peer.mkdir(parents=True)
    (peer / "__init__.py").write_text("raise RuntimeError('[enforce] no room for the matrix')\n")
    args = Namespace(table="ranks", work=tmp_path, width=8, anchors=0, limit_gb=8, ways=["gather", "supcon"])
    assert contrastive.in_fresh_processes("supcon", 64, args) == "RuntimeError: [enforce] no room for the matrix"
    figures = contrastive.in_fresh_processes("gather", 64, args)
    assert isinstance(figures, dict)
    assert list(figures) == ["wall", "cpu", "mb"]
