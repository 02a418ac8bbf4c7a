"""busbw of all_gather with all GPUs in one process, as nccl-tests runs its ranks: `python tests/gpu/one_process.py [BYTES]`.

Beside tests/gpu/readings.py, where each GPU has a process of its own, it tells what of a difference to nccl-tests is the tool's.
Bytes count as in nccl-tests: what every GPU holds in the end. Blocks as in measure/timing.py: 7, of 0.3 s or more.
"""

import json
import statistics
import sys
import time

import torch
from torch.cuda import nccl

NUM_BLOCKS, BLOCK_S = 7, 0.3


def main(num_bytes: int) -> None:
    num_gpus = torch.cuda.device_count()
    shards = [torch.ones(num_bytes // 4 // num_gpus, device=f"cuda:{gpu}") for gpu in range(num_gpus)]
    wholes = [torch.empty(num_bytes // 4 // num_gpus * num_gpus, device=f"cuda:{gpu}") for gpu in range(num_gpus)]
    elapsed_s(shards, wholes, 5)
    per_block = max(20, int(BLOCK_S / (elapsed_s(shards, wholes, 5) / 5)))
    blocks = [elapsed_s(shards, wholes, per_block) / per_block for _ in range(NUM_BLOCKS)]
    operation_s = statistics.median(blocks)
    result = {
        "collective": "all_gather",
        "gpus": num_gpus,
        "num_bytes": num_bytes,
        "busbw_gb_per_s": num_bytes / operation_s / 1e9 * (num_gpus - 1) / num_gpus,
        "block_cv_percent": 100 * statistics.stdev(blocks) / statistics.mean(blocks),
        "num_wrong": sum(int((whole != 1).sum()) for whole in wholes),
    }
    print(json.dumps(result))


def elapsed_s(shards: list[torch.Tensor], wholes: list[torch.Tensor], times: int) -> float:
    synchronize(len(shards))
    start = time.perf_counter()
    for _ in range(times):
        nccl.all_gather(shards, wholes)
    synchronize(len(shards))
    return time.perf_counter() - start


def synchronize(num_gpus: int) -> None:
    for gpu in range(num_gpus):
        torch.cuda.synchronize(gpu)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4 << 30)
