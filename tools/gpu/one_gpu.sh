#!/usr/bin/env bash
# The suite on one GPU of a virtual machine, without make: OUT=FOLDER tools/gpu/one_gpu.sh [OPTION...]. Leaves the log and an archive there.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the run leaves}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

python3 -m torch.distributed.run --standalone --max-restarts=0 --nproc-per-node=1 \
    -m pytest acceptance/ --report-dir=/tmp/runs --run-id=one-gpu --limits=site-one-gpu "$@" >"$out/one-gpu.log" 2>&1
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" python3 -m gpu_acceptance verdict /tmp/runs/one-gpu
echo "verdict: $?"
tar -C /tmp/runs -czf "$out/one-gpu.tar.gz" one-gpu
tail -n 60 "$out/one-gpu.log"
