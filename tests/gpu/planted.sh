#!/usr/bin/env bash
# Planted faults on real GPUs: OUT=FOLDER tests/gpu/planted.sh. Each run must be REJECTED and name rank 1 (GPU 1) alone, or rank 0 of one GPU.
# A wrong word and a flipped bit by drill; another process that takes 5 % of a GPU's time while `gemm` and `hbm` run.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the runs leave}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

rank=$(($(nvidia-smi --list-gpus | wc -l) > 1))
run() { # NAME ARGUMENTS OF pytest
    local name=$1
    shift
    make accept REPORTS="/tmp/runs-$name" ARGS="--limits=site-nvls-off $*" >"$out/$name.log" 2>&1
    echo "$name: $?"
    tar -C "/tmp/runs-$name" -czf "$out/$name.tar.gz" . 2>/dev/null
    grep -E "^(REJECTED|ACCEPTED|INCOMPLETE)|^  [a-z_]+\.[a-z0-9_.]+ =" "$out/$name.log" | sort -u | cut -c1-300
}

cat >/tmp/drill.yaml <<YAML
reason: "a drill: a wrong word and a flipped bit in 1,000 repetitions on rank $rank must be found, and no other rank named"
parameters: {corruption.planted_flip_every: 1000, corruption.planted_flip_rank: $rank, memory.planted_words: 1, memory.planted_rank: $rank,
             corruption.seconds: 0.15}
YAML
run drill --limits=/tmp/drill.yaml -k "'memory or corruption'"

.venv/bin/python tests/gpu/competitor.py "$rank" 5 90 >"$out/competitor.txt" &
sleep 6
run competitor --allow-busy -k "'test_gemm.py or test_hbm.py'"
wait
