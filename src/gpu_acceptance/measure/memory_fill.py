"""Pattern test over nearly all free memory of one device: every word must read back as it was written.

All of it is written before any of it is compared. So compared words come from memory and no longer from a cache, and a word that was
written to the address of another is found. Constant patterns hold every bit at 0 and at 1 and differ from their neighbours. They cannot
find an address line that is stuck, since all addresses hold the same. `address`, where each word holds its own index (as in memtest86 and
in DCGM's memtest), and `random` can.

While a pattern is held the device multiplies matrices, so that its memory is that of a GPU at work, hot and beside a core that
draws power. Words are compared on the device, a piece at a time, in one scratch piece beside the tested memory. If the scratch itself is
faulty, a word is wrong at the same place of many pieces. Words have 64 bits. Tensor suffixes: N words of a piece, P pieces, SS a square.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from gpu_acceptance.measure.timing import wait_for

SEED = 20_261_120
MOST_NAMED = 4  # wrong words of each pattern that are located
_WORD_BYTES = 8
_PIECE = 2**25  # words: 256 MiB; larger than any L2, and with a scratch of the same size small beside 5 % of 24 GB
_MOST_ROWS = 4096  # of the matrices; one product takes some 0.2 ms on an H200
_PRODUCTS_AT_ONCE = 50
_SEARCHED = 2**20  # words at a time while wrong ones are located: all may be wrong, and their indices need room

Write = Callable[[Tensor, int, int], object]  # words of one piece, number of the piece, index of its first word
Hook = Callable[[str, list[Tensor]], object]  # pattern, pieces


def _constant(byte: int) -> Write:
    word = int.from_bytes(bytes([byte] * _WORD_BYTES), signed=True)
    return lambda words_N, piece, first: words_N.fill_(word)


PATTERNS: dict[str, Write] = {
    "0x00": _constant(0x00),
    "0xFF": _constant(0xFF),
    "0x55": _constant(0x55),
    "0xAA": _constant(0xAA),
    "address": lambda words_N, piece, first: torch.arange(first, first + len(words_N), out=words_N),
    # All 64 bits; the same for the same piece, so that no copy is kept.
    "random": lambda words_N, piece, first: words_N.random_(
        -(2**63), None, generator=torch.Generator(words_N.device).manual_seed(SEED + piece)
    ),
}


@dataclass(frozen=True)
class WrongWord:
    """One word that did not read back as it was written. `expected` and `got` are unsigned."""

    pattern: str
    piece: int
    offset_bytes: int  # in the piece
    address_bytes: int  # in the tested memory, all pieces one after the other; no physical address
    expected: int
    got: int

    @property
    def xor(self) -> int:
        """The bits that differ."""
        return self.expected ^ self.got

    def __str__(self) -> str:
        """Return one line, with the bits that differ."""
        place = f"byte {self.address_bytes:#x} of the tested memory (piece {self.piece} + {self.offset_bytes:#x})"
        return f"{self.pattern}: {place} held {self.got:#018x}, not {self.expected:#018x}, XOR {self.xor:#018x}"


@dataclass(frozen=True)
class FillResult:
    """The result of one device."""

    free_bytes: int  # before anything was taken
    tested_bytes: int
    num_wrong: int  # words, summed over all patterns
    first_wrong: tuple[WrongWord, ...]  # up to 4 of each pattern; a word that is right on a second read is only counted

    @property
    def fraction(self) -> float:
        """The tested part of the free memory."""
        return self.tested_bytes / self.free_bytes

    @property
    def where(self) -> str:
        """The first wrong word, for a message; empty where none is wrong."""
        if not self.num_wrong:
            return ""
        return str(self.first_wrong[0]) if self.first_wrong else "right when read again"


def plant(num_words: int) -> Hook | None:
    """Return a fault for drills: one flipped bit in each of the last words, in the last pattern. None for no words."""
    if not num_words:
        return None

    def flip(pattern: str, pieces: list[Tensor]) -> None:
        if pattern == list(PATTERNS)[-1]:
            pieces[-1][-num_words:].bitwise_xor_(1 << 40)

    return flip


def measure(
    *,
    device: torch.device,
    fraction: float,
    hold_s: float,
    min_bytes: int,
    cpu_bytes: int = 0,
    patterns: Sequence[str] = tuple(PATTERNS),
    between_write_and_verify: Hook | None = None,
) -> FillResult:
    """Write each pattern to `fraction` of the free memory, hold it for `hold_s`, and count the words that read back wrong.

    Free memory of a GPU is what the driver reports, after torch has released its cache. On a CPU `cpu_bytes` counts as free, because torch
    cannot tell. RuntimeError where that leaves less than `min_bytes` to test.
    `between_write_and_verify(pattern, pieces)` may change words after they were written and held: for tests, and for drills on hardware.
    Not collective.
    """
    free_bytes = cpu_bytes
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free_bytes = torch.cuda.mem_get_info(device)[0]
    num_words = int(fraction * free_bytes) // _WORD_BYTES
    if num_words * _WORD_BYTES < min_bytes:
        tested = f"{fraction} of it is {num_words * _WORD_BYTES} bytes in whole words"
        raise RuntimeError(f"{device}: {free_bytes} bytes of memory are free, and {tested}; at least {min_bytes} must be tested")
    # In pieces, because no single range of addresses need be as large as all free memory; all but the last are full.
    sizes = [min(_PIECE, num_words), *(min(_PIECE, num_words - first) for first in range(0, num_words, _PIECE))]
    scratch_N, *pieces = (torch.empty(size, dtype=torch.int64, device=device) for size in sizes)
    num_wrong, first_wrong = 0, list[WrongWord]()
    for pattern in patterns:
        for number, piece_N in enumerate(pieces):
            PATTERNS[pattern](piece_N, number, number * _PIECE)
        _hold(hold_s, scratch_N)
        if between_write_and_verify is not None:
            between_write_and_verify(pattern, pieces)
        wrong_P = _count_wrong(pattern, pieces, scratch_N)
        num_wrong += sum(wrong_P)
        first_wrong += islice(_find_wrong(pattern, pieces, scratch_N, wrong_P), MOST_NAMED)
    return FillResult(free_bytes, sum(piece_N.nbytes for piece_N in pieces), num_wrong, tuple(first_wrong))


def _hold(hold_s: float, scratch_N: Tensor) -> None:
    """Work on the scratch alone, for at least `hold_s` from when the last word was written."""
    wait_for(scratch_N.device)
    begin_s = time.monotonic()
    numbers = scratch_N.view(torch.bfloat16).uniform_(-1, 1)  # zeros would keep a GPU cool
    size = min(_MOST_ROWS, math.isqrt(len(numbers) // 3))
    one_SS, other_SS, product_SS = (numbers[first * size * size :][: size * size].view(size, size) for first in range(3))
    while time.monotonic() - begin_s < hold_s:
        for _ in range(_PRODUCTS_AT_ONCE):
            torch.mm(one_SS, other_SS, out=product_SS)
        wait_for(scratch_N.device)


def _expected(pattern: str, number: int, piece_N: Tensor, scratch_N: Tensor) -> Tensor:
    """Return the words that one piece must hold, made anew in the scratch."""
    expected_N = scratch_N[: len(piece_N)]
    PATTERNS[pattern](expected_N, number, number * _PIECE)
    return expected_N


def _count_wrong(pattern: str, pieces: list[Tensor], scratch_N: Tensor) -> list[int]:
    """Count the wrong words of each piece. Waits for the device once, at the end."""
    wrong_P = torch.full((len(pieces),), _PIECE, device=scratch_N.device)  # a piece that was never counted is wrong
    for number, piece_N in enumerate(pieces):
        differs_N = _expected(pattern, number, piece_N, scratch_N).ne_(piece_N)  # 0 or 1 in place: the sum of bools would copy them
        torch.sum(differs_N, dim=0, keepdim=True, out=wrong_P[number : number + 1])
    counts: list[int] = wrong_P.tolist()
    return counts


def _find_wrong(pattern: str, pieces: list[Tensor], scratch_N: Tensor, wrong_P: list[int]) -> Iterator[WrongWord]:
    """Yield the wrong words of the pieces that have some, in order, as they read now. Waits for the device at every step."""
    for number in (number for number, num_wrong in enumerate(wrong_P) if num_wrong):
        expected_N, got_N = _expected(pattern, number, pieces[number], scratch_N), pieces[number]
        for start in range(0, len(got_N), _SEARCHED):
            differs_N = expected_N[start : start + _SEARCHED] != got_N[start : start + _SEARCHED]
            for index in (start + differs_N.nonzero().flatten()[:MOST_NAMED]).tolist():
                expected, got = (int(words_N[index]) % 2**64 for words_N in (expected_N, got_N))
                offset_bytes, first_bytes = index * _WORD_BYTES, number * _PIECE * _WORD_BYTES
                yield WrongWord(pattern, number, offset_bytes, first_bytes + offset_bytes, expected, got)
