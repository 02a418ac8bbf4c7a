"""Findings in a GPU's reading by topic: metric, answer, unit. The bounds are in the profiles; docs/limits.md explains each.

A missing answer stays missing, and never counts as a pass.
"""

from collections.abc import Callable, Iterator

from gpu_acceptance.base.text import first_few
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_of, as_cpu_list, combine, detail_of, is_lacking, then, with_name
from gpu_acceptance.inventory.gpu import GpuProcess, GpuReading, GpusReading, GpuUse, NvLink

Finding = tuple[str, Answer[bool] | Answer[int] | Answer[float] | Answer[str], str]  # metric, value, unit
Findings = Iterator[Finding]
FindingsWithDetail = Iterator[tuple[*Finding, str]]

_MOST_PROCESSES = 8  # in a message

_SETTINGS = {"application clocks setting", "display clock setting"}
# Reasons for low clocks of a healthy GPU; lowered clocks have their own limit. Any other word, also of a later NVML, is a finding.
_ORDINARY_REASONS = {"gpu idle", "sw power cap", "sync boost", *_SETTINGS}


def gpu_of(reading: GpusReading, uuid: str) -> GpuReading:
    """Return the GPU that a process opened. Raises LookupError where NVML does not show it."""
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
    yield "gpu_health.ecc.volatile_sram_uncorrected", gpu.ecc.volatile.sram_uncorrected, "count"
    yield "gpu_health.ecc.volatile_dram_uncorrected", gpu.ecc.volatile.dram_uncorrected, "count"
    yield "gpu_health.ecc.aggregate_sram_uncorrected", gpu.ecc.aggregate.sram_uncorrected, "count"
    yield "gpu_health.ecc.aggregate_dram_uncorrected", gpu.ecc.aggregate.dram_uncorrected, "count"


def corrected(gpu: GpuReading) -> tuple[Finding, ...]:
    """Return memory errors that lost no data, and the rows replaced because of them, for information."""
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


def clocks(gpu: GpuReading) -> Iterator[Finding | tuple[*Finding, str]]:
    """Yield maximum clocks and how far a setting lowers the clock, to be read at work: whether an idle GPU is held down is not seen."""
    yield "gpu_health.clocks.max_sm", gpu.clocks.max_sm_mhz, "MHz"
    yield "gpu_health.clocks.max_memory", gpu.clocks.max_memory_mhz, "MHz"
    by_setting = _difference(gpu.clocks.default_application_sm_mhz, gpu.clocks.application_sm_mhz)
    lowered, detail = _held_down(gpu) if is_lacking(by_setting) else (by_setting, "")
    yield "gpu_health.clocks.lowered", lowered, "MHz", detail


def _held_down(gpu: GpuReading) -> tuple[Answer[float], str]:
    """Return how far the clock is below its maximum, where no reason but a setting explains it, and what was seen.

    So a locked clock is seen on a driver without application clocks. Without a reason, clocks are as high as possible (nvidia-smi(1),
    clocks_event_reasons): H100 and H200 that copied were at their maximum (reports/evidence). A locked GPU gives no reason, not even that
    it is idle (github.com/JuliaGPU/CUDA.jl, pull request 2194).
    """
    seen = gpu.throttling.reasons, gpu.clocks.sm_mhz, gpu.clocks.max_sm_mhz
    lowered = combine(lambda reasons, now, most: most - now if _SETTINGS.issuperset(reasons) else 0, *seen)
    detail = combine(lambda reasons, now, most: f"SM clock {now} of {most} MHz, reasons: {', '.join(reasons) or 'none'}", *seen)
    return lowered, "" if isinstance(detail, Missing) else detail


def power(gpu: GpuReading) -> Findings:
    yield "gpu_health.power.default_limit", gpu.power.default_limit_w, "W"
    yield "gpu_health.power.lowered", _difference(gpu.power.default_limit_w, gpu.power.enforced_limit_w), "W"


def throttling(gpu: GpuReading) -> Findings:
    bad = then(gpu.throttling.reasons, lambda reasons: ", ".join(one for one in reasons if one not in _ORDINARY_REASONS) or "none")
    yield "gpu_health.throttling.now", bad, "text"


def temperature(gpu: GpuReading) -> Findings:
    yield "gpu_health.temperature.margin", gpu.temperature.margin_c, "C"


