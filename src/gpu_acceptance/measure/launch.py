"""Time that the host needs to start a small kernel, and to start one and wait for it.

A training step of a large model starts thousands of kernels. A host that starts them slowly (power-saving CPU governor,
overcommitted virtual machine, a debugger left in the environment) keeps a sound GPU waiting, and no bandwidth shows it.
The kernel adds 1 to 1,024 integers in place, so that each start is counted: at the end every element must equal their number.
"""

from dataclasses import dataclass

import torch

from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.timing import time_blocks, wait_for

_NUM_ELEMENTS = 1024
_BLOCK_S = 0.1  # some 10,000 kernels


@dataclass(frozen=True)
class LaunchResult:
    """Small kernels on one device, started one after the other from one thread of PyTorch."""

    kernel_us: float  # one kernel of a row without a wait between them: median block
    spread: Spread  # of these blocks
    round_trip_us: float  # start one kernel and wait until the device is idle: median block
    num_wrong: int  # elements that do not equal the number of kernels


def measure(*, device: torch.device, num_blocks: int) -> LaunchResult:
    """Time small kernels on an idle device, in blocks, and compare the elements with the number of kernels."""
    elements, num_kernels = torch.zeros(_NUM_ELEMENTS, dtype=torch.int64, device=device), 0

    def add() -> None:
        nonlocal num_kernels
        elements.add_(1)
        num_kernels += 1

    def add_and_wait() -> None:
        add()
        wait_for(device)

    kernel = time_blocks(add, device=device, num_blocks=num_blocks, block_s=_BLOCK_S, warmup_s=_BLOCK_S)
    round_trip = time_blocks(add_and_wait, device=device, num_blocks=num_blocks, block_s=_BLOCK_S, warmup_s=_BLOCK_S)
    spread, num_wrong = Spread(kernel.cv_percent, 1e6 * kernel.best_s), int((elements != num_kernels).sum())
    return LaunchResult(1e6 * kernel.median_s, spread, 1e6 * round_trip.median_s, num_wrong)
