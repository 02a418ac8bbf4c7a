"""What of a GPU's reading is judged, by topic: metric, answer, unit. The bounds are in the profiles; docs/limits.md explains each.

An answer that is missing is handed on as it is: whoever judges it has no value, and that is never fine.
"""

from collections.abc import Callable, Iterator

from gpu_acceptance.base.text import first_few
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import EccCounts, GpuProcess, GpuReading, GpusReading, GpuUse, NvLink

Finding = tuple[str, Answer[bool] | Answer[int] | Answer[float] | Answer[str], str]  # metric, value, unit
Findings = Iterator[Finding]
FindingsWithDetail = Iterator[tuple[*Finding, str]]

_MOST_PROCESSES = 8  # that are named

# What lowers the clocks of a healthy GPU; lowered clocks have a limit of their own. Any other word, of a later NVML too, is a finding.
_ORDINARY_REASONS = {"gpu idle", "application clocks setting", "sw power cap", "sync boost", "display clock setting"}


def gpu_of(reading: GpusReading, uuid: str) -> GpuReading:
    """The GPU that a process opened. Raises LookupError where NVML does not show it: then nothing is known of it."""
    if isinstance(reading.gpus, Missing):
        raise LookupError(f"NVML shows no GPUs: {reading.gpus}")
    for gpu in reading.gpus:
        if gpu.uuid == uuid:
            return gpu
    raise LookupError(f"NVML shows no GPU {uuid}, but {', '.join(str(gpu.uuid) for gpu in reading.gpus) or 'none'}")


def identity(gpu: GpuReading) -> Findings:
    yield "gpu_health.identity.name", gpu.name, "text"
    yield "gpu_health.identity.part_number", gpu.part_number, "text"
    yield "gpu_health.identity.vbios", gpu.vbios, "text"
    yield "gpu_health.identity.inforom", gpu.inforom, "text"


def memory(gpu: GpuReading) -> Findings:
    yield "gpu_health.memory.total", _mebibytes(gpu.total_bytes), "MiB"
    yield "gpu_health.memory.unrepairable", gpu.has_unrepairable_memory, "bool"
    yield "gpu_health.memory.channel_repair_pending", gpu.channel_repair_is_pending, "bool"
    yield "gpu_health.memory.tpc_repair_pending", gpu.tpc_repair_is_pending, "bool"


def ecc(gpu: GpuReading) -> Findings:
    yield "gpu_health.ecc.on", gpu.ecc.is_on, "bool"
    yield "gpu_health.ecc.on_after_reboot", gpu.ecc.is_on_after_reboot, "bool"
    yield "gpu_health.ecc.sram_threshold_exceeded", gpu.ecc.sram_threshold_exceeded, "bool"
    yield from _ecc_counts("volatile", gpu.ecc.volatile)
    yield from _ecc_counts("aggregate", gpu.ecc.aggregate)


def _ecc_counts(name: str, counts: EccCounts) -> Findings:
    yield f"gpu_health.ecc.{name}_sram_uncorrected", counts.sram_uncorrected, "count"
    yield f"gpu_health.ecc.{name}_dram_uncorrected", counts.dram_uncorrected, "count"


def corrected(gpu: GpuReading) -> tuple[Finding, ...]:
    """Memory errors that lost no data, and the rows that were replaced because of them. They inform, and are not judged."""
    return (
        ("gpu_health.ecc.volatile_sram_corrected", gpu.ecc.volatile.sram_corrected, "count"),
        ("gpu_health.ecc.volatile_dram_corrected", gpu.ecc.volatile.dram_corrected, "count"),
        ("gpu_health.ecc.aggregate_sram_corrected", gpu.ecc.aggregate.sram_corrected, "count"),
        ("gpu_health.ecc.aggregate_dram_corrected", gpu.ecc.aggregate.dram_corrected, "count"),
        ("gpu_health.remapping.corrected_rows", gpu.remapping.num_corrected_rows, "count"),
    )


def remapping(gpu: GpuReading) -> Findings:
    yield "gpu_health.remapping.pending", gpu.remapping.is_pending, "bool"
    yield "gpu_health.remapping.failed", gpu.remapping.has_failed, "bool"
    yield "gpu_health.remapping.uncorrected_rows", gpu.remapping.num_uncorrected_rows, "count"
    yield "gpu_health.remapping.banks_without_spares", gpu.remapping.num_banks_none, "count"


def retired_pages(gpu: GpuReading) -> Findings:
    yield "gpu_health.retired_pages.pending", gpu.retired_pages.is_pending, "bool"
    yield "gpu_health.retired_pages.single_bit", gpu.retired_pages.num_single_bit, "count"
    yield "gpu_health.retired_pages.double_bit", gpu.retired_pages.num_double_bit, "count"


def recovery(gpu: GpuReading) -> Findings:
    yield "gpu_health.recovery.action", gpu.recovery_action, "text"


def clocks(gpu: GpuReading) -> Findings:
    yield "gpu_health.clocks.max_sm", gpu.clocks.max_sm_mhz, "MHz"
    yield "gpu_health.clocks.max_memory", gpu.clocks.max_memory_mhz, "MHz"
    yield "gpu_health.clocks.lowered", _difference(gpu.clocks.default_application_sm_mhz, gpu.clocks.application_sm_mhz), "MHz"


