"""Faults of one rank while others wait for it on their devices; every second validation is a healthy one (tools/gpu/faults.py)."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

PLAN = json.loads((Path(__file__).parents[1] / "plan.json").read_text())  # [fault, culprit] of each validation


def ones(ranks, count=1):
    return torch.ones(count, device=ranks.device)


def other_order(ranks):
    dist.all_gather([ones(ranks, 1000) for _ in range(ranks.world_size)], ones(ranks, 1000))
    dist.all_reduce(ones(ranks))


def killed_inside(ranks):
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    dist.all_reduce(ones(ranks))


def device_assert(ranks):
    ones(ranks)[torch.tensor([5], device=ranks.device)].sum().item()


def out_of_memory(ranks):
    torch.empty(1 << 50, device=ranks.device)


FAULTS = {
    "raises": lambda ranks: [][0],
    "larger": lambda ranks: dist.all_reduce(ones(ranks, 1 << 20)),
    "other order": other_order,
    "never enters": lambda ranks: None,
    "stopped": lambda ranks: os.kill(os.getpid(), signal.SIGSTOP),
    "exits": lambda ranks: os._exit(7),
    "killed inside": killed_inside,
    "device assert": device_assert,
    "out of memory": out_of_memory,
}


@pytest.mark.deadline(20)
@pytest.mark.parametrize("number", range(len(PLAN)))
def test_one(check, ranks, number):
    fault, culprit = PLAN[number]
    total = ones(ranks)
    if fault and ranks.rank == culprit:
        FAULTS[fault](ranks)
    else:
        if fault == "killed inside":
            time.sleep(3)
        dist.all_reduce(total)
        if fault == "other order":
            dist.all_gather([ones(ranks, 1000) for _ in range(ranks.world_size)], ones(ranks, 1000))
    check("gpu_faults.value", 5.0 if fault or int(total) == ranks.world_size else 0.0, "GB/s")
