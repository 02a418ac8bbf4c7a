#!/usr/bin/env bash
# The main job on real H200s, in one call: OUT=FOLDER tools/gpu/accept.sh. Leaves a log and an archive of each run there.
# Runs with NVLink multicast off (overlay site-nvls-off), as the machine that the ring limits were read on.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the runs leave}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

gpus=$(nvidia-smi --list-gpus | wc -l)
run() { # NAME ARGUMENTS OF make
    local name=$1
    shift
    make accept REPORTS="/tmp/runs-$name" "$@" >"$out/$name.log" 2>&1
    echo "make accept: $? ($name)"
    tar -C "/tmp/runs-$name" -czf "$out/$name.tar.gz" . 2>/dev/null
    tail -n 12 "$out/$name.log"
}

cat >/tmp/raised.yaml <<'YAML'
limits:
  hbm.copy.bandwidth:
    at_least: 4799
    unit: GB/s
    scope: rank
    ceiling: 4800
    source: "policy: out of reach on purpose, to see a rejection"
YAML

run all ARGS="--limits=site-nvls-off"
run raised ARGS="--limits=site-nvls-off --limits=/tmp/raised.yaml"
for n in 2 4; do
    [ "$n" -lt "$gpus" ] && run "gpus$n" RANKS="$n" ARGS="--limits=site-nvls-off --gpus=$n"
done
.venv/bin/python -m torch.distributed.run --standalone --nproc-per-node="$gpus" tools/gpu/readings.py >"$out/readings.jsonl" 2>"$out/readings.err"
echo "readings: $?"
nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader
