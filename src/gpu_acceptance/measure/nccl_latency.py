"""Latency of small all_reduces, on a GPU without the host's cost of each call.

Read on 4 H200 (torch 2.11, NCCL 2.28.9): called one by one, 8 B, 32 KiB and 1 MiB take 24, 23 and 25 us, and to enqueue one takes the host
21 to 24 us: it is the host that is measured. A CUDA graph of 100 reads 21, 23 and 31 us, and 7.0, 9.4 and 15.5 us with
NCCL_GRAPH_MIXING_SUPPORT=0, as nccl-tests does in graphs (7.8, 10.4, 16.8): with the support NCCL orders each captured call against all
others on other streams. NCCL's documentation (env.html#nccl-graph-mixing-support) says what must not be done without it: launch graphs with
one communicator side by side, or call it outside a graph while one is running, whatever the order of streams. Here all is one stream, and
the device is idle before and after each block.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpu_acceptance.measure.collectives import largest
from gpu_acceptance.measure.timing import time_blocks

ENVIRONMENT = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}  # what a worker that captures must start with
SIZES = (8, 32 * 2**10, 2**20)  # bytes
_IN_A_GRAPH = 100  # with 10, 10 to 20 us were read: the launch of a graph counts


@dataclass(frozen=True)
class LatencyResult:
    """One message size on this rank."""

    num_bytes: int
    latency_us: float  # one all_reduce: median block
    block_cv_percent: float


def measure(num_bytes: int, *, device: torch.device, block_s: float, num_blocks: int, in_a_graph: bool) -> LatencyResult:
    """Time all_reduce of `num_bytes` over the default process group, called one by one or captured. Collective.

    `in_a_graph`: on a GPU alone, in a process that started with ENVIRONMENT.
    """
    values_N = torch.zeros(num_bytes // 4, device=device)
    graph = _captured(values_N) if in_a_graph else None
    blocks = time_blocks(
        graph.replay if graph else lambda: dist.all_reduce(values_N),
        device=device,
        num_blocks=num_blocks,
        block_s=block_s,
        warmup_s=block_s,
        before_block=lambda: largest(0, device),
        agree=lambda num_iterations: largest(num_iterations, device),
    )
    if graph:
        graph.reset()  # before the communicator that it calls
    return LatencyResult(num_bytes, blocks.median_s * 1e6 / (_IN_A_GRAPH if graph else 1), blocks.cv_percent)


def _captured(values_N: torch.Tensor) -> torch.cuda.CUDAGraph:
    """All_reduces in a row. The capture looks at this thread alone: torch's watchdog asks the GPU for earlier work meanwhile."""
    dist.all_reduce(values_N)  # NCCL connects at the first call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_IN_A_GRAPH):
            dist.all_reduce(values_N)
    return graph
