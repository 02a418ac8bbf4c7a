"""Another process that takes about a share of one GPU's time: `python tools/gpu/competitor.py GPU PERCENT SECONDS`. For planted faults.

It multiplies in bursts and rests in between; the length of the rests is reckoned from the burst on a GPU that does nothing else, which
the caller sees to when it starts. pytest does not collect this file.
"""

import sys
import time
from collections.abc import Callable

import torch

SIZE, NUM_PRODUCTS = 4096, 20  # some 4 ms on an H200


def main(gpu: int, percent: float, seconds: float) -> None:
    device = torch.device("cuda", gpu)
    one = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(one)

    def burst() -> None:
        for _ in range(NUM_PRODUCTS):
            torch.mm(one, one, out=out)
        torch.cuda.synchronize(device)

    in_bursts(burst, f"GPU {gpu}", percent, seconds)


def in_bursts(burst: Callable[[], None], who: str, percent: float, seconds: float) -> None:
    """Bursts for about so much of the time."""
    burst()
    begin_s = time.monotonic()
    for _ in range(10):
        burst()
    burst_s = (time.monotonic() - begin_s) / 10
    print(f"{who}: bursts of {1e3 * burst_s:.2f} ms, {percent} % of the time", flush=True)
    end_s = time.monotonic() + seconds
    next_s = time.monotonic()
    while time.monotonic() < end_s:
        burst()
        next_s += burst_s / percent * 100
        time.sleep(max(0.0, next_s - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
