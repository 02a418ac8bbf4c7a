"""Forming the world: the device of this rank and the process group of one generation of workers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

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


_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "cudnn.benchmark": (lambda: _CUDNN.benchmark, lambda value: setattr(_CUDNN, "benchmark", value)),
    "cudnn.fp32_precision": (lambda: _CUDNN.fp32_precision, lambda value: setattr(_CUDNN, "fp32_precision", value)),
    "matmul.fp32_precision": (lambda: _MATMUL.fp32_precision, lambda value: setattr(_MATMUL, "fp32_precision", value)),
    "matmul.bf16_reduced": (
        lambda: _MATMUL.allow_bf16_reduced_precision_reduction,
        lambda value: setattr(_MATMUL, "allow_bf16_reduced_precision_reduction", value),
    ),
    "matmul.fp16_reduced": (
        lambda: _MATMUL.allow_fp16_reduced_precision_reduction,
        lambda value: setattr(_MATMUL, "allow_fp16_reduced_precision_reduction", value),
    ),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
}


class Flags:
    """The torch settings that a validation may change and that must not leak into the next one."""

    def __init__(self) -> None:
        self._saved = {name: read() for name, (read, _) in _SETTINGS.items()}

    def restore(self) -> None:
        """Puts back what changed and gives cached GPU memory back to the driver."""
        for name, (read, write) in _SETTINGS.items():
            if read() != self._saved[name]:  # a write may import half of torch
                write(self._saved[name])
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
