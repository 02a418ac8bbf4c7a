"""Copies between the GPUs of one node, from each to each other, by one process that sees them all.

After nvbandwidth's device_to_device_memcpy_write_ce: the copy engine of the source pushes, on a stream of the source. (Pulled, on
streams of the destination, one of two directions at once falls to 198 GB/s on an H200.) Pairs that share no GPU copy at the same time, in
rounds of a round robin: 4 H200 read alone what they read in rounds, 395.1-395.4 GB/s. A sample is some copies back to back. A
kernel that spins holds all streams back until everything is enqueued, so that all pairs begin together and no host is in the figure.
GB = 1e9 bytes.

Proved: the content of the destination after each sample, warm-up too. Before it, outside its time, the destination is overwritten with
wrong words; after it every word is compared with the words of that source, made anew where they are compared. Not proved: a copy that a
later one of the same sample has overwritten.
Tensor suffix: W words of 64 bits.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from gpu_acceptance.measure.pcie import WORD_BYTES, new_stream, words
from gpu_acceptance.measure.peer_matrix import Cell, Matrix, Pair
from gpu_acceptance.measure.timing import Mark, Span, cv_percent, hopeless_blocks, time_block, wait_for
from gpu_acceptance.measure.tournament import round_robin

MODES = ("unidirectional", "bidirectional")
_FIRST_WORD = 2**40  # times the number of a GPU: no word of one is a word of another
_CYCLES = 100_000  # of the gate for each copy to be enqueued: 50 us at 1.98 GHz; a host that takes longer gets no latency


@dataclass(frozen=True)
class _Way:
    """One ordered pair: source and destination, the words that must then lie there, and the source's stream for it."""

    src: Tensor
    dst: Tensor
    expected: Tensor
    stream: torch.cuda.Stream | None  # None on a CPU


def _gate(device: torch.device, num_copies: int) -> torch.cuda.Event:
    """Return the event that holds back all streams that wait for it, of any GPU: a kernel spins before it."""
    with torch.cuda.stream(new_stream(device)):
        torch.cuda._sleep(_CYCLES * num_copies)  # type: ignore[no-untyped-call]
        passed: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
        return passed


def visible_gpus() -> dict[str, int]:
    """Return UUID, as NVML writes it, -> number of each GPU that this process sees."""
    return {f"GPU-{torch.cuda.get_device_properties(index).uuid}": index for index in range(torch.cuda.device_count())}


