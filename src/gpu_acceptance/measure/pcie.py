"""The link between host and GPU: copies to the GPU (H2D), back (D2H), and both at once.

After nvbandwidth's host_to_device_memcpy_ce and its like: the copy engine moves buffers whose host side is pinned and lies beside
the GPU. A sample is some copies enqueued back to back, with events round them. No kernel holds them back until all are enqueued: to
copy 128 MiB takes 2.4 ms at 55 GB/s, and the figure is that of copies four times as large (tools/gpu/pcie_readings.py). Both directions at
once begin at one event, and the figure is what both moved in the time of the longer one. GB = 1e9 bytes.

What is proved: what each sample, warm-up too, has left at its destination. Before it, outside its time, the destination is poisoned;
after it, it is compared where it lies with a pattern made anew. On the GPU that is every byte. In host memory, where one thread of a CPU
takes some 0.6 s for 512 MiB, it is one word of each whole 4 KiB, another in each sample, and every byte once, after the last sample.
Not proved: a copy that a later one of the same sample has overwritten.
Tensor suffixes: N bytes, W words of 64 bits.
"""

import math
import mmap
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpu_acceptance.measure.timing import Blocks, time_blocks

WORD_BYTES = 8
_ODD = 0x9E3779B97F4A7C15 - 2**64  # 2**64 over the golden ratio (Knuth, TAOCP 6.4): times an odd number, no two words are equal
NUMA_MAPS = Path("/proc/self/numa_maps")
_PORTABLE = 1  # cudaHostRegisterPortable: what torch itself registers with
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
    """The words with the numbers from `first` to before `beyond`: int64, bits of both kinds everywhere."""
    return torch.arange(first, beyond, stride, device=device).mul_(_ODD)


@dataclass(frozen=True)
class HostMemory:
    """Zeros, all of which are there."""

    data: Tensor  # bytes
    is_bound: bool  # first touched by a thread that ran on the CPUs that were named, and on no other

    def pages_by_node(self) -> dict[int, int]:
        """How many of its pages lie on each NUMA node; empty where the kernel does not say."""
        return {int(node): int(num_pages) for node, num_pages in _PAGES.findall(self._told())}

    def num_pages(self) -> int:
        """How many pages it has, of the size that the kernel counts it in; where it does not say, of the usual one."""
        told = _PAGE_KIB.search(self._told())
        page_bytes = int(told[1]) * 1024 if told else mmap.PAGESIZE
        return math.ceil(len(self.data) / page_bytes)

    def _told(self) -> str:
        """The kernel's line of it, or nothing. The form: Documentation/filesystems/proc.rst, numa_maps."""
        try:
            lines = NUMA_MAPS.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return ""
        return next((line for line in lines if line.startswith(f"{self.data.data_ptr():08x} ")), "")


@contextmanager
def host_memory(num_bytes: int, device: torch.device, cpus: frozenset[int] | None) -> Iterator[HostMemory]:
    """Memory that is first touched on these CPUs, where this process may use one of them; pinned for a GPU inside the block.

    It is a shared mapping of its own: the kernel joins it with no other, so that its pages can be told from all else.
    """
    with running_on(cpus) as is_bound:
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    memory = HostMemory(torch.frombuffer(mapping, dtype=torch.uint8), is_bound)
    if device.type == "cpu":
        yield memory
        return
    with _pinned(memory.data, device):
        yield memory


@contextmanager
def running_on(cpus: frozenset[int] | None) -> Iterator[bool]:
    """Keeps this thread on these CPUs inside the block. Yields whether it does: no where none are named, or it may use none of them."""
    before = os.sched_getaffinity(0)
    try:
        yield _move_to(cpus)
    finally:
        os.sched_setaffinity(0, before)


def _move_to(cpus: frozenset[int] | None) -> bool:
    if cpus is None:
        return False
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # sched_setaffinity(2): none of them is there, or the cpuset of the process has none of them
        return False
    return True


