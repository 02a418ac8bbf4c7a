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
    nccl = versions.read_libraries().nccl
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


def answer_when_asked(bell_fd: int, file: Path) -> None:
    """Starts the thread that writes `file` once a byte arrives on `bell_fd`."""
    threading.Thread(target=_answer, args=(bell_fd, file), daemon=True, name="last-collectives").start()


def last_collectives(dump: dict[str, Any]) -> list[LastCollective]:
    """Of every group of a recorder's dump, in the order of their names."""
    place: dict[str, dict[str, Any]] = {}
    for entry in _launched(dump.get("entries", [])):
        group = _name(*entry["process_group"])
        if group not in place or _finished(place[group]):
            place[group] = entry
    return [_read(group, entry) for group, entry in sorted(place.items())]


def _launched(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Oldest first, and of those that went to the device as one, such as `batch_isend_irecv`, the last.

    They share a number, and torch sees the end of the last one alone (pytorch#137969).
    """
    return list({(*entry["process_group"], entry["is_p2p"], _number(entry)): entry for entry in entries}.values())


def _answer(bell_fd: int, file: Path) -> None:
    if not os.read(bell_fd, 1):
        return  # the supervisor is gone
    told: list[LastCollective] = []
    for name in _RECORDERS:
        if dump := getattr(c10d, name, None):
            told += last_collectives(json.loads(dump(True, False)))
    part = file.with_suffix(".part")
    part.write_text(json.dumps([one.model_dump() for one in told[:MOST_COLLECTIVES]]), encoding="utf-8")
    part.replace(file)


def _name(number: str, description: str) -> str:
    """One name for one group on all its ranks, and no other's: several groups may share a description."""
    return description if description == "default_pg" else " ".join(part for part in (description, number) if part != "undefined")


def _finished(entry: dict[str, Any]) -> bool:
    """Whether torch saw its end. Its `state` says `completed` too soon: of a collective that NCCL has not launched yet (seen, 2.11)."""
    return bool(entry["retired"])


def _read(group: str, entry: dict[str, Any]) -> LastCollective:
    operation = f"{entry['profiling_name']} {entry['input_sizes']} {' '.join(entry['input_dtypes'])}"
    return LastCollective(
        group=group[:200], number=_number(entry), is_p2p=entry["is_p2p"], operation=operation[:300], finished=_finished(entry)
    )


def _number(entry: dict[str, Any]) -> int:
    number: int = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    return number
