# What the batch scripts share: where Python is, and how ranks are started, asked to stop, and requeued.

home=${ERICA_DIST_HOME:-$SLURM_SUBMIT_DIR}
python=${ERICA_DIST_PYTHON:-$home/.venv/bin/python}
export PYTHONPATH=$home${PYTHONPATH:+:$PYTHONPATH}

if [[ ! -x $python ]]; then
    echo "$SLURM_JOB_NAME: error: no Python at $python: run 'make venv' in $home, or set ERICA_DIST_PYTHON" >&2
    exit 2
fi
echo "$SLURM_JOB_NAME: job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), on $SLURM_JOB_NODELIST, $(date -Is)"

# run_ranks LAUNCHER ARGUMENT...: one process a task of the job. Does not return.
run_ranks() {
    # srun starts the tasks with the allocation's cores only when told again.
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
    # This script runs on the first node, as rank 0 does: a port that is free here is free for it.
    export MASTER_PORT=${MASTER_PORT:-$("$python" -m erica_dist.training.cluster)}
    local notes step asked status
    notes=$(mktemp -d)
    export ERICA_DIST_SAVED_NOTE=$notes/saved
    srun --kill-on-bad-exit=1 "$home/slurm/rank.sh" "$python" "$home/launchers/$1" "${@:2}" &
    step=$!
    trap 'asked=1; ask_to_stop "$step"' USR1
    while true; do
        asked=
        wait "$step"
        status=$?
        # A trapped signal cuts `wait` short; any other return is the end of the step.
        if [[ -z $asked ]]; then break; fi
    done
    if [[ $status -eq 0 && -e $ERICA_DIST_SAVED_NOTE ]]; then
        rm -r "$notes"
        requeue
    fi
    rm -r "$notes"
    exit "$status"
}

# Repeated, because ranks that are still starting ignore the signal; a second one changes nothing.
ask_to_stop() {
    echo "$SLURM_JOB_NAME: asked to stop (the time limit is near): the ranks save and leave, $(date -Is)"
    while kill -USR1 "$1" 2>/dev/null; do sleep 5; done &
}

requeue() {
    # An array's first task shares its job id with the whole array, so a task is named in full.
    local job=$SLURM_JOB_ID
    if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
    echo "$SLURM_JOB_NAME: saved; putting job $job back into the queue, $(date -Is)"
    scontrol requeue "$job" && exit 0
    echo "$SLURM_JOB_NAME: error: this cluster refuses to requeue; submit the same command again to go on" >&2
    exit 85
}
