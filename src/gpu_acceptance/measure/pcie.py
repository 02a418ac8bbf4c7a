"""The link between host and GPU: copies to the GPU (H2D), back (D2H), and both at once.

After nvbandwidth's host_to_device_memcpy_ce and its like: the copy engine moves buffers whose host side is pinned and lies beside
the GPU. A sample is some copies enqueued back to back, with events round them. No kernel holds them back until all are enqueued: to
copy 128 MiB takes 2.4 ms at 55 GB/s, and the figure is that of copies four times as large (tools/gpu/pcie_readings.py). Both directions at
once begin at one event, and the figure is what both moved in the time of the longer one. GB = 1e9 bytes.

Proved: the content of the destination after each sample, warm-up too. Before it, outside its time, the destination is poisoned; after it,
the destination is compared where it lies with a pattern made anew. On the GPU that is every byte. In host memory, where one thread of a CPU
takes some 0.6 s for 512 MiB, it is one word of each whole 4 KiB, another in each sample, and every byte once, after the last sample.
Not proved: a copy that a later one of the same sample has overwritten.
Tensor suffixes: N bytes, W words of 64 bits.
"""

import functools
import math
import mmap
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.measure.timing import Blocks, Span, hopeless_blocks, time_block, time_blocks, wait_for

WORD_BYTES = 8
_ODD = 0x9E3779B97F4A7C15 - 2**64  # 2**64 over the golden ratio (Knuth, TAOCP 6.4): times an odd number, no two words are equal
NUMA_MAPS = Path("/proc/self/numa_maps")
_PORTABLE = 1  # cudaHostRegisterPortable, with which torch itself registers
_PAGES = re.compile(r" N(\d{1,4})=(\d{1,15})\b")
_PAGE_KIB = re.compile(r" kernelpagesize_kB=([1-9]\d{0,8})\b")
DIRECTIONS = {"h2d": ("h2d",), "d2h": ("d2h",), "bidirectional": ("h2d", "d2h")}
_CHUNK = 2**23  # words made or compared at a time: 64 MiB
_FIRST_WORD = {"h2d": 0, "d2h": 2**40}  # of the pattern: no word of one direction is a word of the other
_STRIDE = {"h2d": 1, "d2h": 512}  # of the words proved after each sample: all; one of each 4 KiB
_HOP = 317  # to the next sample's word. Odd: none comes again in 512 samples. 512 over the golden ratio: they spread over the page
_WAKING_BYTES = 64 << 20
_WAKING_COPIES = 128  # each way: 8 GiB, which take 0.15 s at 55 GB/s

Work = Callable[[], Blocks]


def words(first: int, beyond: int, device: torch.device, stride: int = 1) -> Tensor:
    """Return the words with the numbers from `first` to before `beyond`: int64, bits of both kinds everywhere."""
    return torch.arange(first, beyond, stride, device=device).mul_(_ODD)


def pages_of(memory: Tensor) -> tuple[dict[int, int], int]:
    """Return how many pages of a mapping lie on each NUMA node, none where the kernel does not say; and the number of its pages.

    They have the size that the kernel counts in, or the usual one where it does not say. The form of its line for a mapping:
    Documentation/filesystems/proc.rst, numa_maps.
    """
    try:
        lines = NUMA_MAPS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    own = next((line for line in lines if line.startswith(f"{memory.data_ptr():08x} ")), "")
    size = _PAGE_KIB.search(own)
    page_bytes = int(size[1]) * 1024 if size else mmap.PAGESIZE
    return {int(node): int(num_pages) for node, num_pages in _PAGES.findall(own)}, math.ceil(len(memory) / page_bytes)


@contextmanager
def host_memory(num_bytes: int, device: torch.device, cpus: frozenset[int] | None) -> Iterator[tuple[Tensor, bool]]:
    """Take zeros in host memory, all pages mapped; pinned for a GPU inside the block. Yields bytes, and True if `cpus` touched them first.

    It is a shared mapping of its own: the kernel joins it with no other, so that its pages can be told from all others.
    """
    with running_on(cpus) as is_bound:
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    with _pinned(memory, device) if device.type == "cuda" else nullcontext():
        yield memory, is_bound


