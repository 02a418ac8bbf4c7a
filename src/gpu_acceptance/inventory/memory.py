"""The memory of this node and the settings that change how fast it is."""

import re
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, names_in, read_value
from gpu_acceptance.inventory.fields import read_fields
from gpu_acceptance.inventory.parsing import choice_in_brackets, kib_in_bytes, whole_number


@dataclass(frozen=True)
class HugePages:
    """The pool of one page size."""

    page_bytes: int
    num_pages: Answer[int]
    num_free: Answer[int]


@dataclass(frozen=True)
class Memory:
    """Sources: /proc/meminfo, /proc/sys/kernel/numa_balancing, /sys/kernel/mm.

    Formats: Documentation/filesystems/proc.rst, Documentation/admin-guide/mm/hugetlbpage.rst and transhuge.rst,
    Documentation/admin-guide/sysctl/kernel.rst.
    """

    total_bytes: Answer[int]
    available_bytes: Answer[int]  # what could be had without swapping, by the kernel's estimate
    swap_bytes: Answer[int]  # 0: the node has no swap
    hugepages: Answer[tuple[HugePages, ...]]  # by page size, ascending
    transparent_hugepages: Answer[str]  # `always`, `madvise` or `never`
    numa_balancing_mode: Answer[int]  # 0 off, 1 on, 2 memory tiering, 3 both


def read(root: Path = Path("/")) -> Memory:
    info = read_fields(root / "proc/meminfo")
    settings = root / "sys/kernel/mm"
    return Memory(
        total_bytes=info.get("MemTotal", kib_in_bytes),
        available_bytes=info.get("MemAvailable", kib_in_bytes),
        swap_bytes=info.get("SwapTotal", kib_in_bytes),
        hugepages=_hugepages(settings / "hugepages"),
        transparent_hugepages=read_value(settings / "transparent_hugepage/enabled", choice_in_brackets),
        numa_balancing_mode=read_value(root / "proc/sys/kernel/numa_balancing", whole_number),
    )


def _hugepages(folder: Path) -> Answer[tuple[HugePages, ...]]:
    names = names_in(folder)
    if isinstance(names, Missing):
        return names
    pools = []
    for name in names:
        size = re.fullmatch(r"hugepages-([0-9]{1,15})kB", name, re.ASCII)
        if size is None:
            return Missing(Why.UNREADABLE, f"{folder} holds {name!r:.80}")
        num_pages, num_free = (read_value(folder / name / file, whole_number) for file in ("nr_hugepages", "free_hugepages"))
        pools.append(HugePages(int(size[1]) * 1024, num_pages, num_free))
    return tuple(sorted(pools, key=lambda pool: pool.page_bytes))
