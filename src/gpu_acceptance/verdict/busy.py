"""GPUs that somebody else uses: no load is put on them, unless `--allow-busy` asks for it. Pure.

What is on a GPU before the first worker starts is somebody else's, whoever started it. Inside a container NVML gives the pids of the host,
or shows no process at all: pids are named and never compared, and memory in use is a second sign.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from gpu_acceptance.base.text import first_few
from gpu_acceptance.inventory import gpu_health
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.binding import named_devices
from gpu_acceptance.inventory.gpu import Gpu, GpuUse
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.thresholds.limit import Profile, bound_at, plural, show

NOTE = "busy GPUs allowed"  # in the verdict line
WAIVERS: Mapping[str, str] = {"gpu_health.processes.*": "GPUs that somebody else uses are allowed (--allow-busy)"}

_WITHOUT_LIMIT = {"gpu_health.processes.foreign": 0.0}  # in a profile that says nothing of it; memory alone proves nothing then
_MOST_LINES = 20


def find_busy(identities: Sequence[RankIdentity], profile: Profile) -> str | None:
    """Why no load may be put on the GPUs of this job: node, GPU and serial of each that is in use, its processes and its memory.

    Of the GPUs that these ranks will open, and of no other: who tests some GPUs of a node may leave the rest to others.
    """
    lines = list(dict.fromkeys(line for identity in identities for line in _lines(identity, profile)))
    if not lines:
        return None
    head = f"somebody else uses {plural(len(lines), 'GPU')} of this job, so that no figure would be that of the hardware:"
    todo = "end what runs there (pids are those of the host), or take other GPUs; --allow-busy runs all the same, and the verdict says so"
    return "\n".join([head, *first_few(lines, _MOST_LINES, "  ... and {} more"), todo])


def _lines(identity: RankIdentity, profile: Profile) -> Iterator[str]:
    for gpu in _gpus_of(identity):
        if gpu.use and _is_busy(gpu.use, profile, identity.local_world_size):
            yield f"  {identity.host}, {gpu.label}: {use_text(gpu.use)}"


def _gpus_of(identity: RankIdentity) -> list[Gpu]:
    """The GPU that this rank will open, as far as anybody knows before it does; else all that it could.

    CUDA may count in another order than NVML. A rank that opens another GPU than this one is judged by what was on that one.
    """
    usable = [gpu for gpu in identity.gpus if gpu.uuid]  # one that may not be used by this process has none
    names = named_devices(identity.environment)
    if names is not None and identity.local_rank >= len(names):
        return usable
    name = str(identity.local_rank) if names is None else names[identity.local_rank]
    found = usable[int(name) :][:1] if name.isdecimal() else [gpu for gpu in usable if gpu.uuid.startswith(name)]
    return found or usable


def _is_busy(use: GpuUse, profile: Profile, gpus_per_node: int) -> bool:
    """By the limits that judge the same figures later. What NVML does not tell is not refused here: it is not measured there."""
    found = {metric: value for metric, value, _, _ in gpu_health.processes(use) if isinstance(value, int)}
    return any(value > _at_most(metric, profile, gpus_per_node) for metric, value in found.items())


def _at_most(metric: str, profile: Profile, gpus_per_node: int) -> float:
    limit = profile.limits.get(metric)
    bound = bound_at(limit.at_most, gpus_per_node) if limit else None
    return _WITHOUT_LIMIT.get(metric, inf) if bound is None else bound


def use_text(use: GpuUse) -> str:
    """`1 process (pid 1607: 1204 MiB), 1831 MiB in use`."""
    (_, number, _, named), (_, memory, unit, _) = gpu_health.processes(use)
    who = f"processes {number}" if isinstance(number, Missing) else "no process that NVML shows"
    if isinstance(number, int) and number:
        who = f"{number} {'process' if number == 1 else 'processes'} ({named})"
    how_much = f"memory {memory}" if isinstance(memory, Missing) else f"{show(memory)} {unit} in use"
    return f"{who}, {how_much}"
