#!/bin/bash
# One rank: `rank.sh COMMAND ARGUMENT...`, started by srun.
#
# A trainer that saved after a stop signal leaves with status 85. Ranks leave moments apart, so that status would make
# `srun --kill-on-bad-exit` kill the slower ones and report the killing. It becomes a note for the batch script instead,
# which runs on the same node as rank 0.

trap '' USR1 # ignored, in Python too until it listens: its first seconds of imports must not be deadly
trap : TERM  # the trainer's to obey; this shell waits for it

"$@"
status=$?
if [[ $status -ne 85 ]]; then exit "$status"; fi
if [[ $SLURM_PROCID -eq 0 ]]; then touch "$ERICA_DIST_SAVED_NOTE"; fi