@contextmanager
def _pinned(bytes_N: Tensor, device: torch.device) -> Iterator[None]:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    failed = int(cudart.cudaHostRegister(bytes_N.data_ptr(), len(bytes_N), _PORTABLE))
    if failed:
        raise RuntimeError(f"{device}: cudaHostRegister of {len(bytes_N)} bytes of host memory failed with CUDA error {failed}")
    try:
        try:
            yield
        finally:
            torch.cuda.synchronize(device)  # no copy may be on its way
    except BaseException:
        cudart.cudaHostUnregister(bytes_N.data_ptr())  # whether it fails or not: what came before says more
        raise
    failed = int(cudart.cudaHostUnregister(bytes_N.data_ptr()))
    if failed:
        raise RuntimeError(f"{device}: cudaHostUnregister of {len(bytes_N)} bytes of host memory failed with CUDA error {failed}")


def _at_once(work: Work) -> Blocks:
    return work()


@dataclass(frozen=True)
class LinkResult:
    """One direction of one link, or both. `pages_by_node` says where the host memory really was; empty where the kernel does not tell."""

    direction: str
    buffer_bytes: int
    sample_s: float  # median
    cv_percent: float  # of the samples
    gb_per_s: float  # median sample; of both directions, the sum
    best_gb_per_s: float  # fastest sample
    num_wrong: int  # bytes found wrong after one sample, at most, on whichever side they were copied to; of both directions, the sum
    is_bound: bool  # the host memory was first touched on the CPUs that were named
    pages_by_node: dict[int, int]
    num_pages: int  # of the host memory: as many must have been told of


@dataclass(frozen=True)
class _Way:
    """One direction: words to be copied, and where to."""

    name: str
    src: Tensor
    dst: Tensor


def measure(
    direction: str,
    *,
    buffer_bytes: int,
    num_copies: int,
    num_samples: int,
    device: torch.device,
    cpus: frozenset[int] | None = None,
    in_turn: Callable[[Work], Blocks] = _at_once,
    before_sample: Callable[[], object] | None = None,
) -> LinkResult:
    """Time copies of `buffer_bytes` in one direction, or both at once, and count the bytes that came out wrong.

    `cpus`: those of the GPU's NUMA node; None: wherever this thread runs. `in_turn` runs the samples and what is proved of each, and
    `before_sample` runs before each sample, last of all: where one of them is collective this is too. On a CPU both sides are host memory.
    """
    _refuse_nonsense(direction, buffer_bytes, num_copies, device, cpus)
    names = DIRECTIONS[direction]
    with host_memory(len(names) * buffer_bytes, device, cpus) as host:
        parts = torch.split(host.data.view(torch.int64), buffer_bytes // WORD_BYTES)
        ways = [_way(name, part_W, device) for name, part_W in zip(names, parts, strict=True)]
        proofs = [_Proof(way) for way in ways]

        def begin_sample() -> None:
            _prove_and_poison(proofs, device)
            if before_sample is not None:
                before_sample()

        blocks = in_turn(lambda: _time(ways, num_copies, num_samples, device, begin_sample))
        num_wrong = sum(proof.last() for proof in proofs)
        is_bound, pages_by_node, num_pages = host.is_bound, host.pages_by_node(), host.num_pages()
    moved_bytes = len(names) * num_copies * buffer_bytes
    median, best = (moved_bytes / seconds / 1e9 for seconds in (blocks.median_s, min(blocks.operation_s)))
    return LinkResult(
        direction, buffer_bytes, blocks.median_s, blocks.cv_percent, median, best, num_wrong, is_bound, pages_by_node, num_pages
    )


def _refuse_nonsense(direction: str, buffer_bytes: int, num_copies: int, device: torch.device, cpus: frozenset[int] | None) -> None:
    if direction not in DIRECTIONS:
        raise ValueError(f"unknown direction {direction!r}; known: {', '.join(DIRECTIONS)}")
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"cannot copy to and from device {str(device)!r}; known: cpu, cuda")
    if buffer_bytes < WORD_BYTES or buffer_bytes % WORD_BYTES:
        raise ValueError(f"buffer_bytes={buffer_bytes}: a positive multiple of {WORD_BYTES}")
    if num_copies < 1:
        raise ValueError(f"num_copies={num_copies}: at least 1")
    if cpus is not None and (not cpus or min(cpus) < 0):
        raise ValueError(f"cpus={sorted(cpus)}: numbers of CPUs, at least one; None where they are not known")


