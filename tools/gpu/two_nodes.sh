#!/usr/bin/env bash
# Two torchruns on one machine as two nodes of half its GPUs each, with host names of their own. NCCL is told that they are one host, and goes
# through NVLink. Where there is one GPU both have it, NCCL goes through sockets on loopback, and the run must not be ACCEPTED.
# Needs root (namespaces). OUT=FOLDER tools/gpu/two_nodes.sh [OPTION...]; leaves the logs and an archive there.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?names the folder for what the run leaves}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo
HOSTS=$(mktemp)
export HOSTS
trap 'rm -f "$HOSTS"' EXIT
(cat /etc/hosts && echo 127.0.0.1 node-0 node-1) >"$HOSTS"

mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)
half=$(((${#gpus[@]} + 1) / 2))
for node in 0 1; do
    own=("${gpus[@]:node * half:half}") host=one-machine limits=()
    ((${#gpus[@]} > 1)) || own=("${gpus[0]}") host=node-$node limits=(--limits=site-one-gpu)
    CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${own[*]}") NCCL_HOSTID=$host NODE=node-$node unshare --uts --mount \
        bash -c 'hostname "$NODE" && mount --bind "$HOSTS" /etc/hosts; exec "$@"' _ \
        python3 -m torch.distributed.run --nnodes=2 --nproc-per-node="${#own[@]}" --max-restarts=0 --rdzv-backend=c10d --rdzv-id=two-nodes \
        --rdzv-endpoint=127.0.0.1:29400 --local-addr=127.0.0.1 \
        -m pytest acceptance/ --report-dir=/tmp/runs --run-id=two-nodes --gpus="$half" "${limits[@]}" "$@" >"$out/node-$node.log" 2>&1 &
done
wait
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" python3 -m gpu_acceptance verdict /tmp/runs/two-nodes
echo "verdict: $?"
tar -C /tmp/runs -czf "$out/two-nodes.tar.gz" two-nodes
tail -n 40 "$out"/node-*.log
