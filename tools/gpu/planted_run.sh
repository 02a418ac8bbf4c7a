# shellcheck shell=bash
# Sourced by the scripts of planted faults: in the root of the checkout, with OUT's folder in $out, and a run that keeps what it leaves there.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${OUT:?names the folder for what the runs leave}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

run() { # NAME ARGUMENTS OF pytest
    local name=$1
    shift
    make accept REPORTS="/tmp/runs-$name" ARGS="--limits=site-nvls-off $*" >"$out/$name.log" 2>&1
    echo "$name: $?"
    tar -C "/tmp/runs-$name" -czf "$out/$name.tar.gz" . 2>/dev/null
    grep -E "^(REJECTED|ACCEPTED|INCOMPLETE)|^  [a-z0-9_]+\.[a-z0-9_.]+ =" "$out/$name.log" | sort -u | cut -c1-300
}
