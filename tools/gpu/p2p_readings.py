"""Readings of copies between the GPUs of this node, in one process without pytest, and a planted fault.

    python tools/gpu/p2p_readings.py --runs=5
    python tools/gpu/p2p_readings.py --device=cpu --num-gpus=3 --num-bytes=1048576

JSON lines: versions; for each run and mode the matrix by rows, what each GPU's way out and in do (`out`, `in`), the slowest path from
each as a part of what both GPUs reach, the largest coefficient of variation and the seconds it took; `alone`: the same pairs one after the
other, where `--alone` asks; the same of 8 bytes in us; at last `planted`: the words that were counted wrong where GPU 1 sends one flipped
bit. Ends with 1 where a word was wrong, or where a planted one was not found. pytest does not collect this file.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from readings import name, say  # first: it finds the checkout

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure import p2p
from gpu_acceptance.measure.peer_matrix import Matrix, Pair


def main() -> None:
    options = read_options()
    devices = devices_of(options)
    say({"versions": versions.read(), "devices": [name(device) for device in devices]})
    sizes = {"devices": devices, "num_bytes": options.num_bytes, "num_copies": options.num_copies, "num_samples": options.num_samples}
    num_wrong = 0
    for run in range(options.runs):
        for mode in p2p.MODES:
            num_wrong += tell(run, mode, lambda mode=mode: p2p.bandwidth(mode, **sizes))
        if options.alone:
            with pairs_alone():
                num_wrong += tell(run, "alone", lambda: p2p.bandwidth("unidirectional", **sizes))
        trips = {"devices": devices, "num_round_trips": options.num_round_trips, "num_samples": options.num_samples}
        num_wrong += tell(run, "latency", lambda trips=trips: p2p.latency(**trips))
    with one_flipped_bit():
        found = p2p.bandwidth("bidirectional", **sizes).wrong()
    say({"planted": {f"{source}>{destination}": words for (source, destination), words in found.items()}})
    sys.exit(num_wrong > 0 or found != {(1, other): 1 for other in range(len(devices)) if other != 1})


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read copies between all GPUs of this node; print JSON lines.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--num-gpus", type=int, default=torch.cuda.device_count(), help="default: all; on a CPU so many buffers")
    parser.add_argument("--num-bytes", type=int, default=2**30)
    parser.add_argument("--num-copies", type=int, default=16)
    parser.add_argument("--num-samples", type=int, default=7)
    parser.add_argument("--num-round-trips", type=int, default=50)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="also each pair while no other copies")
    return parser.parse_args()


def devices_of(options: argparse.Namespace) -> list[torch.device]:
    if options.device == "cpu":
        return [torch.device("cpu")] * options.num_gpus
    return [torch.device("cuda", index) for index in range(options.num_gpus)]


def tell(run: int, what: str, measure) -> int:
    """One line; returns the wrong words."""
    begin_s = time.monotonic()
    found: Matrix = measure()
    took_s = time.monotonic() - begin_s
    gpus = range(found.num_gpus)
    line = {"run": run, "what": what, "took_s": round(took_s, 2), "cv_percent_max": max(cell.cv_percent for cell in found.cells.values())}
    line["matrix"] = [[round(cell.value, 2) for cell in found.row(gpu).values()] for gpu in gpus]
    if what != "latency":
        line["out"] = [found.cells[found.fastest_out(gpu)].value for gpu in gpus]
        line["in"] = [found.cells[found.fastest_in(gpu)].value for gpu in gpus]
        line["path"] = [found.path(found.slowest_path(gpu)) for gpu in gpus]
    num_wrong = sum(found.wrong().values())
    say({**line, "wrong": num_wrong})
    return num_wrong


@contextmanager
def pairs_alone() -> Iterator[None]:
    """Rounds of one pair each."""

    def rounds(gpus: range) -> list[list[Pair]]:
        return [[(one, other)] for other in gpus for one in range(other)]

    with patch.object(p2p, "round_robin", rounds):
        yield


@contextmanager
def one_flipped_bit() -> Iterator[None]:
    """In whatever GPU 1 sends; flipped where it arrives, on the stream of the destination, which torch lets wait for the copy."""
    real = torch.Tensor.copy_
    first_word = int(p2p._words_of(1, 1, torch.device("cpu")))
    senders: dict[int, bool] = {}  # by address: to look at the words of a GPU would wait for it

    def copy(dst: torch.Tensor, src: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        real(dst, src, *arguments, **options)
        if "non_blocking" in options and senders[src.data_ptr()]:
            dst[7].bitwise_xor_(1)
        return dst

    real_sample_s = p2p._sample_s

    def sample_s(ways, num_copies: int) -> list[float]:
        senders.update((way.src.data_ptr(), int(way.src[0]) == first_word) for way in ways)
        return real_sample_s(ways, num_copies)

    with patch.object(torch.Tensor, "copy_", copy), patch.object(p2p, "_sample_s", sample_s):
        yield


if __name__ == "__main__":
    main()
