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


def measure(collective: str, run=REAL_RUN) -> CollectiveResult:
    Buffers.run = run
    try:
        return nccl.measure(collective, num_bytes=NUM_BYTES, device=CPU, block_s=0.01, num_blocks=3)
    finally:
        Buffers.run = REAL_RUN


def wrong_on_rank_1(buffers: Buffers) -> None:
    REAL_RUN(buffers)
    if dist.get_rank() == 1:
        buffers.output[3:4] += 1


def nan_on_rank_1(buffers: Buffers) -> None:
    REAL_RUN(buffers)
    if dist.get_rank() == 1:
        buffers.output[3:4] = torch.nan


def nothing(buffers: Buffers) -> None:
    """A collective that returns at once and moves nothing."""


def swapped_halves(buffers: Buffers) -> None:
    REAL_RUN(buffers)
    buffers.output.copy_(buffers.output.roll(len(buffers.output) // 2))


def num_wrong(collective: str, run=REAL_RUN, num_planted: int = 0) -> int:
    Buffers.run = run
    try:
        return nccl.count_wrong(collective, num_bytes=NUM_BYTES, device=CPU, num_planted=num_planted)
    finally:
        Buffers.run = REAL_RUN


def num_runs_of_a_slow_rank() -> int:
    num_runs = 0

    def run(buffers: Buffers) -> None:
        nonlocal num_runs
        num_runs += 1
        REAL_RUN(buffers)
        time.sleep(0.0002 * dist.get_rank())

    measure("all_reduce", run)
    return num_runs


def error_of(**arguments: object) -> str:
    try:
        nccl.measure(**{"collective": "all_reduce", "num_bytes": 64, "device": CPU, "block_s": 0.01, "num_blocks": 3, **arguments})
    except ValueError as error:
        return str(error)
    return "no error"


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store_file}", rank=rank, world_size=WORLD_SIZE)
    answer: dict[str, object] = {"sound": {c: asdict(measure(c)) for c in NAMES}}
    faults = {"none": REAL_RUN, "wrong": wrong_on_rank_1, "nan": nan_on_rank_1, "nothing": nothing, "swapped": swapped_halves}
    answer |= {name: {c: num_wrong(c, run) for c in NAMES} for name, run in faults.items()}
    answer["planted"] = {c: num_wrong(c, num_planted=2 * rank) for c in NAMES}
    answer["num_runs"] = num_runs_of_a_slow_rank()
    answer["shortest"] = {c: nccl.measure(c, num_bytes=1, device=CPU, block_s=0.0, num_blocks=2, min_iterations=1).num_bytes for c in NAMES}
    answer["exact"] = asdict(nccl.measure_exact(largest_bytes=4_096, device=CPU, num_planted=rank))
    answer["latency"] = asdict(nccl.measure_latency(8, device=CPU, block_s=0.005, num_blocks=3, in_a_graph=False))
    small = nccl.measure_exact(largest_bytes=8, device=CPU)
    answer["exact_at_one_element"] = (small.num_operations, small.num_wrong)
    answer["too_small"] = error_of(num_bytes=0)
    answer["unknown"] = error_of(collective="gather")
    dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
