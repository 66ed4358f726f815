"""Gathering rows of different ranks, with gradient: 1, 2 and 3 real processes, also with a rank that has no row."""

import pytest

from tests.ranks import run_ranks

pytestmark = pytest.mark.distributed

ROWS = [[[1.0, 2.0], [3.0, -1.0]], [], [[0.5, 0.25]]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_of_all_ranks_come_in_rank_order_and_gradients_are_summed_at_the_owner(ranks: int) -> None:
    results = run_ranks("tests.rank_programs:gather_gradients", ranks, {"rows": ROWS})
    everything = [row for rank in range(ranks) for row in ROWS[rank]]
    total = sum(rank + 1 for rank in range(ranks))
    for rank, result in enumerate(results):
        assert result["rows"] == everything
        assert result["gradient"] == [[total * 3 * x * x for x in row] for row in ROWS[rank]]
        assert result["tables"] == [
            [[owner] * (owner + 1) + [-1] * (ranks - owner - 1)] * len(ROWS[owner]) for owner in range(ranks)
        ]
