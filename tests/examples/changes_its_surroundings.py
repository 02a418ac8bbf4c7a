"""Changes of one validation to its surroundings are not seen by the next."""

import os
from pathlib import Path

import torch

BEFORE = Path.cwd()


def test_changes(check):
    check("changes_its_surroundings.value", 5.0, "GB/s")
    torch.set_default_dtype(torch.float64)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    os.environ["NCCL_ALGO"] = "TREE"
    os.chdir("/")


def test_next(check):
    same = [
        torch.ones(1).dtype is torch.float32,
        torch.backends.cuda.matmul.fp32_precision != "tf32",
        "NCCL_ALGO" not in os.environ,
        Path.cwd() == BEFORE,
    ]
    check("changes_its_surroundings.value", float(sum(same)) - 3, "GB/s")
