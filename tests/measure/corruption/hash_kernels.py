"""For test_kernels.py: `hash_kernels.py SEED` makes every kernel in a process of its own and prints its hashes as JSON."""

import json
import sys

import torch

from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.corruption.repeat import deterministic

CPU = torch.device("cpu")


def hashes(name: str, size: str, seed: int) -> tuple[str, str, str]:
    """Return the hashes of the inputs, and of the outputs of two calls."""
    kernel = kernels.make(name, size, CPU, seed)
    inputs, *outputs = (as_text(hash_tensors(tensors)) for tensors in (kernel.inputs, kernel.run(), kernel.run()))
    assert inputs == as_text(hash_tensors(kernel.inputs)), f"{name} {size} changed its inputs"
    return inputs, outputs[0], outputs[1]


def main(seed: int) -> None:
    runnable = [name for name in kernels.NAMES if not kernels.unsupported(name, CPU)]
    with deterministic(CPU):
        print(json.dumps({f"{name} {size}": hashes(name, size, seed) for name in runnable for size in kernels.SIZES}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
