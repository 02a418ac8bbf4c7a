"""Collectives: the call, the buffers and the bus factor of each by nccl-tests, and messages whose exact result is known.

doc/PERFORMANCE.md of nccl-tests has the derivations of the bus factors. A message holds integers that differ by rank and index, and whose
sums fp32 holds exactly. So a collective's output can be compared bit for bit, whatever the order of the sums. Element `index` of a rank's
message is index % period * slope + offset; the sum over ranks has the same form. Messages are made a chunk at a time.
Tensor suffixes: N elements of the whole message, S of one rank's shard (N / world size).
"""

from collections.abc import Callable, Iterator, Sequence
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
_MOST_PROBLEM = 400  # characters of one rank's error; those of 1,000 ranks go through one message of the control store
_MOST_RANKS_NAMED = 4
_CHUNK = 2**24  # elements: 64 MiB of fp32
_EXACT = 2**24  # fp32 holds every integer up to here
T = TypeVar("T")
Part = tuple[int | None, Sequence[int]]  # which shard of a message, None: all of it; the sum over these ranks


@dataclass(frozen=True)
class _Collective:
    bus_factor: Callable[[int], float]
    run: Callable[[Tensor, Tensor, Group], object]  # input, output, group
    parts: Callable[[int, int], tuple[list[Part], list[Part]]]  # rank, world size -> its input and the output that it must then hold
    is_sharded: bool = False  # the message is made of one shard for each rank
    is_in_place: bool = True  # the input is the output, or a part of it


