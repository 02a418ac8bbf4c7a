"""Whether collectives give exact results, whatever their speed: integers, compared bit for bit, at sizes that take different ways.

One element for each rank; a size that no power of 2 divides; the largest. NCCL chooses protocol and number of channels by size.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpu_acceptance.measure.collectives import BYTES_PER_ELEMENT, NAMES
from gpu_acceptance.measure.nccl import count_wrong

_SMALLER = 128  # the size in the middle is so many times smaller than the largest


@dataclass(frozen=True)
class ExactResult:
    """Of this rank."""

    num_operations: int
    num_planted: int  # elements that a drill spoiled
    wrong_by_operation: dict[str, int]  # "all_reduce of 16 bytes" -> wrong elements; only where there are any

    @property
    def num_wrong(self) -> int:
        return sum(self.wrong_by_operation.values())

    @property
    def wrong(self) -> str:
        """For a message: "all_reduce of 16 bytes: 1; ..."."""
        return "; ".join(f"{operation}: {number}" for operation, number in self.wrong_by_operation.items())


def measure(*, largest_bytes: int, device: torch.device, num_planted: int = 0) -> ExactResult:
    """Run each collective once at each of three sizes; in a world of one rank, all_reduce alone. Collective.

    `num_planted`: a drill. So many elements of this rank's last all_reduce are changed and must be found.
    """
    world_size = dist.get_world_size()
    collectives = [name for name in NAMES if world_size > 1 or name == "all_reduce"]
    each = BYTES_PER_ELEMENT * world_size
    sizes = sorted({each, largest_bytes // _SMALLER // each * each + each, largest_bytes})  # of a small largest one two may be the same
    operations = [(collective, num_bytes) for num_bytes in sizes for collective in collectives]
    planted_in = ("all_reduce", largest_bytes)
    counts = {
        f"{collective} of {num_bytes} bytes": count_wrong(
            collective, num_bytes=num_bytes, device=device, num_planted=num_planted if (collective, num_bytes) == planted_in else 0
        )
        for collective, num_bytes in operations
    }
    return ExactResult(len(operations), num_planted, {operation: count for operation, count in counts.items() if count})