def power(gpu: GpuReading) -> Findings:
    yield "gpu_health.power.default_limit", gpu.power.default_limit_w, "W"
    yield "gpu_health.power.lowered", _difference(gpu.power.default_limit_w, gpu.power.enforced_limit_w), "W"


def throttling(gpu: GpuReading) -> Findings:
    reasons = gpu.throttling.reasons
    bad = reasons if isinstance(reasons, Missing) else ", ".join(reason for reason in reasons if reason not in _ORDINARY_REASONS) or "none"
    yield "gpu_health.throttling.now", bad, "text"


def temperature(gpu: GpuReading) -> Findings:
    yield "gpu_health.temperature.margin", gpu.temperature.margin_c, "C"


def pcie(gpu: GpuReading) -> Findings:
    """To be read while something is copied: an idle link may run slower."""
    yield "gpu_health.pcie.generation", gpu.pcie.generation, "generation"
    yield "gpu_health.pcie.width", gpu.pcie.width, "lanes"


def nvlink(gpu: GpuReading) -> Findings:
    links = gpu.nvlinks
    if isinstance(links, Missing):
        for metric, unit in (("active", "count"), ("slowest", "MB/s"), ("recoveries", "count")):
            yield f"gpu_health.nvlink.{metric}", links, unit
        return
    yield "gpu_health.nvlink.active", _total(links, lambda link: link.is_active), "count"
    yield "gpu_health.nvlink.slowest", _over(links, lambda link: link.speed_mb_per_s, min), "MB/s"
    yield "gpu_health.nvlink.recoveries", _total(links, lambda link: link.num_recoveries), "count"


def fabric(gpu: GpuReading) -> Findings:
    yield "gpu_health.fabric.state", gpu.fabric.state, "text"
    yield "gpu_health.fabric.status", gpu.fabric.status, "text"


def modes(gpu: GpuReading) -> Findings:
    yield "gpu_health.modes.mig", gpu.mig_is_on, "bool"
    yield "gpu_health.modes.mig_after_reset", gpu.mig_is_on_after_reset, "bool"
    yield "gpu_health.modes.persistence", gpu.persistence_is_on, "bool"
    yield "gpu_health.modes.compute", gpu.compute_mode, "text"


def peers(reading: GpusReading, index: int) -> Findings:
    """How many other GPUs of the node this one cannot reach directly; missing where of one of them nothing is told."""
    links = [link for link in reading.peers if link.source == index]
    untold = _untold(reading.gpus, {index, *(link.target for link in links)})
    for name in ("read", "write", "nvlink"):
        answers = [getattr(link, name) for link in links]
        missing = next((answer for answer in answers if isinstance(answer, Missing)), untold)
        yield f"gpu_health.peers.without_{name}", missing or sum(answer != "ok" for answer in answers), "count"


def _untold(gpus: Answer[tuple[GpuReading, ...]], told: set[int]) -> Missing | None:
    if isinstance(gpus, Missing):
        return gpus
    silent = [gpu.index for gpu in gpus if gpu.index not in told]
    return Missing(Why.NOT_THERE, f"nothing is told of the way to GPU {', '.join(map(str, silent))}"[:200]) if silent else None


def processes(gpu: GpuUse | GpuReading) -> FindingsWithDetail:
    """To be read before the run puts anything on the GPU: whatever is there then is somebody else's."""
    found = gpu.processes
    told = "" if isinstance(found, Missing) else process_list(found)
    yield "gpu_health.processes.foreign", found if isinstance(found, Missing) else len(found), "count", told
    yield "gpu_health.processes.memory_used", _mebibytes(gpu.used_bytes), "MiB", ""


def process_list(found: tuple[GpuProcess, ...]) -> str:
    """`pid 1607: 1204 MiB, pid 1700: memory not supported`."""
    texts = [f"pid {one.pid}: {_memory_of(one)}" for one in found]
    return ", ".join(first_few(texts, _MOST_PROCESSES))


def _memory_of(process: GpuProcess) -> str:
    return f"memory {process.used_bytes}" if isinstance(process.used_bytes, Missing) else f"{_mebibytes(process.used_bytes)} MiB"


PER_GPU: dict[str, Callable[[GpuReading], Findings]] = {
    one.__name__: one
    for one in (
        *(identity, memory, ecc, remapping, retired_pages, recovery, clocks, power),
        *(throttling, temperature, pcie, nvlink, fabric, modes),
    )
}


def _mebibytes(num_bytes: Answer[int]) -> Answer[int]:
    """As nvidia-smi shows memory."""
    return num_bytes if isinstance(num_bytes, Missing) else num_bytes // 2**20


def _difference(larger: Answer[float], smaller: Answer[float]) -> Answer[float]:
    if isinstance(larger, Missing):
        return larger
    return smaller if isinstance(smaller, Missing) else larger - smaller


def _total(links: tuple[NvLink, ...], value_of: Callable[[NvLink], Answer[int]]) -> Answer[int]:
    return _over(links, value_of, sum)


def _over(links: tuple[NvLink, ...], value_of: Callable[[NvLink], Answer[int]], reduce: Callable[[list[int]], int]) -> Answer[int]:
    """One value of all links; missing where one of them is, with the link's number."""
    values: list[int] = []
    for link in links:
        value = value_of(link)
        if isinstance(value, Missing):
            return Missing(value.missing, f"link {link.index}: {value.detail}".rstrip(": "))
        values.append(int(value))
    return reduce(values) if values else Missing(Why.NOT_THERE, "the GPU has no NVLink")
