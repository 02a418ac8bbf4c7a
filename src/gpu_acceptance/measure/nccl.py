"""Speed and correctness of a collective, in the terms of nccl-tests.

algbw = bytes / time. The bytes are the whole message: the output of every rank for all_gather, the input for reduce_scatter.
busbw = algbw x bus factor, so that it compares with link speed at any world size. GB = 1e9 bytes.
"""

import importlib.util
import itertools
import math
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from gpu_acceptance.measure import collectives
from gpu_acceptance.measure.collectives import BYTES_PER_ELEMENT, NAMES, Buffers, Group, bus_factor, largest, over_ranks, split
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.timing import Blocks, p99, time_blocks, time_each

LATENCY_BYTES = 2**20  # up to here latency dominates, and the time of a collective says more than its rate
_SMALLEST_BYTES, _STEP = 8, 64  # of a curve: 8 B, 512 B, 32 KiB, 2 MiB, 128 MiB, 8 GiB
_TINY = 1e-30  # repeated in-place sums grow as world_size**k; from here they need longest to reach infinity
_ALL_WAIT = {"all_gather", "all_reduce", "reduce_scatter"}  # in the others a rank does not wait for every other
_LATE = 0.9  # of the time that most ranks spend in an operation: they wait in it for late ranks, which spend less
LATENCY_ENVIRONMENT = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}  # a worker that captures must start with this
LATENCY_SIZES = (8, 32 * 2**10, 2**20)  # bytes
_IN_A_GRAPH = 100  # with 10, 10 to 20 us were read: the launch of a graph counts
_SMALLER = 128  # factor from the size in the middle to the largest
PROGRAM = "all_reduce_perf"
_TIMEOUT_S = 120.0
_MOST_SHOWN = 200  # characters of its output
# size, count, type, redop, root; time, algbw, busbw, #wrong out of place; the same in place
_ROW = re.compile(r"\s*(?P<bytes>\d+)\s+\d+\s+float\s+sum\s+-1(?:\s+\S+){4}\s+\S+\s+\S+\s+(?P<busbw>\d+(?:\.\d+)?)\s+\S+\s*", re.ASCII)


@dataclass(frozen=True)
class CollectiveResult:
    """One collective at one message size. Every rank gets the same numbers, except its own `num_wrong`."""

    num_bytes: int  # rounded down to whole elements (for every rank), as nccl-tests does
    elapsed_s: float  # one operation: median block, mean over ranks as nccl-tests does
    slowest_s: float  # median block of the slowest rank
    busbw_gb_per_s: float
    spread: Spread  # of the rank where it is largest; the best block of any rank
    p50_s: float  # of single operations, back to back; the rank where it is largest
    p99_s: float  # nearest rank; with fewer than 100 operations the longest one
    late: str  # names the ranks that others wait for; empty where there is none, or where a rank may be done before another has come
    num_wrong: int  # elements of this rank's output, from a separate, untimed operation on integers


def measure(
    collective: str,
    *,
    num_bytes: int,
    device: torch.device,
    block_s: float,
    num_blocks: int,
    min_iterations: int = 20,
    group: Group = None,
    hopeless_s: float = math.inf,
) -> CollectiveResult:
    """Time one collective over a process group, then count the wrong elements of one more operation. Collective there.

    `group`: all ranks unless one is given. Blocks have at least `min_iterations` operations; nccl-tests has 20. A message has at least one
    element, a sharded one at least one for each rank. `hopeless_s`: see `time_blocks`.
    """
    buffers = Buffers(collective, num_bytes, device, group)
    blocks, single_s = _time(buffers, block_s, num_blocks, min_iterations, hopeless_s)
    own = [blocks.median_s, blocks.best_s, blocks.cv_percent, statistics.median(single_s), p99(single_s), statistics.mean(single_s)]
    medians_s, bests_s, cvs_percent, p50s_s, p99s_s, means_s = over_ranks(own, device, group)
    elapsed_s = statistics.mean(medians_s)
    gb = moved_gb(collective, buffers.num_bytes, dist.get_world_size(group))
    return CollectiveResult(
        num_bytes=buffers.num_bytes,
        elapsed_s=elapsed_s,
        slowest_s=max(medians_s),
        busbw_gb_per_s=gb / elapsed_s,
        spread=Spread(max(cvs_percent), gb / min(bests_s), blocks.is_cut),
        p50_s=max(p50s_s),
        p99_s=max(p99s_s),
        late=late(means_s) if collective in _ALL_WAIT else "",
        num_wrong=_count_wrong(buffers, 0),
    )


