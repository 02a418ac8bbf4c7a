#!/usr/bin/env bash
# What the measures of compute, memory and host links read on real GPUs, in one call: OUT=FOLDER tools/gpu/compute.sh.
# First what can be wrong (drills with planted faults), then readings on all GPUs of the node at once. One file for each in OUT.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the readings leave}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 CUBLAS_WORKSPACE_CONFIG=:4096:8

gpus=$(nvidia-smi --list-gpus | wc -l)
read_into() { # NAME COMMAND
    local name=$1 began=$SECONDS
    shift
    timeout 200 "$@" >"$out/$name.jsonl" 2>"$out/$name.err"
    echo "$name: $?, $((SECONDS - began)) s"
}
on_all() { # NAME SCRIPT ARGUMENTS
    local name=$1
    shift
    read_into "$name" .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node="$gpus" "$@"
}

read_into memory-fill .venv/bin/python tools/gpu/memory_fill.py
read_into corruption-drill .venv/bin/python tools/gpu/corruption_readings.py --drill
on_all pcie tools/gpu/pcie_readings.py
on_all gemm tools/gpu/gemm_readings.py
on_all corruption tools/gpu/corruption_readings.py --seconds=1
on_all corruption-once tools/gpu/corruption_readings.py --seconds=1 --kernel=mm_bf16 --size=large --plant=once
read_into nvml-costs .venv/bin/python tools/gpu/nvml_costs.py
read_into sampling .venv/bin/python tools/gpu/sampling.py 15
