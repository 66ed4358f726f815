"""The learning rate is the closed formula at each step."""

import pytest

from erica_dist.config import TrainConfig
from erica_dist.training.schedule import learning_rate


def rates(**settings) -> list[float]:
    train = TrainConfig(lr=1.0, steps=10, warmup_steps=4, **settings)
    return [learning_rate(step, train) for step in range(1, 11)]


def test_linear() -> None:
    assert rates() == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_constant_and_cosine() -> None:
    assert rates(schedule="constant")[3:] == [1.0] * 7
    cosine = rates(schedule="cosine")
    assert cosine[4] == pytest.approx(1.0)
    assert cosine[7] == pytest.approx(0.5)
    assert 0 < cosine[9] < cosine[8]


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(1, TrainConfig(lr=2.0, steps=5, warmup_steps=0)) == 2.0
    assert learning_rate(3, TrainConfig(lr=2.0, steps=3, warmup_steps=5)) == pytest.approx(1.2)
