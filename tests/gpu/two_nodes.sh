#!/usr/bin/env bash
# Two torchruns on one machine as two nodes of half its GPUs each, with host names of their own; NCCL takes them for two hosts and goes through
# sockets on loopback, so figures of the network are none of a network. Where there is one GPU both have it: that must not be ACCEPTED.
# Needs root (UTS namespaces). OUT=FOLDER tests/gpu/two_nodes.sh [OPTION...]; leaves the logs and an archive there.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the run leaves}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo

mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)
half=$(((${#gpus[@]} + 1) / 2)) limits=()
((${#gpus[@]} > 1)) || limits=(--limits=tests/gpu/one_gpu.yaml)
for node in 0 1; do
    own=("${gpus[@]:node * half:half}")
    own=("${own[@]:-${gpus[0]}}")
    CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${own[*]}") NCCL_HOSTID=node-$node NODE=node-$node unshare --uts bash -c 'hostname "$NODE" && exec "$@"' _ \
        python3 -m torch.distributed.run --nnodes=2 --nproc-per-node="${#own[@]}" --max-restarts=0 --rdzv-backend=c10d --rdzv-id=two-nodes \
        --rdzv-endpoint=127.0.0.1:29400 --local-addr=127.0.0.1 \
        -m pytest acceptance/ --report-dir=/tmp/runs --run-id=two-nodes "${limits[@]}" "$@" >"$out/node-$node.log" 2>&1 &
done
wait
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" python3 -m gpu_acceptance verdict /tmp/runs/two-nodes
echo "verdict: $?"
tar -C /tmp/runs -czf "$out/two-nodes.tar.gz" two-nodes
tail -n 40 "$out"/node-*.log
