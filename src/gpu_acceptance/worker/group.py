"""Forming the world: the device of this rank and the process group of one generation of workers."""

from datetime import timedelta

import torch
import torch.distributed as dist

from gpu_acceptance.inventory import libraries
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.worker.messages import World


class BlindTorchError(RuntimeError):
    """Torch cannot use the GPUs that are there."""

    cause = Cause.TORCH_SEES_NO_GPU


def open_device(local_rank: int, *, expects_gpu: bool) -> torch.device:
    """The GPU of this local rank, made current; the CPU on a machine without GPUs."""
    if not torch.cuda.is_available():
        if expects_gpu:
            raise BlindTorchError(
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
    wait_for_device()
    if int(present) != world.world_size:
        raise RuntimeError(f"the first all_reduce counted {int(present)} ranks, the launcher promised {world.world_size}")


def device_facts(device: torch.device) -> dict[str, str]:
    """What only a process that opened the device can tell: its UUID, as NVML writes it, and the libraries it runs on."""
    facts = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        facts["gpu_uuid"] = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        facts["cuda"] = torch.version.cuda or ""
        facts["libnccl"] = _mapped_nccl()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts


def _mapped_nccl() -> str:
    """The files that this process really has mapped, whatever was installed or meant to be found."""
    nccl = libraries.read().nccl
    return str(nccl) if isinstance(nccl, Missing) else ", ".join(library.path for library in nccl)


def wait_for_device() -> None:
    """Returns when everything this process gave to its GPU is done; raises RuntimeError where the GPU reports an error."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def release_cached_memory() -> None:
    """Gives GPU memory that torch keeps for later back to the driver."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def seal(number: int, device: torch.device) -> str:
    """Empty where every rank of every group still holds the same place in its order of collectives; else what was seen. Collective.

    A collective that only some ranks issued would silently pair with a later one of the others. One more, of a number that all know,
    brings that out: it comes back wrong, or never, within the validation that is to blame.
    """
    groups = sorted(
        dist.distributed_c10d._world.pg_names.items(), key=lambda item: item[1]
    )  # one order everywhere: no rank waits in a circle
    for group, name in groups:
        own = torch.full((1,), number, dtype=torch.int64, device=device)
        every = [torch.zeros_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, own, group=group)
        wait_for_device()
        numbers = [int(one) for one in every]
        if numbers != [number] * len(numbers):
            return f"a collective more on group {name} brought {numbers}, not {number} from every rank: ranks issued different collectives"
    return ""
