"""Forming the world: the device of this rank and the process group of one generation of workers."""

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


def open_device(local_rank: int) -> torch.device:
    """The GPU of this local rank, made current; the CPU where torch sees no GPU."""
    if not torch.cuda.is_available():
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


class Flags:
    """The torch settings that a validation may change and that must not leak into the next one."""

    def __init__(self) -> None:
        self._saved = self._read()

    def restore(self) -> None:
        """Puts all settings back and gives cached GPU memory back to the driver."""
        saved = self._saved
        torch.backends.cudnn.benchmark = saved["cudnn.benchmark"]
        torch.backends.cudnn.allow_tf32 = saved["cudnn.allow_tf32"]
        torch.backends.cuda.matmul.allow_tf32 = saved["matmul.allow_tf32"]
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = saved["matmul.bf16_reduced"]
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = saved["matmul.fp16_reduced"]
        torch.use_deterministic_algorithms(saved["deterministic"])
        torch.set_default_dtype(saved["default_dtype"])
        torch.set_grad_enabled(saved["grad"])
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    @staticmethod
    def _read() -> dict[str, Any]:
        return {
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "matmul.bf16_reduced": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            "matmul.fp16_reduced": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "default_dtype": torch.get_default_dtype(),
            "grad": torch.is_grad_enabled(),
        }
