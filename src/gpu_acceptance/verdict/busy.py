"""GPUs that other programs use: a run puts no load on them, unless `--allow-busy` asks for it. What is measured beside one that comes
later proves neither a pass nor a miss. Pure.

Before the first worker starts, every process on a GPU is foreign. Inside a container NVML gives the pids of the host, or shows no process
at all: pids are named and never compared, and memory in use is a second sign.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf

from gpu_acceptance.base.text import first_few, one_line, plural
from gpu_acceptance.inventory import gpu_health
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.binding import named_devices
from gpu_acceptance.inventory.gpu import Gpu, GpuUse
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, ForeignUse, RankRecord
from gpu_acceptance.thresholds.limit import Limit, Profile, bound_at, matching_reason, show

NOTE = "busy GPUs allowed"  # in the verdict line
WAIVERS: Mapping[str, str] = {"gpu_health.processes.*": "GPUs that other programs use are allowed (--allow-busy)"}

_FOREIGN = "gpu_health.processes.foreign"
_WITHOUT_LIMIT = {_FOREIGN: 0.0}  # in a profile without such a limit; memory alone proves nothing then
_MOST_LINES = 20
# A foreign process may be the reason for these. All else that a limit pins to one value, or to none, tells of the hardware.
_MAY_BE_ITS_DOING = ("counters.xids*", "*.throttle.*", "*.throttling.*", *WAIVERS)
_OF_VALUES = ("*error", "*.loss*", "*.departure")  # of results, which are the same at any speed


def find_busy(identities: Sequence[RankIdentity], profile: Profile) -> str | None:
    """Return why no load may be put on the GPUs of this job: node, GPU, serial, processes and memory of each that is in use.

    Only the GPUs count that these ranks will open: a run on some GPUs of a node may leave the rest to others.
    """
    lines = list(dict.fromkeys(line for identity in identities for line in _lines(identity, profile)))
    if not lines:
        return None
    head = f"another program uses {plural(len(lines), 'GPU')} of this job, so that no figure would be that of the hardware:"
    todo = "end what runs there (pids are those of the host), or take other GPUs; --allow-busy runs all the same, and the verdict says so"
    return "\n".join([head, *first_few(lines, _MOST_LINES, "  ... and {} more"), todo])


def _lines(identity: RankIdentity, profile: Profile) -> Iterator[str]:
    """Compare with the limits that judge the same figures later. An answer that NVML lacks is not refused: it is not measured later."""
    for gpu in _gpus_of(identity):
        for metric, value, _, _ in gpu_health.processes(gpu.use) if gpu.use else ():
            limit = profile.limits.get(metric)
            bound = bound_at(limit.at_most, identity.local_world_size, 1) if limit else None
            most = _WITHOUT_LIMIT.get(metric, inf) if bound is None else bound
            if gpu.use and isinstance(value, int) and value > most:
                yield f"  {identity.host}, {gpu.label}: {use_text(gpu.use)}"
                break


def _gpus_of(identity: RankIdentity) -> list[Gpu]:
    """Return the GPU that this rank will open, as far as that is known before; else all that it could.

    CUDA may count in another order than NVML. A rank that opens another GPU is judged by the processes on that one.
    """
    usable = [gpu for gpu in identity.gpus if gpu.uuid]  # a GPU that this process may not use has no UUID
    names = named_devices(identity.environment)
    if names is not None and identity.local_rank >= len(names):
        return usable
    name = str(identity.local_rank) if names is None else names[identity.local_rank]
    found = usable[int(name) :][:1] if name.isdecimal() else [gpu for gpu in usable if gpu.uuid.startswith(name)]
    return found or usable


def use_text(use: GpuUse) -> str:
    """Return `1 process (pid 1607: 1204 MiB), 1831 MiB in use`."""
    (_, number, _, named), (_, memory, unit, _) = gpu_health.processes(use)
    who = f"processes {number}" if isinstance(number, Missing) else "no process that NVML shows"
    if isinstance(number, int) and number:
        who = f"{plural(number, 'process', 'processes')} ({named})"
    how_much = f"memory {memory}" if isinstance(memory, Missing) else f"{show(memory)} {unit} in use"
    return f"{who}, {how_much}"


# --- processes that come while a run measures --------------------------------------------------------------------------------------


def is_allowed(waivers: Mapping[str, str]) -> bool:
    """Return True where other programs may use the GPUs of this run."""
    return matching_reason(_FOREIGN, waivers) is not None


def is_disturbed(attempt: Attempt, waivers: Mapping[str, str]) -> bool:
    """Return True where a foreign process used a GPU of this job meanwhile, or nobody knows. It disturbs all ranks: they work together."""
    return not is_allowed(waivers) and any(record.foreign or record.unwatched for record in attempt.ranks)


def undisturbed(attempts: Iterable[Attempt], waivers: Mapping[str, str]) -> list[Attempt]:
    """Return the attempts that decide."""
    return [attempt for attempt in attempts if not is_disturbed(attempt, waivers)]


def judged_part(attempts: Iterable[Attempt], waivers: Mapping[str, str], limits: Mapping[str, Limit]) -> list[Attempt]:
    """Return the attempts with all figures that may be judged: of a disturbed one, those that show a fault of the hardware itself."""
    return [_faults_of(attempt, limits) if is_disturbed(attempt, waivers) else attempt for attempt in attempts]


def _faults_of(attempt: Attempt, limits: Mapping[str, Limit]) -> Attempt:
    return attempt.model_copy(update={"ranks": tuple(_faults_of_rank(record, limits) for record in attempt.ranks)})


def _faults_of_rank(record: RankRecord, limits: Mapping[str, Limit]) -> RankRecord:
    """Return it with these figures alone, as that of a rank whose figures count: an uncorrectable error ends most workers."""
    kept = {name: tuple(one for one in getattr(record, name) if _is_fault(one, limits.get(one.metric))) for name in ("figures", "counters")}
    return record.model_copy(update={**kept, "outcome": Outcome.FAILED})


def _is_fault(figure: Figure, limit: Limit | None) -> bool:
    """Return True for a figure that no other process changes: it is exact, or a result."""
    if limit is None or figure.value is None or figure.anomaly or any(fnmatchcase(figure.metric, glob) for glob in _MAY_BE_ITS_DOING):
        return False
    is_exact = limit.equals is not None or limit.uniform or limit.at_most == 0
    return is_exact or any(fnmatchcase(figure.metric, glob) for glob in _OF_VALUES)


def why_disturbed(records: Iterable[RankRecord]) -> str:
    """Return what disturbed an attempt, of the first rank that tells of any."""
    return next((foreign_text(one.foreign[0]) if one.foreign else one.unwatched for one in records if one.foreign or one.unwatched), "")


def foreign_text(use: ForeignUse) -> str:
    """Return `GPU 3 was used by another process (pid 4242, python, 1.2 GiB) from +12.3 s to +40.1 s`."""
    who = [f"pid {use.pid}", one_line(use.name)] if use.pid else ["hidden from this container"]
    memory = [] if use.memory_bytes is None else [_memory(use.memory_bytes)]
    about = ", ".join(filter(None, [*who, *memory]))
    return f"GPU {use.gpu} was used by another process ({about}) from +{use.from_s:.1f} s to +{use.to_s:.1f} s"


def _memory(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
