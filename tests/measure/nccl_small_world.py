"""Two real ranks on gloo, for test_nccl_small.py: `nccl_small_world.py RANK STORE_FILE` prints one JSON object."""

import json
import sys
from dataclasses import asdict

import torch
import torch.distributed as dist

from gpu_acceptance.measure import nccl_latency, nccl_once

CPU = torch.device("cpu")


def counted(function):
    """How often torch is asked for each collective while `function` runs, and what comes of it."""
    asked = []
    real = dict(nccl_once._RUN)
    nccl_once._RUN.update({name: lambda *tensors, name=name: (asked.append(name), real[name](*tensors)) for name in real})
    try:
        return {"returned": function(), "asked": asked}
    finally:
        nccl_once._RUN.update(real)


def main(rank: int, store_file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store_file}", rank=rank, world_size=2)
    answer: dict[str, object] = {"once": counted(lambda: nccl_once.run(4_006, CPU))}
    try:
        nccl_once.run(7, CPU)
    except ValueError as error:
        answer["too_small"] = str(error)
    result = nccl_latency.measure(8, device=CPU, block_s=0.005, num_blocks=3, in_a_graph=False)
    answer["latency"] = asdict(result)
    dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