def _way(name: str, host_W: Tensor, device: torch.device) -> _Way:
    """The pattern on one side, and on the other its complement, so that a byte that never arrives is wrong."""
    device_W = torch.empty_like(host_W, device=device)
    src_W, dst_W = (host_W, device_W) if name == "h2d" else (device_W, host_W)
    for part_W, pattern_W in _with_pattern(name, src_W):
        part_W.copy_(pattern_W)
    for part_W, pattern_W in _with_pattern(name, dst_W):
        part_W.copy_(pattern_W.bitwise_not_())
    return _Way(name, src_W, dst_W)


def _with_pattern(name: str, words_W: Tensor, offset: int = 0, stride: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Each chunk of the words from `offset` on, and what it must hold."""
    first = _FIRST_WORD[name] + offset
    for part_W in torch.split(words_W[offset::stride], _CHUNK):
        beyond = first + stride * len(part_W)
        yield part_W, words(first, beyond, part_W.device, stride)
        first = beyond


def _count_wrong(part_W: Tensor, pattern_W: Tensor) -> int:
    """Bytes that differ; uses up the pattern. Words are compared first: a CPU takes some five times as long to compare bytes."""
    if torch.equal(part_W, pattern_W):
        return 0
    return int(torch.count_nonzero(pattern_W.bitwise_xor_(part_W).view(torch.uint8)))


class _Proof:
    """Of one way: what the samples so far have left at the destination. It holds the poison that `_way` gave it before the first."""

    def __init__(self, way: _Way) -> None:
        self._way = way
        self._num_begun = 0
        self._most_wrong = 0

    def next(self) -> None:
        """Prove the sample that has ended, where one has, and poison for the one to come."""
        if self._num_begun:
            self._prove(*self._words())
        self._num_begun += 1
        for part_W, pattern_W in _with_pattern(self._way.name, self._way.dst, *self._words()):
            part_W.copy_(pattern_W.bitwise_not_())

    def last(self) -> int:
        """Prove every byte; return how many were wrong after the sample that left the most."""
        self._prove(0, 1)
        return self._most_wrong

    def _words(self) -> tuple[int, int]:
        """Offset and stride of the words that prove the sample begun last."""
        stride = _STRIDE[self._way.name]
        return self._num_begun * _HOP % stride, stride

    def _prove(self, offset: int, stride: int) -> None:
        num_wrong = sum(_count_wrong(*both) for both in _with_pattern(self._way.name, self._way.dst, offset, stride))
        self._most_wrong = max(self._most_wrong, num_wrong)


def _prove_and_poison(proofs: list[_Proof], device: torch.device) -> None:
    """Ends when the poison is there: ranks that meet after it begin together."""
    for proof in proofs:
        proof.next()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time(ways: list[_Way], num_copies: int, num_samples: int, device: torch.device, before_sample: Callable[[], object]) -> Blocks:
    """A block is one sample; three more come before the first that counts."""
    streams = [_new_stream(device) for _ in ways]

    def sample() -> None:
        _fork(streams, device)
        for _ in range(num_copies):
            for way, stream in zip(ways, streams, strict=True):
                with torch.cuda.stream(stream):  # of None it does nothing
                    way.dst.copy_(way.src, non_blocking=True)
        _join(streams, device)

    return time_blocks(
        sample, device=device, num_blocks=num_samples, block_s=0.0, min_iterations=1, warmup_s=0.0, before_block=before_sample
    )


def _new_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _fork(streams: list[torch.cuda.Stream | None], device: torch.device) -> None:
    """All streams begin at one event of the current stream."""
    begun = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
    for stream in streams:
        if stream is not None and begun is not None:
            stream.wait_event(begun)


def _join(streams: list[torch.cuda.Stream | None], device: torch.device) -> None:
    """The current stream goes on when the last of them has finished."""
    for stream in streams:
        if stream is not None:
            torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def copying(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Copies from host to GPU and back inside the block, so that the link is awake; waits for their end. Needs a GPU.

    Yields a function that tells whether the GPU still copies.
    """
    host = torch.empty(_WAKING_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(_WAKING_BYTES, dtype=torch.uint8, device=device)
    for _ in range(_WAKING_COPIES):
        on_device.copy_(host, non_blocking=True)
        host.copy_(on_device, non_blocking=True)
    stream = torch.cuda.current_stream(device)
    yield lambda: not stream.query()
    torch.cuda.synchronize(device)
