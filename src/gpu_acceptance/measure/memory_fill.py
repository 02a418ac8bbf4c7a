"""Nearly all free memory of one device: every word must give back what was written to it, pattern after pattern.

All of it is written before any of it is compared, so that what is compared comes from memory and no longer from a cache,
and so that a word that landed at the address of another is seen. Constant patterns hold every bit at 0 and at 1 and
differ from their neighbours; they cannot see an address line that is stuck, since all addresses hold the same. `address`,
where each word holds its own index (as in memtest86 and in DCGM's memtest), and `random` can.

While a pattern is held the device multiplies matrices, so that its memory is that of a GPU at work, hot and beside a core that
draws power. Compared on the device, a piece at a time, in one scratch piece beside the tested memory. If the scratch itself is at
fault, a word is wrong at the same place of many pieces. Words have 64 bits. Tensor suffixes: N words of a piece, P pieces, SS a square.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

SEED = 20_261_120
MOST_NAMED = 4  # wrong words of each pattern that are looked for
_WORD_BYTES = 8
_PIECE = 2**25  # words: 256 MiB; larger than any L2, and with a scratch of the same size small beside 5 % of 24 GB
_MOST_ROWS = 4096  # of the matrices; one product takes some 0.2 ms on an H200
_PRODUCTS_AT_ONCE = 50
_LOOKED_AT = 2**20  # words at a time while wrong ones are looked for: they may be wrong all, and their indices need room

Write = Callable[[Tensor, int, int], object]  # words of one piece, number of the piece, index of its first word
Hook = Callable[[str, list[Tensor]], object]  # pattern, pieces


def _constant(byte: int) -> Write:
    word = int.from_bytes(bytes([byte] * _WORD_BYTES), signed=True)
    return lambda words_N, piece, first: words_N.fill_(word)


def _address(words_N: Tensor, piece: int, first: int) -> None:
    torch.arange(first, first + len(words_N), out=words_N)


def _random(words_N: Tensor, piece: int, first: int) -> None:
    """All 64 bits; the same for the same piece, so that no copy is kept."""
    words_N.random_(-(2**63), None, generator=torch.Generator(words_N.device).manual_seed(SEED + piece))


PATTERNS: dict[str, Write] = {
    "0x00": _constant(0x00),
    "0xFF": _constant(0xFF),
    "0x55": _constant(0x55),
    "0xAA": _constant(0xAA),
    "address": _address,
    "random": _random,
}


@dataclass(frozen=True)
class WrongWord:
    """One word that did not come back as it was written. `expected` and `got` are unsigned."""

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
        """In one line, with the bits that differ."""
        place = f"byte {self.address_bytes:#x} of the tested memory (piece {self.piece} + {self.offset_bytes:#x})"
        return f"{self.pattern}: {place} held {self.got:#018x}, not {self.expected:#018x}, XOR {self.xor:#018x}"


@dataclass(frozen=True)
class FillResult:
    """What was tested of one device, and what was wrong."""

    free_bytes: int  # before anything was taken
    tested_bytes: int
    num_wrong: int  # words, summed over all patterns
    first_wrong: tuple[WrongWord, ...]  # up to 4 of each pattern; a word that is right when it is read again is only counted

    @property
    def fraction(self) -> float:
        """How much of the free memory was tested."""
        return self.tested_bytes / self.free_bytes

    @property
    def where(self) -> str:
        """The first wrong word; empty where none is wrong."""
        if not self.num_wrong:
            return ""
        return str(self.first_wrong[0]) if self.first_wrong else "right when read again"


def spoil(num_words: int) -> Hook | None:
    """A planted fault for drills: one bit of the last words of the memory, in the last pattern. None where there are to be none."""
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
    """Write each pattern to `fraction` of the free memory, wait `hold_s`, and count the words that came back wrong.

    On a GPU what the driver says is free counts, after torch has given back what it only keeps; on a CPU `cpu_bytes`
    counts as free, because torch cannot tell. RuntimeError where that leaves less than `min_bytes` to test.
    `between_write_and_verify(pattern, pieces)` is for planted faults, in tests of this module and in drills on hardware:
    it may change words after they were written and held. Not collective.
    """
    _refuse_nonsense(device, fraction, hold_s, min_bytes, patterns)
    free_bytes = _free_bytes(device, cpu_bytes)
    num_words = int(fraction * free_bytes) // _WORD_BYTES
    if num_words * _WORD_BYTES < min_bytes:
        tested = f"{fraction} of it is {num_words * _WORD_BYTES} bytes in whole words"
        raise RuntimeError(f"{device}: {free_bytes} bytes of memory are free, and {tested}; at least {min_bytes} must be tested")
    scratch_N, *pieces = _take([min(_PIECE, num_words), *_sizes(num_words)], device)
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


def _refuse_nonsense(device: torch.device, fraction: float, hold_s: float, min_bytes: int, patterns: Sequence[str]) -> None:
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"cannot fill the memory of device {str(device)!r}; known: cpu, cuda")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction}: above 0 and below 1")
    if not (math.isfinite(hold_s) and hold_s >= 0):
        raise ValueError(f"hold_s={hold_s}: a finite number of seconds, not negative")
    if min_bytes < _WORD_BYTES:
        raise ValueError(f"min_bytes={min_bytes}: at least {_WORD_BYTES}, one word")
    if not patterns:
        raise ValueError(f"no patterns; known: {', '.join(PATTERNS)}")
    if unknown := [pattern for pattern in patterns if pattern not in PATTERNS]:
        raise ValueError(f"unknown pattern {unknown[0]!r}; known: {', '.join(PATTERNS)}")


def _free_bytes(device: torch.device, cpu_bytes: int) -> int:
    if device.type == "cpu":
        return cpu_bytes
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _sizes(num_words: int) -> list[int]:
    """Words of each piece; all but the last are full."""
    return [min(_PIECE, num_words - first) for first in range(0, num_words, _PIECE)]


def _take(sizes: list[int], device: torch.device) -> list[Tensor]:
    """Memory in pieces, because no single range of addresses need be as large as all that is free."""
    return [torch.empty(size, dtype=torch.int64, device=device) for size in sizes]


def _hold(hold_s: float, scratch_N: Tensor) -> None:
    """At least `hold_s` from when the last word was written, full of work that touches the scratch alone."""
    _wait_for(scratch_N.device)
    begin_s = time.monotonic()
    one_SS, other_SS, product_SS = _squares(scratch_N)
    while time.monotonic() - begin_s < hold_s:
        for _ in range(_PRODUCTS_AT_ONCE):
            torch.mm(one_SS, other_SS, out=product_SS)
        _wait_for(scratch_N.device)


def _squares(scratch_N: Tensor) -> list[Tensor]:
    """Three bf16 matrices in the scratch, the first two of random numbers: zeros would keep a GPU cool."""
    numbers = scratch_N.view(torch.bfloat16).uniform_(-1, 1)
    size = min(_MOST_ROWS, math.isqrt(len(numbers) // 3))
    return [numbers[first : first + size * size].view(size, size) for first in (0, size * size, 2 * size * size)]


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _expected(pattern: str, number: int, piece_N: Tensor, scratch_N: Tensor) -> Tensor:
    """What one piece must hold, made anew in the scratch."""
    expected_N = scratch_N[: len(piece_N)]
    PATTERNS[pattern](expected_N, number, number * _PIECE)
    return expected_N


def _count_wrong(pattern: str, pieces: list[Tensor], scratch_N: Tensor) -> list[int]:
    """Wrong words of each piece. Waits for the device once, at the end."""
    wrong_P = torch.full((len(pieces),), _PIECE, device=scratch_N.device)  # what was never counted is wrong
    for number, piece_N in enumerate(pieces):
        differs_N = _expected(pattern, number, piece_N, scratch_N).ne_(piece_N)  # 0 or 1 in place: the sum of bools would copy them
        torch.sum(differs_N, dim=0, keepdim=True, out=wrong_P[number : number + 1])
    counts: list[int] = wrong_P.tolist()
    return counts


def _find_wrong(pattern: str, pieces: list[Tensor], scratch_N: Tensor, wrong_P: list[int]) -> Iterator[WrongWord]:
    """The wrong words of the pieces that have some, in order, as they read now."""
    for number in (number for number, num_wrong in enumerate(wrong_P) if num_wrong):
        expected_N = _expected(pattern, number, pieces[number], scratch_N)
        for index, expected, got in _differences(expected_N, pieces[number]):
            offset_bytes, first_bytes = index * _WORD_BYTES, number * _PIECE * _WORD_BYTES
            yield WrongWord(pattern, number, offset_bytes, first_bytes + offset_bytes, _unsigned(expected), _unsigned(got))


def _differences(expected_N: Tensor, got_N: Tensor) -> Iterator[tuple[int, int, int]]:
    """Index, expected and got of each word that differs. Waits for the device at every step."""
    for start in range(0, len(got_N), _LOOKED_AT):
        expected, got = expected_N[start : start + _LOOKED_AT], got_N[start : start + _LOOKED_AT]
        indices = (expected != got).nonzero().flatten()[:MOST_NAMED]
        for index in indices.tolist():
            yield start + index, int(expected[index]), int(got[index])


def _unsigned(word: int) -> int:
    return word % 2**64
