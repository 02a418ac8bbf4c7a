#!/usr/bin/env bash
# Planted faults on real GPUs: OUT=FOLDER tools/gpu/planted.sh. Each run must be REJECTED and name rank 1 (GPU 1) alone, or rank 0 of one GPU.
# A wrong word and a flipped bit by drill; another process that takes 5 % of a GPU's time while `gemm` and `hbm` run.
. "$(dirname "$0")/planted_run.sh"

rank=$(($(nvidia-smi --list-gpus | wc -l) > 1))

cat >/tmp/drill.yaml <<YAML
reason: "a drill: a wrong word and a flipped bit in 1,000 repetitions on rank $rank must be found, and no other rank named"
parameters: {corruption.planted_flip_every: 1000, corruption.planted_flip_rank: $rank, memory.planted_words: 1, memory.planted_rank: $rank,
             corruption.seconds: 0.15}
YAML
run drill --limits=/tmp/drill.yaml -k "'memory or corruption'"

.venv/bin/python tools/gpu/competitor.py "$rank" 5 90 >"$out/competitor.txt" &
sleep 6
run competitor --allow-busy -k "'test_gemm.py or test_hbm.py'"
wait