@contextmanager
def running_on(cpus: frozenset[int] | None) -> Iterator[bool]:
    """Keep this thread on these CPUs inside the block. Yields False where none are given, or it may use none of them."""
    before = os.sched_getaffinity(0)
    is_bound = cpus is not None
    try:
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    except OSError:  # sched_setaffinity(2): none of them exists, or the cpuset of the process has none of them
        is_bound = False
    try:
        yield is_bound
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _pinned(bytes_N: Tensor, device: torch.device) -> Iterator[None]:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def refuse(failed: int, call: str) -> None:
        if failed:
            raise RuntimeError(f"{device}: {call} of {len(bytes_N)} bytes of host memory failed with CUDA error {failed}")

    refuse(int(cudart.cudaHostRegister(bytes_N.data_ptr(), len(bytes_N), _PORTABLE)), "cudaHostRegister")
    try:
        try:
            yield
        finally:
            torch.cuda.synchronize(device)  # no copy may be on its way
    except BaseException:
        cudart.cudaHostUnregister(bytes_N.data_ptr())  # its own failure does not count: the error before says more
        raise
    refuse(int(cudart.cudaHostUnregister(bytes_N.data_ptr())), "cudaHostUnregister")


@dataclass(frozen=True)
class LinkResult:
    """One direction of one link, or both. `pages_by_node`: the place of the host memory; empty where the kernel does not say."""

    sample_s: float  # median
    gb_per_s: float  # median sample; of both directions, the sum
    spread: Spread  # of the samples
    num_wrong: int  # bytes found wrong after one sample, at most, on the side they were copied to; of both directions, the sum
    is_bound: bool  # the host memory was first touched on the given CPUs
    pages_by_node: dict[int, int]
    num_pages: int  # of the host memory: `pages_by_node` must count as many