def moved_gb(collective: str, num_bytes: int, world_size: int) -> float:
    """Return the GB of a message that every link must carry: over the seconds it is the bus bandwidth."""
    return num_bytes / 1e9 * bus_factor(collective, world_size)


def _time(buffers: Buffers, block_s: float, num_blocks: int, min_iterations: int, hopeless_s: float) -> tuple[Blocks, list[float]]:
    """Time blocks of equal length on all ranks, each after a barrier and on fresh values, and single operations. Collective."""
    device, group = buffers.device, buffers.group
    generator = torch.Generator(device).manual_seed(dist.get_rank(group))
    buffers.output.zero_()  # a rank may only receive, and the first run of a measurement must not find it uninitialised

    def start_together() -> None:
        buffers.input.normal_(std=_TINY, generator=generator)
        largest(0, device, group)

    blocks = time_blocks(
        buffers.run,
        device=device,
        num_blocks=num_blocks,
        block_s=block_s,
        min_iterations=min_iterations,
        warmup_s=block_s,
        before_block=start_together,
        agree=lambda num_iterations: largest(num_iterations, device, group),
        hopeless_s=hopeless_s,
    )
    if blocks.is_cut:
        return blocks, list(blocks.operation_s)
    start_together()
    return blocks, time_each(buffers.run, blocks.num_iterations, device)


def late(means_s: list[float]) -> str:
    """Name the ranks of a group that spend clearly less time in an operation than most do, from the mean of each rank.

    An operation begins to move data when its last rank has come. The other ranks spend the time until then in it.
    """
    most_s = statistics.median_high(means_s)
    ranks = [str(rank) for rank, mean_s in enumerate(means_s) if mean_s < _LATE * most_s]
    return f"the others wait for rank {', '.join(ranks)}" if ranks else ""


def count_wrong(collective: str, *, num_bytes: int, device: torch.device, num_planted: int = 0) -> int:
    """Count the wrong elements of this rank's output after one untimed operation, in a world of any size. Collective.

    `num_planted`: elements that a drill changes after the operation, and that must be counted.
    """
    return _count_wrong(Buffers(collective, num_bytes, device), num_planted)


def _count_wrong(buffers: Buffers, num_planted: int) -> int:
    """Count the elements of this rank's output that differ, bit for bit, from the exact result. Collective."""
    buffers.output.fill_(math.nan)  # in place, the input overwrites (its part of) this, all of whose elements differ from the result
    collectives.write(buffers.input, buffers.given)
    buffers.run()
    buffers.output[:num_planted].neg_()  # no element of a message is 0, so that each becomes another one
    return collectives.num_different(buffers.output, buffers.expected)


def group_of(places: Sequence[int], rank: int) -> Group:
    """Return the ranks in the place of `rank`, from the place of each; None where that is all of them, or one alone.

    Collective over all ranks.
    """
    if len(set(places)) == 1:
        return None
    group = split(places, rank)
    return group if dist.get_world_size(group) > 1 else None


