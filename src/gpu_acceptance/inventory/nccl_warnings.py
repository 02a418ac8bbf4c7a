"""Warnings of NCCL and of libibverbs among the lines that a process wrote, without those that are known to harm nothing. Pure."""

import re
from collections.abc import Iterable

# `[2026-11-22 13:00:18] node-03:1107:1107 [0] enqueue.cc:1859 NCCL WARN Error : no algorithm/protocol available ...`, as NCCL 2.28.9 wrote
# it. Its src/debug.cc of 2026 writes the function behind the place.
_KINDS = {
    "nccl": re.compile(r":\d+:\d+ \[-?\d+\] (?P<text>(?:\S+ )?(?:\(\S+\) )?NCCL WARN .{0,2000})", re.ASCII),
    "libibverbs": re.compile(r"(?P<text>libibverbs: .{0,2000})"),  # it writes to stderr warnings alone (rdma-core, libibverbs/init.c)
}
NAMES = tuple(_KINDS)

# What a whole message must look like -> why it harms nothing.
HARMLESS = {
    r"libibverbs: Warning: couldn't open config directory '[^']*'\.?": (
        "an image without drivers of RDMA devices; what NCCL then uses between nodes is judged by nccl.transport"
    ),
}
_HARMLESS = [re.compile(pattern) for pattern in HARMLESS]


def unexpected(lines: Iterable[str]) -> dict[str, list[str]]:
    """By kind, each warning that nobody has explained, from its place in the source on."""
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for line in lines:
        for name, pattern in _KINDS.items():
            match = pattern.search(line)
            if match and not any(harmless.fullmatch(match["text"].strip()) for harmless in _HARMLESS):
                found[name].append(match["text"].strip())
    return found
