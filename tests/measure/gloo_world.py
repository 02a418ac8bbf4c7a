"""Two real ranks on gloo, for test_nccl.py: `gloo_world.py RANK STORE_FILE` runs every scene and prints one JSON object."""

import json
import sys
import time
from dataclasses import asdict

import torch
import torch.distributed as dist

from gpu_acceptance.measure import nccl
from gpu_acceptance.measure.nccl import CollectiveResult, _Buffers

WORLD_SIZE = 2
NUM_BYTES = 4_006  # not whole elements for each rank: 4000 are used
CPU = torch.device("cpu")
REAL_RUN = _Buffers.run


def measure(collective: str, run=REAL_RUN) -> CollectiveResult:
    _Buffers.run = run
    try:
        return nccl.measure(collective, num_bytes=NUM_BYTES, device=CPU, block_s=0.01, num_blocks=3)
    finally:
        _Buffers.run = REAL_RUN


def wrong_on_rank_1(buffers: _Buffers) -> None:
    REAL_RUN(buffers)
    if dist.get_rank() == 1:
        buffers.output[3] += 1


def nan_on_rank_1(buffers: _Buffers) -> None:
    REAL_RUN(buffers)
    if dist.get_rank() == 1:
        buffers.output[3] = torch.nan


def nothing(buffers: _Buffers) -> None:
    """A collective that returns at once and moves nothing."""


def swapped_halves(buffers: _Buffers) -> None:
    REAL_RUN(buffers)
    buffers.output.copy_(buffers.output.roll(len(buffers.output) // 2))


def with_a_lying_sum(collective: str) -> CollectiveResult:
    """The sum of the wrong elements gets lost on its way, as on a fabric that corrupts data."""
    real = nccl._reduced
    nccl._reduced = lambda number, operation, device: 0 if operation == dist.ReduceOp.SUM else real(number, operation, device)
    try:
        return measure(collective, wrong_on_rank_1)
    finally:
        nccl._reduced = real


def num_runs_of_a_slow_rank() -> int:
    num_runs = 0

    def run(buffers: _Buffers) -> None:
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
    collectives = ["all_gather", "all_reduce", "reduce_scatter"]
    scenes = {"sound": measure, "wrong": lambda c: measure(c, wrong_on_rank_1), "nan": lambda c: measure(c, nan_on_rank_1)}
    scenes |= {"nothing": lambda c: measure(c, nothing), "swapped": lambda c: measure(c, swapped_halves), "lying": with_a_lying_sum}
    answer: dict[str, object] = {name: {c: asdict(scene(c)) for c in collectives} for name, scene in scenes.items()}
    answer["num_runs"] = num_runs_of_a_slow_rank()
    answer["too_small"] = error_of(num_bytes=7)
    answer["unknown"] = error_of(collective="gather")
    dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
