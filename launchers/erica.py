"""ERICA pre-training, started by `deepspeed`, `srun`, `torchrun` or plain python.

    deepspeed launchers/erica.py --config job.yaml train.lr=1e-4

Settings: `erica-dist config erica`. The run folder gets config.yaml, metrics.jsonl, evaluation.jsonl and checkpoints/;
the same command goes on from the newest complete checkpoint.
"""

import sys

from erica_dist.training.job import main

if __name__ == "__main__":
    sys.exit(main("erica", sys.argv[1:]))