def measure(
    direction: str,
    *,
    buffer_bytes: int,
    num_copies: int,
    num_samples: int,
    device: torch.device,
    cpus: frozenset[int] | None = None,
    in_turn: Callable[[Work], Blocks] = lambda work: work(),
    before_sample: Callable[[], object] | None = None,
    hopeless_s: float = math.inf,
    agree: Callable[[int], int] = int,
) -> LinkResult:
    """Time copies of `buffer_bytes`, whole words, in one direction or both at once, and count the bytes that came out wrong.

    `cpus`: those of the GPU's NUMA node; None: wherever this thread runs. `in_turn` runs the samples and their checks. `before_sample`
    runs before each sample, last of all. Collective where one of them is. On a CPU both sides are host memory. Where a copy takes longer
    than `hopeless_s`, samples are a few single copies (see `hopeless_blocks`, also for `agree`).
    """
    names = DIRECTIONS[direction]
    with host_memory(len(names) * buffer_bytes, device, cpus) as (memory, is_bound):
        parts = torch.split(memory.view(torch.int64), buffer_bytes // WORD_BYTES)
        ways = [_Way(name, part_W, device) for name, part_W in zip(names, parts, strict=True)]

        def begin_sample() -> None:
            for way in ways:
                way.prove_and_poison()
            wait_for(device)  # ranks that meet after the poison is there begin together
            if before_sample is not None:
                before_sample()

        blocks = in_turn(lambda: _time(ways, num_copies, num_samples, device, begin_sample, hopeless_s, agree))
        num_wrong = sum(way.prove_all() for way in ways)
        pages_by_node, num_pages = pages_of(memory)
    moved_gb = len(names) * (1 if blocks.is_cut else num_copies) * buffer_bytes / 1e9
    gb_per_s, spread = moved_gb / blocks.median_s, blocks.spread(moved_gb)
    return LinkResult(blocks.median_s, gb_per_s, spread, num_wrong, is_bound, pages_by_node, num_pages)


def with_pattern(name: str, words_W: Tensor, offset: int = 0, stride: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each chunk of the words from `offset` on, and the pattern that it must hold in a direction."""
    first = _FIRST_WORD[name] + offset
    for part_W in torch.split(words_W[offset::stride], _CHUNK):
        beyond = first + stride * len(part_W)
        yield part_W, words(first, beyond, part_W.device, stride)
        first = beyond


class _Way:
    """One direction: words to be copied, their destination, and the most bytes that any sample left wrong there."""

    def __init__(self, name: str, host_W: Tensor, device: torch.device) -> None:
        """Write the pattern to one side, and its complement to the other, so that a byte that never arrives is wrong."""
        device_W = torch.empty_like(host_W, device=device)
        self._name, self._num_begun, self._most_wrong = name, 0, 0
        self.src, self.dst = (host_W, device_W) if name == "h2d" else (device_W, host_W)
        for part_W, pattern_W in with_pattern(name, self.src):
            part_W.copy_(pattern_W)
        self._poison(0, 1)

    def prove_and_poison(self) -> None:
        """Prove the sample that has ended, if any, and poison for the one to come."""
        if self._num_begun:
            self._prove(*self.place())
        self._num_begun += 1
        self._poison(*self.place())

    def prove_all(self) -> int:
        """Prove every byte; return how many were wrong after the sample that left the most."""
        self._prove(0, 1)
        return self._most_wrong

    def place(self) -> tuple[int, int]:
        """Return offset and stride of the words that prove the sample begun last."""
        stride = _STRIDE[self._name]
        return self._num_begun * _HOP % stride, stride

    def _poison(self, offset: int, stride: int) -> None:
        for part_W, pattern_W in with_pattern(self._name, self.dst, offset, stride):
            part_W.copy_(pattern_W.bitwise_not_())

    def _prove(self, offset: int, stride: int) -> None:
        num_wrong = 0
        for part_W, pattern_W in with_pattern(self._name, self.dst, offset, stride):
            if not torch.equal(part_W, pattern_W):  # words are compared first: a CPU takes some five times as long to compare bytes
                num_wrong += int(torch.count_nonzero(pattern_W.bitwise_xor_(part_W).view(torch.uint8)))
        self._most_wrong = max(self._most_wrong, num_wrong)


def _time(
    ways: list[_Way],
    num_copies: int,
    num_samples: int,
    device: torch.device,
    before_sample: Callable[[], object],
    hopeless_s: float,
    agree: Callable[[int], int],
) -> Blocks:
    """Time one sample in each block; three more come before the first that counts."""
    streams = [new_stream(device) for _ in ways]
    on_gpu = [stream for stream in streams if stream is not None]

    def copy(num_copies: int) -> None:
        if on_gpu:
            begun = torch.cuda.current_stream(device).record_event()
        for one in on_gpu:
            one.wait_event(begun)  # all streams begin at one event of the current stream
        for _ in range(num_copies):
            for way, stream in zip(ways, streams, strict=True):
                with torch.cuda.stream(stream):  # of None it does nothing
                    way.dst.copy_(way.src, non_blocking=True)
        for one in on_gpu:
            torch.cuda.current_stream(device).wait_stream(one)  # which goes on when the last of them has finished

    def single(num_iterations: int) -> Span:
        before_sample()
        return time_block(lambda: copy(1), num_iterations, device)

    if hopeless_s < math.inf:
        single(1)
        if few := hopeless_blocks(single, hopeless_s, agree):
            return few
    sample = functools.partial(copy, num_copies)
    return time_blocks(
        sample, device=device, num_blocks=num_samples, block_s=0.0, min_iterations=1, warmup_s=0.0, before_block=before_sample
    )


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new stream of a GPU; None for a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@contextmanager
def copying(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Copy from host to GPU and back inside the block, so that the link is awake; wait for their end. Needs a GPU.

    Yields a function that returns True while the GPU still copies.
    """
    host = torch.empty(_WAKING_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(_WAKING_BYTES, dtype=torch.uint8, device=device)
    for _ in range(_WAKING_COPIES):
        on_device.copy_(host, non_blocking=True)
        host.copy_(on_device, non_blocking=True)
    stream = torch.cuda.current_stream(device)
    yield lambda: not stream.query()
    torch.cuda.synchronize(device)
