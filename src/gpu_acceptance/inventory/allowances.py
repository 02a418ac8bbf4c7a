"""How much this process may use, whatever the node has: its resource limits, /dev/shm, its cgroups."""

from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory import cgroup, space
from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_text
from gpu_acceptance.inventory.cgroup import Cgroup
from gpu_acceptance.inventory.parsing import UNLIMITED, Unlimited, whole_number
from gpu_acceptance.inventory.space import Space


@dataclass(frozen=True)
class Allowance:
    """A resource limit: the soft one holds, and the process may raise it up to the hard one (getrlimit(2))."""

    soft: int | Unlimited
    hard: int | Unlimited


@dataclass(frozen=True)
class Allowances:
    """Sources: /proc/self/limits (proc_pid_limits(5)), statvfs of /dev/shm, and what cgroup.py reads."""

    memlock_bytes: Answer[Allowance]  # memory that may be pinned: RDMA registers its buffers there
    nofile: Answer[Allowance]  # open files
    nproc: Answer[Allowance]  # processes and threads of this user
    stack_bytes: Answer[Allowance]
    shm: Answer[Space]  # NCCL and data loaders pass data through /dev/shm; containers often have 64 MB
    cgroup: Cgroup


def read(root: Path = Path("/")) -> Allowances:
    path = root / "proc/self/limits"
    text = read_text(path)
    return Allowances(
        memlock_bytes=_allowance(text, "Max locked memory", path),
        nofile=_allowance(text, "Max open files", path),
        nproc=_allowance(text, "Max processes", path),
        stack_bytes=_allowance(text, "Max stack size", path),
        shm=space.of(root / "dev/shm"),
        cgroup=cgroup.read(root),
    )


def _allowance(text: Answer[str], name: str, path: Path) -> Answer[Allowance]:
    """A table: `Max open files            20000                524288               files`."""
    if isinstance(text, Missing):
        return text
    row = next((line.removeprefix(name) for line in text.split("\n") if line.startswith(f"{name} ")), None)
    if row is None:
        return Missing(Why.NOT_THERE, f"{path} has no {name}")
    try:
        soft, hard, _ = row.split()
        return Allowance(_amount(soft), _amount(hard))
    except ValueError:
        return Missing(Why.UNREADABLE, f"{path}: {name} is {row.strip()!r:.80}")


def _amount(text: str) -> int | Unlimited:
    return UNLIMITED if text == UNLIMITED else whole_number(text)
