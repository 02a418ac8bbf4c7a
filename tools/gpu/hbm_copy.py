"""Two ways to copy in one GPU's memory, in turns on the same arrays: `python tools/gpu/hbm_copy.py`. Lines of JSON.

`mul` is the copy of the `hbm` subject, a kernel that computes, as STREAM's; `copy_` asks the driver to copy, and its kernel is another.
pytest does not collect this file.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from gpu_acceptance.measure.hbm import KERNELS, num_bytes
from gpu_acceptance.measure.timing import time_blocks

ARRAY_BYTES, NUM_TURNS = 4 * 2**30, 5


def main() -> None:
    device = torch.device("cuda", 0)
    out, x = (torch.randn(ARRAY_BYTES // 4, device=device) for _ in range(2))
    ways = {"mul": lambda: KERNELS["copy"].run(out, x, x), "copy_": lambda: out.copy_(x)}
    for _ in range(NUM_TURNS):
        for way, run in ways.items():
            blocks = time_blocks(run, device=device, num_blocks=7, block_s=0.15, warmup_s=0.15)
            line = {"way": way, "gb_per_s": num_bytes("copy", ARRAY_BYTES) / blocks.median_s / 1e9, "block_cv_percent": blocks.cv_percent}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