def pcie(gpu: GpuReading) -> Findings:
    """Yield generation and width, to be read while data are copied: an idle link may run slower."""
    yield "gpu_health.pcie.generation", gpu.pcie.generation, "generation"
    yield "gpu_health.pcie.width", gpu.pcie.width, "lanes"


def nvlink(gpu: GpuReading) -> Findings:
    yield "gpu_health.nvlink.active", _over(gpu.nvlinks, lambda link: link.is_active, sum), "count"
    yield "gpu_health.nvlink.slowest", _over(gpu.nvlinks, lambda link: link.speed_mb_per_s, min), "MB/s"
    yield "gpu_health.nvlink.recoveries", _over(gpu.nvlinks, lambda link: link.num_recoveries, sum), "count"


def fabric(gpu: GpuReading) -> Findings:
    yield "gpu_health.fabric.state", gpu.fabric.state, "text"
    yield "gpu_health.fabric.status", gpu.fabric.status, "text"
    yield "gpu_health.fabric.health", "not supported" if is_lacking(gpu.fabric.health) else gpu.fabric.health, "text"


def modes(gpu: GpuReading) -> Findings:
    yield "gpu_health.modes.mig", gpu.mig_is_on, "bool"
    yield "gpu_health.modes.mig_after_reset", gpu.mig_is_on_after_reset, "bool"
    yield "gpu_health.modes.persistence", gpu.persistence_is_on, "bool"
    yield "gpu_health.modes.compute", gpu.compute_mode, "text"


def peers(reading: GpusReading, index: int) -> Findings:
    """Yield the number of other GPUs that this one cannot reach directly; missing where a link to one was not read."""
    links = [link for link in reading.peers if link.source == index]
    others = then(reading.gpus, lambda gpus: {gpu.index for gpu in gpus} - {index, *(link.target for link in links)})
    unread = then(others, lambda others: Missing(Why.NOT_THERE, f"NVML gave no link to GPU {as_cpu_list(others)}"[:200]) if others else 0)
    for name in ("read", "write", "nvlink"):
        answers = all_of([*(getattr(link, name) for link in links), unread])
        number = then(answers, lambda answers: sum(answer != "ok" for answer in answers[:-1]))
        yield f"gpu_health.peers.without_{name}", number, "count"


def processes(gpu: GpuUse | GpuReading) -> FindingsWithDetail:
    """Yield foreign processes and memory in use, to be read before the run puts anything on the GPU."""
    yield "gpu_health.processes.foreign", then(gpu.processes, len), "count", detail_of(gpu.processes, process_list)
    yield "gpu_health.processes.memory_used", _mebibytes(gpu.used_bytes), "MiB", ""


def process_list(found: tuple[GpuProcess, ...]) -> str:
    """Return `pid 1607: 1204 MiB, pid 1700: memory not supported`."""
    memory = [then(one.used_bytes, lambda used: f"{used // 2**20} MiB") for one in found]
    texts = [f"pid {one.pid}: {f'memory {used}' if isinstance(used, Missing) else used}" for one, used in zip(found, memory, strict=True)]
    return ", ".join(first_few(texts, _MOST_PROCESSES))


PER_GPU: dict[str, Callable[[GpuReading], Iterator[Finding | tuple[*Finding, str]]]] = {
    one.__name__: one
    for one in (
        *(identity, memory, ecc, remapping, retired_pages, recovery, clocks, power),
        *(throttling, temperature, pcie, nvlink, fabric, modes),
    )
}


def _mebibytes(num_bytes: Answer[int]) -> Answer[int]:
    """Return MiB, as nvidia-smi shows memory."""
    return then(num_bytes, lambda number: number // 2**20)


def _difference(larger: Answer[float], smaller: Answer[float]) -> Answer[float]:
    return combine(lambda larger, smaller: larger - smaller, larger, smaller)


def _over(
    links: Answer[tuple[NvLink, ...]], value_of: Callable[[NvLink], Answer[int]], reduce: Callable[[tuple[int, ...]], int]
) -> Answer[int]:
    """Return one value over all links; missing with the link's number where one is missing."""
    if isinstance(links, Missing):
        return links
    values = all_of(with_name(f"link {link.index}", value_of(link)) for link in links)
    return then(values, lambda values: reduce(tuple(map(int, values))) if values else Missing(Why.NOT_THERE, "the GPU has no NVLink"))
