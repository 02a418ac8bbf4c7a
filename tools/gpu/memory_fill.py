"""The memory test on a GPU: how long it takes, that it finds planted faults, and what it takes beside the memory it tests.

    python tools/gpu/memory_fill.py

Prints JSON lines, and ends with 1 where one of them says that something is not as it must be. pytest does not collect this file.
"""

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from gpu_acceptance.measure import hbm, memory_fill

GPU = torch.device("cuda", 0)
FILL = {"device": GPU, "fraction": 0.95, "min_bytes": 10**9}
WORD = 12_345
BIT = 1 << 40


def main() -> None:
    torch.cuda.init()  # statistics of memory can be reset only then
    ended = [sound(), *map(flipped, memory_fill.PATTERNS), aliased(("0x00", "0xFF", "0x55", "0xAA"), 0), aliased(("address",), 1)]
    ended += [aliased(("random",), 1), everything_wrong(), refuses_small_arrays()]
    for kernel in hbm.KERNELS:
        result = hbm.measure(kernel, array_bytes=4 * 2**30, device=GPU, block_s=0.3, num_blocks=7)
        say(kernel, result.num_wrong == 0, median=result.gb_per_s, best=result.spread.best, cv_percent=result.spread.percent)
        ended.append(result.num_wrong == 0)
    sys.exit(not all(ended))


def sound() -> bool:
    torch.cuda.reset_peak_memory_stats(GPU)
    begin_s = time.monotonic()
    result = memory_fill.measure(**FILL, hold_s=1.0)
    took_s, beside = time.monotonic() - begin_s, torch.cuda.max_memory_allocated(GPU) - result.tested_bytes
    good = result.num_wrong == 0 and result.fraction > 0.94 and beside < 300 * 2**20
    return say("sound", good, tested=result.tested_bytes, fraction=result.fraction, took_s=took_s, beside_bytes=beside)


def flipped(pattern: str) -> bool:
    """In the last piece, which is not a full one."""

    def flip(name: str, pieces: list[torch.Tensor]) -> None:
        pieces[-1][WORD] ^= BIT

    begin_s = time.monotonic()
    result = memory_fill.measure(**FILL, hold_s=0.0, patterns=[pattern], between_write_and_verify=flip)
    (wrong,) = result.first_wrong
    good = (result.num_wrong, wrong.xor, wrong.offset_bytes) == (1, BIT, 8 * WORD)
    return say(f"flipped in {pattern}", good, where=result.where, took_s=time.monotonic() - begin_s)


def aliased(patterns: tuple[str, ...], num_wrong: int) -> bool:
    def alias(name: str, pieces: list[torch.Tensor]) -> None:
        pieces[0][WORD] = pieces[-2][WORD]

    result = memory_fill.measure(**FILL, hold_s=0.0, patterns=patterns, between_write_and_verify=alias)
    return say(f"two addresses are one, {', '.join(patterns)}", result.num_wrong == num_wrong, where=result.where)


def everything_wrong() -> bool:
    torch.cuda.reset_peak_memory_stats(GPU)

    def invert(name: str, pieces: list[torch.Tensor]) -> None:
        for piece in pieces:
            piece.bitwise_not_()

    result = memory_fill.measure(**FILL, hold_s=0.0, patterns=["random"], between_write_and_verify=invert)
    beside = torch.cuda.max_memory_allocated(GPU) - result.tested_bytes
    good = result.num_wrong * 8 == result.tested_bytes and len(result.first_wrong) == memory_fill.MOST_NAMED and beside < 400 * 2**20
    return say("all words wrong", good, num_wrong=result.num_wrong, beside_bytes=beside)


def refuses_small_arrays() -> bool:
    try:
        hbm.measure("copy", array_bytes=2**20, device=GPU, block_s=0.1, num_blocks=2)
    except ValueError as error:
        return say("arrays below 16 L2", True, error=str(error))
    return say("arrays below 16 L2", False)


def say(what: str, good: bool, **more: object) -> bool:
    print(json.dumps({"what": what, "good": good, **more}), flush=True)
    return good


if __name__ == "__main__":
    main()
