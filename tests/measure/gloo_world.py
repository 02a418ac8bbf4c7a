"""Two real ranks on gloo, for test_nccl.py: `gloo_world.py RANK STORE_FILE` runs every scene and prints one JSON object."""

import json
import sys
import time
from dataclasses import asdict

import torch
import torch.distributed as dist

from gpu_acceptance.measure import nccl
from gpu_acceptance.measure.collectives import NAMES, Buffers
from gpu_acceptance.measure.nccl import CollectiveResult

WORLD_SIZE = 2
NUM_BYTES = 4_006  # not whole elements: 4004 are used, and 4000 where each rank has a shard
CPU = torch.device("cpu")
REAL_RUN = Buffers.run


def with_run(run, scene):
    Buffers.run = run
    try:
        return scene()
    finally:
        Buffers.run = REAL_RUN


def measure(collective: str) -> CollectiveResult:
    return nccl.measure(collective, num_bytes=NUM_BYTES, device=CPU, block_s=0.01, num_blocks=3)


def spoiled_on_rank_1(spoil):
    def run(buffers: Buffers) -> None:
        REAL_RUN(buffers)
        if dist.get_rank() == 1:
            spoil(buffers.output[3:4])

    return run


def nothing(buffers: Buffers) -> None:
    """A collective that returns at once and moves nothing."""


def swapped_halves(buffers: Buffers) -> None:
    REAL_RUN(buffers)
    buffers.output.copy_(buffers.output.roll(len(buffers.output) // 2))


def num_wrong(collective: str, num_planted: int = 0) -> int:
    return nccl.count_wrong(collective, num_bytes=NUM_BYTES, device=CPU, num_planted=num_planted)


def num_runs_of_a_slow_rank() -> int:
    num_runs = 0

    def run(buffers: Buffers) -> None:
        nonlocal num_runs
        num_runs += 1
        REAL_RUN(buffers)
        time.sleep(0.0002 * dist.get_rank())

    with_run(run, lambda: measure("all_reduce"))
    return num_runs


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store_file}", rank=rank, world_size=WORLD_SIZE)
    answer: dict[str, object] = {"sound": {c: asdict(measure(c)) for c in NAMES}}
    faults = {
        "none": REAL_RUN,
        "wrong": spoiled_on_rank_1(lambda one: one.add_(1)),
        "nan": spoiled_on_rank_1(lambda one: one.fill_(torch.nan)),
        "nothing": nothing,
        "swapped": swapped_halves,
    }
    answer |= {name: with_run(run, lambda: {c: num_wrong(c) for c in NAMES}) for name, run in faults.items()}
    answer["planted"] = {c: num_wrong(c, num_planted=2 * rank) for c in NAMES}
    answer["num_runs"] = num_runs_of_a_slow_rank()
    answer["shortest"] = {c: nccl.measure(c, num_bytes=1, device=CPU, block_s=0.0, num_blocks=2, min_iterations=1).num_bytes for c in NAMES}
    nccl._LATE = 2.0  # every rank is late
    answer["late"] = {c: measure(c).late for c in NAMES}
    answer["exact"] = nccl.measure_exact(largest_bytes=4_096, device=CPU, num_planted=rank)
    answer["exact_at_one_element"] = nccl.measure_exact(largest_bytes=8, device=CPU)
    answer["latency_us"] = nccl.measure_latency(8, device=CPU, block_s=0.005, num_blocks=3, in_a_graph=False)
    dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
