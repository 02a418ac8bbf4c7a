#!/usr/bin/env bash
# Planted faults of the interconnect on 2 or more real GPUs of one node: OUT=FOLDER tools/gpu/planted_links.sh. Each run must be REJECTED.
# A wrong element after rank 1's reduction; rank 1 late by 2 ms for each collective; rank 1 without P2P; a process that uses GPU 1's links.
. "$(dirname "$0")/planted_run.sh"

cat >/tmp/drill.yaml <<YAML
reason: "a drill: a wrong element of rank 1 must be counted"
parameters: {nccl_exact.planted_elements: 1, nccl_exact.planted_rank: 1}
YAML
run drill-elements --limits=/tmp/drill.yaml -k test_nccl_exact.py
export PYTHONPATH=$PWD/tools/gpu/planted
PLANTED=late:1:0.002 run late -k test_nccl.py
PLANTED=NCCL_P2P_DISABLE=1:1 run no-p2p -k "'test_nccl.py or test_environment.py'"
unset PYTHONPATH
.venv/bin/python tools/gpu/competing_copy.py 1 12 60 >"$out/competing-copy.txt" &
sleep 6
run competing-copy --allow-busy -k test_p2p.py
wait