def bandwidth(
    mode: str, *, devices: Sequence[torch.device], num_bytes: int, num_copies: int, num_samples: int, hopeless_s: float = math.inf
) -> Matrix:
    """Measure GB/s from each device to each other, the median sample: one direction of a pair at a time, or both at once.

    `devices`: at least two, of one type. Needs three buffers of `num_bytes`, whole words, on each. On a CPU the devices are buffers of one
    memory, and pairs follow each other. Where a copy takes longer than `hopeless_s`, samples are a few single copies (see
    `hopeless_blocks`).
    """
    src = [_words_of(gpu, num_bytes // WORD_BYTES, device) for gpu, device in enumerate(devices)]
    dst, expected = ([torch.empty_like(one_W) for one_W in src] for _ in range(2))
    cells: dict[Pair, Cell] = {}
    for there in round_robin(range(len(devices))):
        back = [(destination, source) for source, destination in there]
        for at_once in (there, back) if mode == "unidirectional" else (there + back,):
            for source, destination in at_once:
                expected[destination].copy_(_words_of(source, len(src[source]), devices[destination]))
            ways = [_Way(src[a], dst[b], expected[b], new_stream(devices[a])) for a, b in at_once]
            cells |= zip(at_once, _measure_at_once(ways, num_copies, num_samples, hopeless_s), strict=True)
    return Matrix(len(devices), cells)


def latency(*, devices: Sequence[torch.device], num_round_trips: int, num_samples: int) -> Matrix:
    """Measure the time of a copy of 8 bytes between two devices, in us: half of a round trip. NaN where the host was too slow.

    It is the time of the GPUs: the copy engine's for a copy, and the other GPU's to wait for it. A program that enqueues one copy sees
    more; a load or store by a kernel is another figure (nvbandwidth's device_to_device_latency_sm). Both ways of a pair are one figure.
    """
    cells: dict[Pair, Cell] = {}
    for one, other in combinations(range(len(devices)), 2):
        ours_W, theirs_W, back_W = (words(one, one + 1, devices[gpu]) for gpu in (one, other, one))
        samples, num_wrong = [], 0
        for _ in range(1 + num_samples):
            theirs_W.bitwise_not_()
            back_W.bitwise_not_()
            _wait_for_all(devices)
            samples.append(_round_trips_s(ours_W, theirs_W, back_W, num_round_trips) / (2 * num_round_trips) * 1e6)
            num_wrong = max(num_wrong, *(int((one_W != words(one, one + 1, one_W.device)).sum()) for one_W in (theirs_W, back_W)))
        read = [sample for sample in samples[1:] if not math.isnan(sample)]
        cell = Cell(statistics.median(read or [math.nan]), cv_percent(read) if len(read) > 1 else 0.0, num_wrong)
        cells[one, other] = cells[other, one] = cell
    return Matrix(len(devices), cells)


def _words_of(gpu: int, num_words: int, device: torch.device) -> Tensor:
    """Return the words that this GPU sends, made on any device."""
    return words(gpu * _FIRST_WORD, gpu * _FIRST_WORD + num_words, device)


def _measure_at_once(ways: Sequence[_Way], num_copies: int, num_samples: int, hopeless_s: float) -> list[Cell]:
    """Return a cell for each way. One more sample comes first, which maps the memory of one GPU into the other; it is proved, not timed."""
    singles, most_wrong = list[list[float]](), [0] * len(ways)

    def sample(num_copies: int) -> list[float]:
        for way in ways:
            torch.bitwise_not(way.expected, out=way.dst)
        seconds = _sample_s(ways, num_copies)
        found = [torch.count_nonzero(way.dst != way.expected) for way in ways]  # enqueued on all GPUs before the first is waited for
        most_wrong[:] = (max(most, int(one)) for most, one in zip(most_wrong, found, strict=True))
        return seconds

    def single(_: int) -> Span:
        begin_s = time.monotonic()
        singles.append(sample(1))
        return Span(begin_s, time.monotonic(), min(singles[-1]))

    if hopeless_s < math.inf:
        sample(1)
    if is_cut := hopeless_blocks(single, hopeless_s) is not None:
        samples, num_copies = singles, 1
    else:
        samples = [sample(num_copies) for _ in range(1 + num_samples)][1:]
    cells = []
    for way, seconds, num_wrong in zip(ways, zip(*samples, strict=True), most_wrong, strict=True):
        gb = num_copies * way.src.nbytes / 1e9
        cells.append(Cell(gb / statistics.median(seconds), cv_percent(seconds), num_wrong, gb / min(seconds), is_cut))
    return cells


def _sample_s(ways: Sequence[_Way], num_copies: int) -> list[float]:
    """Return the seconds of each way. On GPUs all begin together; on a CPU one follows the other."""
    devices = [tensor.device for way in ways for tensor in (way.src, way.dst)]
    if devices[0].type == "cpu":
        return [_on_cpu_s(way.src, way.dst, num_copies) for way in ways]
    _wait_for_all(devices)
    gate, marks = _gate(devices[0], num_copies * len(ways)), []
    for way in ways:
        assert way.stream is not None
        way.stream.wait_event(gate)
        begin = Mark(way.src.device).put(way.stream)
        with torch.cuda.stream(way.stream):
            for _ in range(num_copies):
                way.dst.copy_(way.src, non_blocking=True)
        marks.append((begin, Mark(way.src.device).put(way.stream)))
    _wait_for_all(devices)
    return [begin.seconds_to(end) for begin, end in marks]


def _on_cpu_s(src_W: Tensor, dst_W: Tensor, num_copies: int) -> float:
    return time_block(lambda: dst_W.copy_(src_W, non_blocking=True), num_copies, src_W.device).elapsed_s


def _round_trips_s(ours_W: Tensor, theirs_W: Tensor, back_W: Tensor, num_round_trips: int) -> float:
    """Return seconds; NaN where the gate opened before all was enqueued, so that the host is in the figure."""
    own, other = new_stream(ours_W.device), new_stream(theirs_W.device)
    if own is None or other is None:
        return _on_cpu_s(ours_W, theirs_W, num_round_trips) + _on_cpu_s(theirs_W, back_W, num_round_trips)
    gate = _gate(ours_W.device, 2 * num_round_trips)
    other.wait_event(gate)
    own.wait_event(gate)
    begin = Mark(ours_W.device).put(own)
    with torch.cuda.stream(other), torch.cuda.stream(own):  # torch lets a copy wait for, and be waited for by, both current streams
        for _ in range(num_round_trips):
            theirs_W.copy_(ours_W, non_blocking=True)
            back_W.copy_(theirs_W, non_blocking=True)
    end = Mark(ours_W.device).put(own)
    is_clean = not gate.query()  # type: ignore[no-untyped-call]
    _wait_for_all([ours_W.device, theirs_W.device])
    return begin.seconds_to(end) if is_clean else math.nan


def _wait_for_all(devices: Sequence[torch.device]) -> None:
    for device in devices:
        wait_for(device)
