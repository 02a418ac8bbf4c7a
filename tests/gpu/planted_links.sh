#!/usr/bin/env bash
# Planted faults of the interconnect on 2 or more real GPUs of one node: OUT=FOLDER tests/gpu/planted_links.sh. Each run must be REJECTED.
# A wrong element after rank 1's reduction; rank 1 late by 2 ms for each collective; rank 1 without P2P; a process that uses GPU 1's links.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the runs leave}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

run() { # NAME ARGUMENTS OF pytest
    local name=$1
    shift
    make accept REPORTS="/tmp/runs-$name" ARGS="--limits=site-nvls-off $*" >"$out/$name.log" 2>&1
    echo "$name: $?"
    tar -C "/tmp/runs-$name" -czf "$out/$name.tar.gz" . 2>/dev/null
    grep -E "^(REJECTED|ACCEPTED|INCOMPLETE)|^  [a-z0-9_]+\.[a-z0-9_.]+ " "$out/$name.log" | sort -u | cut -c1-300
}

cat >/tmp/drill.yaml <<YAML
reason: "a drill: a wrong element of rank 1 must be counted"
parameters: {nccl_exact.planted_elements: 1, nccl_exact.planted_rank: 1}
YAML
run drill-elements --limits=/tmp/drill.yaml -k test_nccl_exact.py
export PYTHONPATH=$PWD/tests/gpu/planted
PLANTED=late:1:0.002 run late -k test_nccl.py
PLANTED=NCCL_P2P_DISABLE=1:1 run no-p2p -k "'test_nccl.py or test_environment.py'"
unset PYTHONPATH
.venv/bin/python tests/gpu/competing_copy.py 1 12 60 >"$out/competing-copy.txt" &
sleep 6
run competing-copy --allow-busy -k test_p2p.py
wait
