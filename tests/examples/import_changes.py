"""Importing this file changes what every validation runs in."""

import os

import torch

torch.set_default_dtype(torch.float64)
os.environ["NCCL_ALGO"] = "TREE"


def test_value(check):
    check("import_changes.value", 5.0, "GB/s")
