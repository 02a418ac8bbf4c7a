"""Each collective once, so that NCCL chooses for it and says how. Nothing is timed and nothing compared here."""

from collections.abc import Callable

import torch
import torch.distributed as dist

# Renamed in torch 2.13, where the old names warn at every call.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_RUN: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "all_gather": lambda full_N, shard_S: _all_gather(full_N, shard_S),
    "all_reduce": lambda full_N, _: dist.all_reduce(full_N),
    "reduce_scatter": lambda full_N, shard_S: _reduce_scatter(shard_S, full_N),
}
COLLECTIVES = tuple(_RUN)


def run(num_bytes: int, device: torch.device) -> int:
    """Runs every collective; returns the bytes of the whole message, which are whole fp32 elements for each rank. Collective."""
    world_size = dist.get_world_size()
    num_elements = num_bytes // 4 // world_size * world_size
    if num_elements < 1:
        raise ValueError(f"num_bytes={num_bytes}: less than one fp32 element for each of {world_size} ranks")
    full_N, shard_S = (torch.zeros(size, device=device) for size in (num_elements, num_elements // world_size))
    for collective in _RUN.values():
        collective(full_N, shard_S)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 4 * num_elements
