"""Fine-tuning and scoring of an encoder, started by `deepspeed`, `srun`, `torchrun` or plain python.

    python launchers/finetune.py --config launchers/jobs/finetune_relation.yaml finetune.model=FOLDER run.dir=runs/re

Settings: `erica-dist config finetune`. The run folder gets config.yaml, metrics.jsonl, evaluation.jsonl,
predictions.jsonl and result.json.
"""

import sys

from erica_dist.evaluation.job import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
