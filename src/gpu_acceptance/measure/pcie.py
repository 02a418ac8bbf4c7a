"""The link between host and GPU: copies to the GPU (H2D), back (D2H), and both at once.

After nvbandwidth's host_to_device_memcpy_ce and its like: the copy engine moves buffers whose host side is pinned and lies beside
the GPU. A sample is some copies enqueued back to back, with events round them. No kernel holds them back until all are enqueued: to
enqueue one takes some 10 us, and to copy 512 MiB 10 ms, so that the host is ahead from the second copy on. Both directions at once
begin at one event, and the figure is what both moved in the time of the longer one. GB = 1e9 bytes.

The destination is poisoned before the first copy; after the last, every byte of it is compared, where it lies, with a pattern made anew.
Tensor suffixes: N bytes, W words of 64 bits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_acceptance.measure.host_memory import host_memory
from gpu_acceptance.measure.timing import Blocks, time_blocks

DIRECTIONS = {"h2d": ("h2d",), "d2h": ("d2h",), "bidirectional": ("h2d", "d2h")}
_WORD_BYTES = 8
_CHUNK = 2**23  # words made or compared at a time: 64 MiB
_ODD = 0x9E3779B97F4A7C15 - 2**64  # 2**64 over the golden ratio (Knuth, TAOCP 6.4): times an odd number, no two words are equal
_FIRST_WORD = {"h2d": 0, "d2h": 2**40}  # of the pattern: no word of one direction is a word of the other
_WAKING_BYTES = 64 << 20
_WAKING_COPIES = 128  # each way: 8 GiB, which take 0.15 s at 55 GB/s

Work = Callable[[], Blocks]


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
    num_wrong: int  # bytes, on whichever side they were copied to
    is_bound: bool  # the host memory was first touched on the CPUs that were named
    pages_by_node: dict[int, int]


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

    `cpus`: those of the GPU's NUMA node; None: wherever this thread runs. `in_turn` runs the timed part and nothing else of it, and
    `before_sample` runs before each sample: where one of them is collective this is too. On a CPU both sides are host memory.
    """
    _refuse_nonsense(direction, buffer_bytes, num_copies, device, cpus)
    names = DIRECTIONS[direction]
    with host_memory(len(names) * buffer_bytes, device, cpus) as host:
        parts = torch.split(host.data.view(torch.int64), buffer_bytes // _WORD_BYTES)
        ways = [_way(name, part_W, device) for name, part_W in zip(names, parts, strict=True)]
        blocks = in_turn(lambda: _time(ways, num_copies, num_samples, device, before_sample))
        num_wrong = sum(map(_count_wrong, ways))
        is_bound, pages_by_node = host.is_bound, host.pages_by_node()
    moved_bytes = len(names) * num_copies * buffer_bytes
    median, best = (moved_bytes / seconds / 1e9 for seconds in (blocks.median_s, min(blocks.operation_s)))
    return LinkResult(direction, buffer_bytes, blocks.median_s, blocks.cv_percent, median, best, num_wrong, is_bound, pages_by_node)


def _refuse_nonsense(direction: str, buffer_bytes: int, num_copies: int, device: torch.device, cpus: frozenset[int] | None) -> None:
    if direction not in DIRECTIONS:
        raise ValueError(f"unknown direction {direction!r}; known: {', '.join(DIRECTIONS)}")
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"cannot copy to and from device {str(device)!r}; known: cpu, cuda")
    if buffer_bytes < _WORD_BYTES or buffer_bytes % _WORD_BYTES:
        raise ValueError(f"buffer_bytes={buffer_bytes}: a positive multiple of {_WORD_BYTES}")
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


def _with_pattern(name: str, words_W: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each chunk, and what it must hold: exact in integers, so that every device makes the same."""
    first = _FIRST_WORD[name]
    for part_W in torch.split(words_W, _CHUNK):
        yield part_W, torch.arange(first, first + len(part_W), device=part_W.device).mul_(_ODD)
        first += len(part_W)


def _count_wrong(way: _Way) -> int:
    return sum(
        int(torch.count_nonzero(part_W.view(torch.uint8) != pattern_W.view(torch.uint8)))
        for part_W, pattern_W in _with_pattern(way.name, way.dst)
    )


def _time(ways: list[_Way], num_copies: int, num_samples: int, device: torch.device, before_sample: Callable[[], object] | None) -> Blocks:
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
