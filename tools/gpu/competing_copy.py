"""Another process that loads one GPU's links: `python tools/gpu/competing_copy.py GPU PERCENT SECONDS`. For planted faults.

It copies from that GPU to each other in turn, and back, for about PERCENT of the time and rests in between; the length of the rests is
reckoned from the bursts on GPUs that do nothing else, which the caller sees to when it starts. The links of each other GPU carry PERCENT
divided by the number of the others: 12 % of one of 4 GPUs is 4 % of each other, 20 % of one of 8 is 3 %, below a limit of 5 % (reckoned,
not measured).
pytest does not collect this file.
"""

import sys

import torch
from competitor import in_bursts

NUM_BYTES = 64 * 2**20  # some 0.17 ms at 390 GB/s


def main(gpu: int, percent: float, seconds: float) -> None:
    others = [index for index in range(torch.cuda.device_count()) if index != gpu]
    own = [torch.zeros(NUM_BYTES, dtype=torch.uint8, device=f"cuda:{gpu}") for _ in range(2)]
    theirs = {other: [torch.zeros(NUM_BYTES, dtype=torch.uint8, device=f"cuda:{other}") for _ in range(2)] for other in others}

    def burst() -> None:
        for other in others:
            theirs[other][0].copy_(own[0], non_blocking=True)
            own[1].copy_(theirs[other][1], non_blocking=True)
        for device in (gpu, *others):
            torch.cuda.synchronize(device)

    in_bursts(burst, f"GPU {gpu}, to and from {len(others)} others", percent, seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
