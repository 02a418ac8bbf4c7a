"""The process group of a worker, and its last collective on each group."""

import json
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from gpu_acceptance.inventory import versions
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.record.row import MOST_COLLECTIVES, LastCollective
from gpu_acceptance.worker.messages import World

_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # NCCL's own; every other backend's


class BlindTorchError(RuntimeError):
    """torch cannot use the GPUs that are there."""

    cause = Cause.TORCH_SEES_NO_GPU


def open_device(local_rank: int, *, expects_gpu: bool) -> torch.device:
    """Return the GPU of this local rank, made current; the CPU on a machine without GPUs."""
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
    """Start the default process group and prove it with one all_reduce. Collective."""
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
    """Return facts that only a process with an open device has: its UUID, as NVML writes it, and the libraries that it has mapped."""
    facts = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        nccl = versions.read_libraries().nccl
        facts["gpu_uuid"] = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        facts["cuda"] = torch.version.cuda or ""
        facts["libnccl"] = str(nccl) if isinstance(nccl, Missing) else ", ".join(library.path for library in nccl)
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return facts


def wait_for_device() -> None:
    """Wait for all work of this process on its GPU. Raises RuntimeError where the GPU reports an error."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def release_cached_memory() -> None:
    """Give GPU memory that torch keeps for later back to the driver."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def collective_fence(number: int, device: torch.device) -> str:
    """Run one more collective on each group. Return an empty text where all ranks paired; else a description. Collective.

    A collective that only some ranks issued would silently pair with a later one of the others. The fence, with a number that all know,
    shows that: it comes back wrong, or never, within the validation that is to blame.
    """
    groups = sorted(dist.distributed_c10d._world.pg_names.items(), key=lambda item: item[1])  # one order on all ranks
    for group, name in groups:
        own = torch.full((1,), number, dtype=torch.int64, device=device)
        every = [torch.zeros_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, own, group=group)
        wait_for_device()
        numbers = [int(one) for one in every]
        if numbers != [number] * len(numbers):
            return f"a collective more on group {name} brought {numbers}, not {number} from every rank: ranks issued different collectives"
    return ""


def answer_when_asked(bell_fd: int, file: Path) -> None:
    """Start a thread that writes the last collectives to `file` once a byte arrives on `bell_fd`."""
    threading.Thread(target=_answer, args=(bell_fd, file), daemon=True, name="last-collectives").start()


def _answer(bell_fd: int, file: Path) -> None:
    if not os.read(bell_fd, 1):
        return  # the supervisor is gone
    found: list[LastCollective] = []
    for name in _RECORDERS:
        if dump := getattr(c10d, name, None):
            found += last_collectives(json.loads(dump(True, False)))
    part = file.with_suffix(".part")
    part.write_text(json.dumps([one.model_dump() for one in found[:MOST_COLLECTIVES]]), encoding="utf-8")
    part.replace(file)


def last_collectives(dump: dict[str, Any]) -> list[LastCollective]:
    """Return the last collective of every group in a recorder's dump, or the first that has not ended, by the names of the groups.

    Operations that went to the device as one, such as `batch_isend_irecv`, share a number, and torch sees the end of the last one alone
    (pytorch#137969): that one stands for all.
    """
    entries = dump.get("entries", [])
    launched = {(*entry["process_group"], entry["is_p2p"], _number(entry)): entry for entry in entries}  # oldest first
    last: dict[str, dict[str, Any]] = {}
    for entry in launched.values():
        number, description = entry["process_group"]
        # One name for one group on all its ranks, and no other's: several groups may share a description.
        group = description if description == "default_pg" else " ".join(part for part in (description, number) if part != "undefined")
        # `state` says `completed` too soon: of a collective that NCCL has not launched yet (seen, 2.11). torch retires what it saw end.
        if group not in last or last[group]["retired"]:
            last[group] = entry
    return [
        LastCollective(
            group=group[:200],
            number=_number(entry),
            is_p2p=entry["is_p2p"],
            operation=f"{entry['profiling_name']} {entry['input_sizes']} {' '.join(entry['input_dtypes'])}"[:300],
            finished=bool(entry["retired"]),
        )
        for group, entry in sorted(last.items())
    ]


def _number(entry: dict[str, Any]) -> int:
    number: int = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    return number
