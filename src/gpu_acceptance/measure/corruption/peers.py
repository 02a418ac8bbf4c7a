"""Whose bits must be equal to whose, when every rank has told all others of what kind it is and what it made.

Ranks are of one kind where cuBLAS promises equal bits (see `compare`), and where the other libraries are the same ones too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from gpu_acceptance.measure.corruption.compare import compare_peers

SHORT = 6  # hexadecimal digits of one work in a fingerprint: 24 bits tell which of them differ
_LIBRARIES = ("torch", "cuda", "cudnn", "driver")


def kind_of(device: torch.device, versions: Mapping[str, str]) -> str:
    """`NVIDIA H200, 132 SMs, torch 2.11.0, cuda 13.0, ...`: all that must be equal for bits to be. `versions`: by name."""
    libraries = [f"{name} {versions[name]}" for name in _LIBRARIES if name in versions]
    if device.type == "cpu":
        return ", ".join([f"CPU with {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", *libraries])
    seen = torch.cuda.get_device_properties(device)
    return ", ".join([f"{seen.name}, {seen.multi_processor_count} SMs", *libraries])


def odd_kind(own: str, kinds: Sequence[str]) -> str:
    """Why the hashes of a rank of kind `own` are not held against those of most ranks; empty where they are.

    `kinds`: of all ranks. Where no kind is more common than another, none is that of most, and nothing is compared.
    """
    (common, num_common), *others = Counter(kinds).most_common(2)
    if others and others[0][1] == num_common:
        return f"not compared: this is {own}; of {len(kinds)} ranks, no kind is that of most"
    return "" if own == common else f"not compared: this is {own}; most ranks are {common}"


def differing_works(own: str, kind: str, works: Sequence[str], told: Sequence[tuple[str, str]]) -> str:
    """In which works this rank has not the bits of most of its kind; empty where it has, or has no peer.

    `own`: its fingerprint, `SHORT` digits for each work; `told`: kind and fingerprint of every rank.
    """
    others = [fingerprint for its_kind, fingerprint in told if its_kind == kind]
    differing = [name for number, name in enumerate(works) if _differs(_part(own, number), [_part(one, number) for one in others])]
    return f"differs in {', '.join(differing)}" if differing else ""


def _part(fingerprint: str, number: int) -> str:
    return fingerprint[SHORT * number : SHORT * (number + 1)]


def _differs(own: str, parts: Sequence[str]) -> bool:
    return len(set(parts)) > 1 and own != compare_peers({str(number): part for number, part in enumerate(parts)}).hash
