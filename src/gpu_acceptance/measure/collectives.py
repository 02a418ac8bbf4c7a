"""The collectives: what each reads and writes, its call, and its bus factor by nccl-tests (its doc/PERFORMANCE.md has the derivations).

Tensor suffixes: N elements of the whole message, S of one rank's shard (N / world size).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gpu_acceptance.base.text import first_few

# Renamed in torch 2.13, where the old names warn at every call.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Group = dist.ProcessGroup | None  # None: all ranks
ROOT = 0  # of broadcast and reduce, as a rank of the group
BYTES_PER_ELEMENT = 4  # fp32
_TEXT_BYTES = 400
_MOST_PROBLEM = 400  # characters of what one rank says; those of 1,000 ranks go through one message of the control store
_MOST_RANKS_NAMED = 4
T = TypeVar("T")


@dataclass(frozen=True)
class _Collective:
    bus_factor: Callable[[int], float]
    run: Callable[[Tensor, Tensor, Group], object]  # input, output, group
    is_sharded: bool  # its message is made of one shard for each rank
    is_in_place: bool  # the input is the output, or a part of it


def _send_to_next(input_N: Tensor, output_N: Tensor, group: Group) -> None:
    """A ring in which every rank sends and receives at once, as sendrecv_perf has it."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    send = dist.P2POp(dist.isend, input_N, group=group, group_peer=(rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, output_N, group=group, group_peer=(rank - 1) % world_size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def _of_others(world_size: int) -> float:
    return (world_size - 1) / world_size


# all_gather works in place as FSDP calls it (`all_gather_copy_in`). That keeps a local copy out of a figure about links: on 2 GPUs, where
# it counts most, another placement of the buffers alone moved the figure from 292 to 286 GB/s out of place, from 310 to 307 in place
# (reports/evidence/all-gather-2-gpus.jsonl). reduce_scatter in place would sum up what it has summed.
_COLLECTIVES = {
    "all_gather": _Collective(
        _of_others, lambda shard_S, full_N, group: all_gather(full_N, shard_S, group=group), is_sharded=True, is_in_place=True
    ),
    "all_reduce": _Collective(
        lambda n: 2 * _of_others(n), lambda _, full_N, group: dist.all_reduce(full_N, group=group), is_sharded=False, is_in_place=True
    ),
    "reduce_scatter": _Collective(
        _of_others, lambda full_N, shard_S, group: _reduce_scatter(shard_S, full_N, group=group), is_sharded=True, is_in_place=False
    ),
    "all_to_all": _Collective(
        _of_others,
        lambda input_N, output_N, group: dist.all_to_all_single(output_N, input_N, group=group),
        is_sharded=True,
        is_in_place=False,
    ),
    "broadcast": _Collective(
        lambda _: 1.0, lambda _, full_N, group: dist.broadcast(full_N, group=group, group_src=ROOT), is_sharded=False, is_in_place=True
    ),
    "reduce": _Collective(
        lambda _: 1.0, lambda full_N, _, group: dist.reduce(full_N, group=group, group_dst=ROOT), is_sharded=False, is_in_place=True
    ),
    "send_recv": _Collective(lambda _: 1.0, _send_to_next, is_sharded=False, is_in_place=False),
}
NAMES = tuple(_COLLECTIVES)


def bus_factor(collective: str, world_size: int) -> float:
    """Part of the message every link must carry: 0.875 for all_gather on 8 ranks."""
    return _found(collective).bus_factor(world_size)


def _found(collective: str) -> _Collective:
    if collective not in _COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r}; known: {', '.join(NAMES)}")
    return _COLLECTIVES[collective]


def split(places: Sequence[int], rank: int) -> dist.ProcessGroup:
    """The group of the ranks in the place of `rank`, from the place of each, though it be alone there. Collective over all ranks.

    NCCL makes such a group by splitting the communicator of all ranks (ncclCommSplit), and each of them has to call it: a rank that did
    not was seen to leave the others waiting on 2 H200.
    """
    own = [other for other, place in enumerate(places) if place == places[rank]]
    group: dist.ProcessGroup = dist.new_group(own, use_local_synchronization=True)
    return group


def largest(number: int, device: torch.device, group: Group = None) -> int:
    """The largest of one integer from each rank; nobody leaves before everybody came, and the device is idle. Collective."""
    tensor = torch.tensor(number, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    return int(tensor.item())


def over_ranks(own: list[float], device: torch.device, group: Group = None) -> list[list[float]]:
    """Each number of every rank, by rank. Collective."""
    every = torch.empty(len(own) * dist.get_world_size(group), dtype=torch.float64, device=device)
    all_gather(every, torch.tensor(own, dtype=torch.float64, device=device), group=group)
    columns: list[list[float]] = every.view(-1, len(own)).T.tolist()
    return columns


def texts_over_ranks(own: str, device: torch.device, group: Group = None) -> list[str]:
    """A text of every rank, by rank; each as far as it has no more than 400 bytes. Collective."""
    content = bytearray(own.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))
    every = torch.empty(_TEXT_BYTES * dist.get_world_size(group), dtype=torch.uint8, device=device)
    all_gather(every, torch.frombuffer(content, dtype=torch.uint8).to(device), group=group)
    return [bytes(one).rstrip(b"\0").decode(errors="ignore") for one in every.view(-1, _TEXT_BYTES).tolist()]


class Buffers:
    """What one collective reads and writes on this rank, uninitialised.

    `num_bytes` is rounded down to whole elements, of a message of shards to as many for each rank, but to no less than one.
    """

    def __init__(self, collective: str, num_bytes: int, device: torch.device, group: Group = None) -> None:
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        known = _found(collective)
        if num_bytes < 1:
            raise ValueError(f"num_bytes={num_bytes}: at least 1")
        num_parts = world_size if known.is_sharded else 1
        num_elements = max(1, num_bytes // BYTES_PER_ELEMENT // num_parts) * num_parts
        _refuse_too_much(num_elements * BYTES_PER_ELEMENT * (1 if known.is_in_place else 2), device)
        self.collective, self.num_bytes, self.device = collective, BYTES_PER_ELEMENT * num_elements, device
        self.group, self._run = group, known.run
        full_N = torch.empty(num_elements, device=device)
        nothing = full_N[:0]  # what a rank neither gives nor gets
        if collective == "all_gather":
            self.input, self.output = full_N.chunk(world_size)[rank], full_N
        elif collective == "broadcast":
            self.input, self.output = full_N if rank == ROOT else nothing, full_N
        elif collective == "reduce":
            self.input, self.output = full_N, full_N if rank == ROOT else nothing
        elif collective == "reduce_scatter":
            self.input, self.output = full_N, torch.empty(num_elements // world_size, device=device)
        else:
            self.input, self.output = full_N, full_N if known.is_in_place else torch.empty_like(full_N)

    def run(self) -> None:
        """One operation, enqueued. Collective."""
        self._run(self.input, self.output, self.group)


def _refuse_too_much(wanted_bytes: int, device: torch.device) -> None:
    if device.type == "cuda" and wanted_bytes > (free_bytes := torch.cuda.mem_get_info(device)[0]):
        raise ValueError(f"buffers of {wanted_bytes} bytes on {device}: only {free_bytes} bytes are free")


def together(work: Callable[[], T], share: Callable[[str], Sequence[str]]) -> T:
    """Runs `work`, and returns what it returned, once all ranks are through with theirs. Collective.

    `work` waits for no other rank. Where it raised on some: OSError on all, which says on which of them and what. `share`: gives a text to
    all ranks, and returns that of each.
    """
    done, problem = list[T](), ""
    try:
        done.append(work())
    except Exception as error:  # of whatever kind: nobody may go on alone
        problem = _problem_text(error)
    told = [f"rank {rank}: {text}" for rank, text in enumerate(share(problem)) if text]
    if told:
        raise OSError("; ".join(first_few(told, _MOST_RANKS_NAMED, "{} ranks more")))
    return done[0]


def _problem_text(problem: Exception) -> str:
    """In ASCII, of which a character is one byte."""
    return f"{type(problem).__name__}: {problem}".encode("ascii", "backslashreplace").decode()[:_MOST_PROBLEM]
