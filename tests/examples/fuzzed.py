"""Three validations that keep shared memory, a semaphore, a temporary folder and a child process for as long as they run."""

import multiprocessing
import subprocess
import tempfile
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


@pytest.mark.parametrize("number", range(3))
def test_value(check, ranks, number):
    segment = shared_memory.SharedMemory(create=True, size=4096)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    with Path(f"made-{ranks.rank}").open("a") as file:
        print(segment.name, f"sem{semaphore._semlock.name}".replace("/", "."), file=file)
    with subprocess.Popen(["sleep", "0.3"]), tempfile.TemporaryDirectory():
        for _ in range(10):
            value = torch.ones(1)
            dist.all_reduce(value)
            time.sleep(0.03)
    segment.close()
    segment.unlink()
    check("fuzzed.value", float(value), "GB/s")
