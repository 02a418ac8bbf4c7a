"""Forming the world: the device of this rank and the process group of one generation of workers."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """Where a generation meets. `prefix` is fresh for each: a second group on the same keys hangs (pytorch#55967)."""

    store_host: str
    store_port: int
    prefix: str
    rank: int
    world_size: int
    timeout_s: float


def open_device(local_rank: int, *, expects_gpu: bool) -> torch.device:
    """The GPU of this local rank, made current; the CPU on a machine without GPUs."""
    if not torch.cuda.is_available():
        if expects_gpu:
            raise RuntimeError(
                f"this node has GPUs, but torch {torch.__version__} sees none: is it a CPU build, or the driver too old for it?"
            )
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise RuntimeError(f"local rank {local_rank} has no GPU: torch sees {torch.cuda.device_count()} on this node")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def form_group(world: World, device: torch.device) -> None:
    """Starts the default process group and proves it with one all_reduce. Collective."""
    store = dist.TCPStore(world.store_host, world.store_port, None, is_master=False, timeout=timedelta(seconds=world.timeout_s))
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore(world.prefix, store),
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=world.timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    present = torch.ones(1, device=device)
    dist.all_reduce(present)
    if int(present) != world.world_size:
        raise RuntimeError(f"the first all_reduce counted {int(present)} ranks, the launcher promised {world.world_size}")


def device_facts(device: torch.device) -> dict[str, str]:
    """What only a process that opened the device can tell: its UUID, as NVML writes it, and the libraries it runs on."""
    facts = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        facts["gpu_uuid"] = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        facts["cuda"] = torch.version.cuda or ""
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts


def wait_for_device() -> None:
    """Returns when everything this process gave to its GPU is done; raises RuntimeError where the GPU reports an error."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def collectives_issued() -> int:
    """Collectives that this rank has issued on the default group; 0 without one. Equal on all ranks, or one waits for what never comes."""
    if not dist.is_initialized():
        return 0
    return int(dist.distributed_c10d._get_default_group()._get_sequence_number_for_group())  # type: ignore[attr-defined]
