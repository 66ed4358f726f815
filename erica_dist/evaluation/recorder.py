"""The journal and the terminal's lines of a fine-tuning over several seeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from erica_dist.evaluation.results import SeedResult
from erica_dist.tracking.journal import Journal

LINE_EVERY = 5.0  # seconds between two lines on the terminal


@dataclass
class Recorder:
    """Writes the journal and the lines on the terminal; its step goes on from seed to seed."""

    journal: Journal | None  # None on all ranks but the first
    say: Callable[[str], None]
    seed: int = 0
    steps: int = 0  # of this seed
    before: int = 0  # steps of the seeds before
    last_dev: dict[str, float] = field(default_factory=dict)
    last_line: float = 0.0

    def open_seed(self, seed: int, steps: int) -> None:
        self.before += self.steps
        self.seed, self.steps, self.last_dev = seed, steps, {}

    def step(self, step: int, metrics: dict[str, float], dev: dict[str, float]) -> None:
        """One optimizer step, and the dev scores taken after it, if any."""
        if self.journal is None:
            return
        self.journal.write({"step": self.before + step, "seed": self.seed, **metrics})
        self.last_dev = {f"dev_{name}": value for name, value in dev.items()}
        if dev and step < self.steps:  # the last ones go with the test scores: one record a step
            self.journal.write_evaluation({"step": self.before + step, "seed": self.seed, **self.last_dev})
        now = time.monotonic()
        if dev or step == self.steps or now - self.last_line > LINE_EVERY:
            self.last_line = now
            shown = "".join(f"  dev {name} {100 * value:.2f} %" for name, value in dev.items())
            speed = f"{metrics['tokens_per_second']:,.0f} tokens/s"
            self.say(f"seed {self.seed}  step {step}/{self.steps}  loss {metrics['loss']:.4f}  {speed}{shown}")

    def close_seed(self, run: SeedResult, summary: dict[str, dict[str, float | None]]) -> None:
        """The test scores of a seed, and after the last seed their mean and deviation."""
        self.say(f"seed {run.seed}  " + "  ".join(f"test {name} {100 * s:.2f} %" for name, s in run.test.items()))
        if self.journal is None:
            return
        record: dict[str, Any] = {"step": self.before + self.steps, "seed": self.seed, "best_step": run.best_step}
        record |= self.last_dev
        record |= {f"best_dev_{name}": value for name, value in run.dev.items()}
        record |= {f"test_{name}": value for name, value in run.test.items()}
        for name, spread in summary.items():
            record |= {f"test_{name}_{kind}": value for kind, value in spread.items() if value is not None}
        self.journal.write_evaluation(record)