def pairings(nodes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the pair that each rank is in, from its node, until each node has been in one; a rank without a pair is alone.

    Nodes pair up in order. The last of an odd number is then paired with the one before it.
    """
    order = sorted(set(nodes))
    used = [order[: len(order) // 2 * 2], *([order[-2:]] if len(order) % 2 else [])]
    for chosen in used if len(order) > 1 else []:
        paired = {node: place // 2 for place, node in enumerate(chosen)}
        yield [paired.get(node, len(order) + rank) for rank, node in enumerate(nodes)]


def parts(nodes: Sequence[int], size: int) -> list[int]:
    """Return the part of its node that each rank is in, from its node; a part is `size` consecutive ranks of one node."""
    seen, found = dict[int, int](), list[tuple[int, int]]()
    for node in nodes:
        found.append((node, seen.get(node, 0) // size))
        seen[node] = seen.get(node, 0) + 1
    places = sorted(set(found))
    return [places.index(place) for place in found]


def curve_sizes(largest_bytes: int) -> list[int]:
    """Return message sizes in bytes from 8 on, each 64 times the one before, and the largest."""
    steps = itertools.takewhile(lambda size: size < largest_bytes, (_SMALLEST_BYTES * _STEP**power for power in itertools.count()))
    return [*steps, largest_bytes]


def size_name(num_bytes: int) -> str:
    """Return a size for the name of a metric, in the largest unit of which it is a whole number: 8b, 512b, 32k, 2m, 8g."""
    for exponent, letter in ((30, "g"), (20, "m"), (10, "k")):
        if num_bytes % 2**exponent == 0:
            return f"{num_bytes // 2**exponent}{letter}"
    return f"{num_bytes}b"


def measure_latency(num_bytes: int, *, device: torch.device, block_s: float, num_blocks: int, in_a_graph: bool) -> float:
    """Return us of one all_reduce of `num_bytes` over all ranks, called one by one or captured; the median block. Collective.

    `in_a_graph`: only on a GPU, in a process that started with LATENCY_ENVIRONMENT.
    """
    values_N = torch.zeros(num_bytes // 4, device=device)
    graph = _captured(values_N) if in_a_graph else None
    blocks = time_blocks(
        graph.replay if graph else lambda: dist.all_reduce(values_N),
        device=device,
        num_blocks=num_blocks,
        block_s=block_s,
        warmup_s=block_s,
        before_block=lambda: largest(0, device),
        agree=lambda num_iterations: largest(num_iterations, device),
    )
    if graph:
        graph.reset()  # before the communicator that it calls
    return blocks.median_s * 1e6 / (_IN_A_GRAPH if graph else 1)


def _captured(values_N: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture all_reduces in a row. The capture looks at this thread alone: torch's watchdog asks the GPU for earlier work meanwhile."""
    dist.all_reduce(values_N)  # NCCL connects at the first call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_IN_A_GRAPH):
            dist.all_reduce(values_N)
    return graph


def measure_exact(*, largest_bytes: int, device: torch.device, num_planted: int = 0) -> dict[str, int]:
    """Run each collective once at each of three sizes; in a world of one rank, all_reduce alone. Collective.

    Return the wrong elements of this rank by operation, such as "all_reduce of 16 bytes".
    `num_planted`: elements of this rank's last all_reduce that a drill changes, and that must be found.
    """
    world_size = dist.get_world_size()
    collectives = [name for name in NAMES if world_size > 1 or name == "all_reduce"]
    each = BYTES_PER_ELEMENT * world_size
    sizes = sorted({each, largest_bytes // _SMALLER // each * each + each, largest_bytes})  # two may be equal where the largest is small
    wrong = {}
    for num_bytes, collective in itertools.product(sizes, collectives):
        planted = num_planted if (collective, num_bytes) == ("all_reduce", largest_bytes) else 0
        wrong[f"{collective} of {num_bytes} bytes"] = count_wrong(collective, num_bytes=num_bytes, device=device, num_planted=planted)
    return wrong


def ask_nccl_tests(num_bytes: int, num_gpus: int, num_nodes: int) -> float | str:
    """Return GB/s of bus bandwidth in place, as `measure` works, or the reason why there is none. One rank calls it; the others rest."""
    if num_nodes > 1 or num_gpus < 2:
        return f"{PROGRAM} runs only on one node of 2 GPUs or more; this job has {num_nodes} nodes and {num_gpus} GPUs"
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not on PATH"
    size = str(num_bytes)
    command = [PROGRAM, "--minbytes", size, "--maxbytes", size, "--ngpus", str(num_gpus), "--iters", "20", "--warmup_iters", "5"]
    try:
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{PROGRAM}: {type(error).__name__}: {error}"[:_MOST_SHOWN]
    if done.returncode:
        return f"{PROGRAM}: exit code {done.returncode}: {done.stderr[-_MOST_SHOWN:].strip()}"
    return in_place_busbw(done.stdout, num_bytes)


def in_place_busbw(text: str, num_bytes: int) -> float | str:
    """Return the figure for this size from the program's output, or the reason why there is none."""
    rows = [match for match in map(_ROW.fullmatch, text.splitlines()) if match]
    found = [float(row["busbw"]) for row in rows if int(row["bytes"]) == num_bytes]
    return found[0] if len(found) == 1 else f"{PROGRAM}: {len(found)} rows of {num_bytes} bytes, expected 1"


def _environment() -> dict[str, str]:
    """Return this process's environment, with torch's NCCL before any other."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    folders = [str(Path(place) / "lib") for place in spec.submodule_search_locations or ()] if spec else []
    paths = [*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, **({"LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else {})}