def _send_to_next(input_N: Tensor, output_N: Tensor, group: Group) -> None:
    """Send to the next rank of a ring and receive from the one before, at once, as sendrecv_perf does."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    send = dist.P2POp(dist.isend, input_N, group=group, group_peer=(rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, output_N, group=group, group_peer=(rank - 1) % world_size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def _others_part(world_size: int) -> float:
    return (world_size - 1) / world_size


# all_gather works in place as FSDP calls it (`all_gather_copy_in`). That keeps a local copy out of a figure about links: on 2 GPUs, where
# it counts most, another placement of the buffers alone moved the figure from 292 to 286 GB/s out of place, from 310 to 307 in place
# (reports/evidence/all-gather-2-gpus.jsonl). reduce_scatter in place would sum up what it has summed.
_COLLECTIVES = {
    "all_gather": _Collective(
        _others_part,
        lambda shard_S, full_N, group: all_gather(full_N, shard_S, group=group),
        lambda rank, n: ([(rank, [rank])], [(peer, [peer]) for peer in range(n)]),
        is_sharded=True,
    ),
    "all_reduce": _Collective(
        lambda n: 2 * _others_part(n),
        lambda _, full_N, group: dist.all_reduce(full_N, group=group),
        lambda rank, n: ([(None, [rank])], [(None, range(n))]),
    ),
    "reduce_scatter": _Collective(
        _others_part,
        lambda full_N, shard_S, group: _reduce_scatter(shard_S, full_N, group=group),
        lambda rank, n: ([(None, [rank])], [(rank, range(n))]),
        is_sharded=True,
        is_in_place=False,
    ),
    "all_to_all": _Collective(
        _others_part,
        lambda input_N, output_N, group: dist.all_to_all_single(output_N, input_N, group=group),
        lambda rank, n: ([(None, [rank])], [(rank, [peer]) for peer in range(n)]),
        is_sharded=True,
        is_in_place=False,
    ),
    "broadcast": _Collective(
        lambda _: 1.0,
        lambda _, full_N, group: dist.broadcast(full_N, group=group, group_src=ROOT),
        lambda rank, n: ([(None, [ROOT])] * (rank == ROOT), [(None, [ROOT])]),
    ),
    "reduce": _Collective(
        lambda _: 1.0,
        lambda full_N, _, group: dist.reduce(full_N, group=group, group_dst=ROOT),
        lambda rank, n: ([(None, [rank])], [(None, range(n))] * (rank == ROOT)),  # nothing is promised to the others
    ),
    "send_recv": _Collective(
        lambda _: 1.0, _send_to_next, lambda rank, n: ([(None, [rank])], [(None, [(rank - 1) % n])]), is_in_place=False
    ),
}
NAMES = tuple(_COLLECTIVES)


def bus_factor(collective: str, world_size: int) -> float:
    """Return the part of the message that every link must carry: 0.875 for all_gather on 8 ranks."""
    return _COLLECTIVES[collective].bus_factor(world_size)


def split(places: Sequence[int], rank: int) -> dist.ProcessGroup:
    """Return the group of all ranks whose place is that of `rank`; it may be alone. `places`: of each rank. Collective over all ranks.

    NCCL makes such a group by splitting the communicator of all ranks (ncclCommSplit), and each of them has to call it. On 2 H200 the
    others were seen to wait for a rank that did not.
    """
    own = [other for other, place in enumerate(places) if place == places[rank]]
    group: dist.ProcessGroup = dist.new_group(own, use_local_synchronization=True)
    return group


def largest(number: int, device: torch.device, group: Group = None) -> int:
    """Return the largest of one integer from each rank. Acts as a barrier, and leaves the device idle. Collective."""
    tensor = torch.tensor(number, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    return int(tensor.item())


def over_ranks(own: list[float], device: torch.device, group: Group = None) -> list[list[float]]:
    """Return each number of every rank, by rank. Collective."""
    every = torch.empty(len(own) * dist.get_world_size(group), dtype=torch.float64, device=device)
    all_gather(every, torch.tensor(own, dtype=torch.float64, device=device), group=group)
    columns: list[list[float]] = every.view(-1, len(own)).T.tolist()
    return columns


def texts_over_ranks(own: str, device: torch.device, group: Group = None) -> list[str]:
    """Return the text of every rank, by rank, each cut to 400 bytes. Collective."""
    content = bytearray(own.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))
    every = torch.empty(_TEXT_BYTES * dist.get_world_size(group), dtype=torch.uint8, device=device)
    all_gather(every, torch.frombuffer(content, dtype=torch.uint8).to(device), group=group)
    return [bytes(one).rstrip(b"\0").decode(errors="ignore") for one in every.view(-1, _TEXT_BYTES).tolist()]


class Buffers:
    """Uninitialised buffers that one collective reads and writes on this rank, and the integers that belong there.

    `num_bytes` is rounded down to whole elements, in a sharded message to as many for each rank, but to at least one.
    """

    def __init__(self, collective: str, num_bytes: int, device: torch.device, group: Group = None) -> None:
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        known = _COLLECTIVES[collective]
        num_parts = world_size if known.is_sharded else 1
        num_elements = max(1, num_bytes // BYTES_PER_ELEMENT // num_parts) * num_parts
        wanted_bytes = num_elements * BYTES_PER_ELEMENT * (1 if known.is_in_place else 2)
        if device.type == "cuda" and wanted_bytes > (free_bytes := torch.cuda.mem_get_info(device)[0]):
            raise ValueError(f"buffers of {wanted_bytes} bytes on {device}: only {free_bytes} bytes are free")
        self.num_bytes, self.device, self.group, self._run = BYTES_PER_ELEMENT * num_elements, device, group, known.run
        self.given, self.expected = values_of(collective, num_elements, rank, world_size)
        if known.is_in_place:
            full_N = torch.empty(num_elements, device=device)
            sides = [full_N[values[0].start : values[-1].stop] if values else full_N[:0] for values in (self.given, self.expected)]
        else:
            sides = [torch.empty(sum(map(len, values)), device=device) for values in (self.given, self.expected)]
        self.input, self.output = sides

    def run(self) -> None:
        """Enqueue one operation. Collective."""
        self._run(self.input, self.output, self.group)


def together(work: Callable[[], T], share: Callable[[str], Sequence[str]]) -> T:
    """Run `work`, and return its result once all ranks are through with theirs. Collective.

    `work` waits for no other rank. If it raised on any rank, OSError is raised on all: it names those ranks and their errors. `share` gives
    a text to all ranks, and returns that of each.
    """
    done, problem = list[T](), ""
    try:
        done.append(work())
    except Exception as error:  # of any kind: no rank may go on alone
        ascii_text = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()  # a character is one byte
        problem = ascii_text[:_MOST_PROBLEM]
    problems = [f"rank {rank}: {text}" for rank, text in enumerate(share(problem)) if text]
    if problems:
        raise OSError("; ".join(first_few(problems, _MOST_RANKS_NAMED, "{} ranks more")))
    return done[0]


@dataclass(frozen=True)
class Integers:
    """Elements `start` to `stop` of a message whose element `index` is index % period * slope + offset."""

    start: int
    stop: int
    period: int
    slope: int
    offset: int

    def __len__(self) -> int:
        return self.stop - self.start


def slope(rank: int) -> int:
    return 1 + rank % 3


def offset(rank: int) -> int:
    return 1 + rank  # not zero: no rank's own element equals the sum, not even at index 0


def period(world_size: int) -> int:
    """Return the longest odd period with which the sum over ranks is exact; odd, because NCCL works in pieces of 2**k elements."""
    room = _EXACT - 1 - sum(map(offset, range(world_size)))
    longest = room // sum(map(slope, range(world_size)))
    if longest < 100:
        raise ValueError(f"no message for {world_size} ranks: its sum would not be exact in fp32")
    return (longest - 1) | 1


def values_of(collective: str, num_elements: int, rank: int, world_size: int) -> tuple[list[Integers], list[Integers]]:
    """Return the input of a rank, and the output that it must then hold, each in order; nothing where it has none."""
    shard, longest = num_elements // world_size, period(world_size)

    def values(place: int | None, ranks: Sequence[int]) -> Integers:
        start, stop = (0, num_elements) if place is None else (shard * place, shard * (place + 1))
        return Integers(start, stop, longest, sum(map(slope, ranks)), sum(map(offset, ranks)))

    inputs, outputs = _COLLECTIVES[collective].parts(rank, world_size)
    return [values(*part) for part in inputs], [values(*part) for part in outputs]


def write(tensor: Tensor, values: Sequence[Integers]) -> None:
    """Fill the tensor with the values, one after the other."""
    for part, expected in _chunks(tensor, values):
        part.copy_(expected)


def num_different(tensor: Tensor, values: Sequence[Integers]) -> int:
    """Count the elements whose bits are not those of the values, one after the other."""
    return sum((int((part.view(torch.int32) != expected.view(torch.int32)).sum()) for part, expected in _chunks(tensor, values)), 0)


def _chunks(tensor: Tensor, values: Sequence[Integers]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every chunk of the tensor with the values that belong there."""
    done = 0
    for one in values:
        for start in range(one.start, one.stop, _CHUNK):
            index = torch.arange(start, min(start + _CHUNK, one.stop), device=tensor.device)
            yield tensor[done : done + len(index)], (index % one.period * one.slope + one.offset).float()
            done += len(index)
    assert done == len(tensor), f"{done} values for a tensor of {len(tensor)}"
