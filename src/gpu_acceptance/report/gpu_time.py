"""What the GPUs did during an attempt, as columns of its table: mean, and from where to where it went."""

from gpu_acceptance.record.gpu_telemetry import LEAST_KNOWN, GpuTelemetry
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import count, rounded
from gpu_acceptance.thresholds.limit import RESERVED_SUBJECTS

_UTILISATION = "utilisation_percent"
_COLUMNS = {
    _UTILISATION: "GPU busy (%)",
    "sm_clock_mhz": "SM clock (MHz)",
    "power_w": "power (W)",
    "gpu_temperature_c": "GPU (°C)",
    "memory_temperature_c": "memory (°C)",
}
_LIMITLESS = "gpu idle"  # no reason of a GPU at work


def columns(attempt: Attempt) -> tuple[str, ...]:
    """None where no GPU was sampled: a CPU, or an attempt shorter than a second."""
    return (*_COLUMNS.values(), "clocks held down (s)") if _was_sampled(attempt) else ()


def cells(rank: RankRecord) -> tuple[str, ...]:
    """One for each column, where there are any."""
    return (*(_level(rank, channel) for channel in _COLUMNS), _held_down(rank))


def busy(record: RunRecord) -> str:
    """How busy the GPUs were while they were validated, formations left out; empty where nobody saw that."""
    told: dict[int, list[GpuTelemetry]] = {}
    for row in record.rows:
        for rank in (rank for attempt in row.attempts for rank in attempt.ranks if row.subject not in RESERVED_SUBJECTS):
            if rank.telemetry and _UTILISATION in rank.telemetry.levels:
                told.setdefault(rank.rank, []).append(rank.telemetry)
    if not told:
        return ""
    shares = {rank: _share(stretches) for rank, stretches in told.items()}
    least = min(shares, key=lambda rank: shares[rank])
    longest_s = max(sum(one.length_s for one in stretches) for stretches in told.values())
    mean = f"{sum(shares.values()) / len(shares):.0f} % of {longest_s:.0f} s of validations, mean of {count(len(shares), 'GPU')}"
    return f"{mean}; least on rank {least}: {shares[least]:.0f} %"


def _share(stretches: list[GpuTelemetry]) -> float:
    """Percent. Time of which nobody knows counts as idle."""
    levels = [one.levels[_UTILISATION] for one in stretches]
    return sum(level.mean * level.held_s for level in levels) / sum(one.length_s for one in stretches)


def note(attempt: Attempt) -> str:
    if not _was_sampled(attempt):
        return ""
    return (
        "Of the GPU: mean over the attempt (lowest to highest), as its supervisor sampled it; shown, not judged. "
        "Busy is NVML's utilisation: the time in which a kernel or a copy ran."
    )


def _was_sampled(attempt: Attempt) -> bool:
    return any(rank.telemetry for rank in attempt.ranks)


def _level(rank: RankRecord, channel: str) -> str:
    if rank.telemetry is None:
        return "not sampled"
    level = rank.telemetry.levels.get(channel)
    if level is None:
        return f"no value: {rank.telemetry.missing.get(channel, 'unknown')}"
    return f"{rounded(round(level.mean, 1))} ({rounded(level.low)} to {rounded(level.high)}){_known(level.held_s, rank.telemetry)}"


def _known(held_s: float, told: GpuTelemetry) -> str:
    return f", known for {held_s:.1f} of {told.length_s:.1f} s" if held_s < LEAST_KNOWN * told.length_s else ""


def _held_down(rank: RankRecord) -> str:
    told = rank.telemetry
    if told is None:
        return "not sampled"
    if "event_reasons" in told.missing:
        return f"no value: {told.missing['event_reasons']}"
    held = {reason: seconds for reason, seconds in told.throttled_s.items() if reason != _LIMITLESS}
    return ("; ".join(f"{reason}: {seconds:.2g}" for reason, seconds in held.items()) or "never") + _known(told.reasons_held_s, told)
