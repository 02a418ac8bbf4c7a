#!/usr/bin/env bash
# What a pod of an acceptance runs, one pod on each node, from the folder of the suite: one torchrun, and in it one rank for each GPU.
#
#   deploy/kubernetes/start.sh [OPTION...]
#
# OPTIONs go on to the suite (--limits=FILE, --level=quick, ...). Where ranks meet stands in torchrun's own variables (PET_*): a manifest of
# this folder sets them, or Kubeflow's operator. The pod of node 0 ends with the verdict's own exit code: 0 ACCEPTED, 1 REJECTED,
# 6 INCOMPLETE, 2 interrupted (the pod was deleted, the deadline), 4 usage. Any other pod ends with torchrun's, which is 0 if ACCEPTED.
# First it waits until all pods of the run are running: what keeps one from it, the scheduler has told Kubernetes and not torchrun. Then all pods
# see that they find each other: torchrun would not say for long that they do not.
# PYTHON (python3), REPORTS (/reports) and JOIN_TIMEOUT (15m), how long pods and ranks wait for each other, may come from the environment.

set -uo pipefail

for name in RUN_ID RUN_PODS PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE PET_MASTER_ADDR PET_MASTER_PORT; do
    if [ -z "${!name:-}" ]; then
        echo "$name is not in the environment of this pod: a manifest of deploy/kubernetes sets it, or Kubeflow's operator" >&2
        exit 4
    fi
done
python=${PYTHON:-python3}
reports=${REPORTS:-/reports}
patience=${JOIN_TIMEOUT:-15m}
if [ "$PET_NODE_RANK" = 0 ] && [ -e "$reports/$RUN_ID" ]; then
    echo "$reports/$RUN_ID is there already: its verdict is not this run's; move it away, or begin a run of another name" >&2
    exit 4
fi

child=
# As process 1 bash would ignore TERM.
trap 'if [ -n "$child" ]; then kill -TERM "$child"; else exit 2; fi' TERM

# Runs a command, which gets our TERM. bash answers a signal only once its foreground command has ended; waiting is interrupted at once.
run() {
    "$@" &
    child=$!
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        code=$?
    done
}

if [ "$PET_NODE_RANK" = 0 ]; then
    run "$python" -m gpu_acceptance pods --labels="$RUN_PODS" --number="$PET_NNODES" --timeout="$patience"
    case $code in
        2 | 4 | 6) exit "$code" ;;
        143) exit 2 ;; # TERM, before it listened
    esac # whatever else befell it, torchrun waits as well
    child=
fi

run "$python" -m gpu_acceptance meet "$PET_MASTER_ADDR:$PET_MASTER_PORT" --nodes="$PET_NNODES" --node="$PET_NODE_RANK" --run="$RUN_ID" \
    --timeout="$patience"
case $code in
    2 | 4 | 6) exit "$code" ;;
    143) exit 2 ;; # TERM, before it listened
esac
child=
# What `meet` has taken is a number with s, m or h.
seconds=${patience%s} seconds=${seconds/%m/*60} seconds=$((10#${seconds/%h/*3600}))

[ "$code" != 0 ] || run "$python" -m torch.distributed.run --max-restarts=0 --rdzv-conf="timeout=$seconds" -m pytest acceptance/ \
    --report-dir="$reports" --run-id="$RUN_ID" --join-timeout="$patience" "$@"

if [ "$PET_NODE_RANK" != 0 ]; then
    exit "$code"
fi
if [ ! -d "$reports/$RUN_ID" ]; then
    echo "no run in $reports/$RUN_ID: see the error above" >&2
    exit 4
fi
"$python" -m gpu_acceptance verdict "$reports/$RUN_ID"
