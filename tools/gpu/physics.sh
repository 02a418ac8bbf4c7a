#!/usr/bin/env bash
# What NCCL's log says, and what is made of it: OUT=FOLDER tools/gpu/physics.sh, on 2 GPUs or more of one node.
# NVLink, host memory, sockets and trees are forced in turn; then the shipped `nccl` runs as it is, and with P2P off, where it must be REJECTED.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the runs leave}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

gpus=$(nvidia-smi --list-gpus | wc -l)
read_log() { # VARIABLES
    env "$@" .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node="$gpus" tools/gpu/physics.py 2>>"$out/physics.err"
}
{
    read_log PHYSICS=plain
    read_log NCCL_P2P_DISABLE=1
    read_log NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
    read_log NCCL_ALGO=allreduce:TREE
    read_log NCCL_ALGO=TREE
} >"$out/physics.jsonl"
cut -c1-600 "$out/physics.jsonl"

accept() { # NAME VARIABLES
    local name=$1
    shift
    env "$@" make accept REPORTS="/tmp/runs-$name" ARGS="--limits=site-nvls-off -k test_nccl.py" >"$out/$name.log" 2>&1
    echo "make accept: $? ($name)"
    tar -C "/tmp/runs-$name" -czf "$out/$name.tar.gz" . 2>/dev/null
    grep -E "^(REJECTED|ACCEPTED|INCOMPLETE)|nccl\.[a-z_.]+ =|counters\.warnings" "$out/$name.log" | sort -u | cut -c1-300
}
accept physics-plain PHYSICS=plain
accept physics-own-file NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/mine.%h.%p
accept physics-shm NCCL_P2P_DISABLE=1
accept physics-tree NCCL_ALGO=allreduce:TREE
