"""What a GPU did over the time of a validation: clocks, power, heat, and throttling."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gpu_acceptance.inventory import gpu
from gpu_acceptance.record.gpu_telemetry import LEAST_KNOWN, GpuTelemetry
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.charts import STYLES, Axis, Drawn, axis_over, picked
from gpu_acceptance.report.words import count, rounded
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
WIDTH, HEIGHT = 960, 210
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 26, 28  # of the drawing, around the curves
_LETTER = 6.5  # width of a letter in a drawing, to the safe side
_CHANNELS = {"sm_clock_mhz": "SM clock (MHz)", "power_w": "Power (W)", "gpu_temperature_c": "GPU temperature (°C)"}
_HEALTHY = frozenset(gpu.event_reasons_of(gpu.GPU_IDLE | gpu.SW_POWER_CAP))


def time_columns(attempt: Attempt) -> tuple[str, ...]:
    """None where no GPU was sampled: a CPU, or an attempt shorter than a second."""
    return (*_COLUMNS.values(), "clocks held down (s)") if _was_sampled(attempt) else ()


def time_cells(rank: RankRecord) -> tuple[str, ...]:
    """One for each column, where there are any."""
    return (*(_level(rank, channel) for channel in _COLUMNS), _held_down_cell(rank))


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


def _held_down_cell(rank: RankRecord) -> str:
    told = rank.telemetry
    if told is None:
        return "not sampled"
    if "event_reasons" in told.missing:
        return f"no value: {told.missing['event_reasons']}"
    held = {reason: seconds for reason, seconds in told.throttled_s.items() if reason != _LIMITLESS}
    return ("; ".join(f"{reason}: {seconds:.2g}" for reason, seconds in held.items()) or "never") + _known(told.reasons_held_s, told)


@dataclass(frozen=True)
class Stretch:
    """One attempt of a validation, which some rank sampled."""

    name: str
    subject: str
    begin_s: float
    length_s: float
    ranks: Mapping[int, RankRecord]  # that sampled it


@dataclass(frozen=True)
class Band:
    """A stretch of the drawing, from the left."""

    x: float
    width: float
    words: str = ""


@dataclass(frozen=True)
class Panel:
    """One channel of three GPUs at the most."""

    title: str
    described: str  # for those who do not see it
    lines: tuple[Drawn, ...]
    up: tuple[tuple[float, str], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # the mean of each stretch, its name and its seconds first


@dataclass(frozen=True)
class OverTime:
    panels: tuple[Panel, ...]
    subjects: tuple[Band, ...]  # one after the other, the same in all panels
    held_down: tuple[Band, ...]
    held_down_words: tuple[str, ...]
    across: tuple[tuple[float, str], ...]


def over_time(record: RunRecord) -> OverTime | None:
    """None where no GPU was sampled, as on a CPU."""
    stretches = list(_stretches(record))
    if not stretches:
        return None
    across = Axis(0.0, stretches[-1].begin_s + stretches[-1].length_s, LEFT, WIDTH - RIGHT)
    return OverTime(
        panels=tuple(panel for channel, title in _CHANNELS.items() if (panel := _panel(channel, title, stretches, across))),
        subjects=tuple(_subjects(stretches, across)),
        held_down=tuple(_held_down(stretches, across)),
        held_down_words=tuple(_held_down_words(stretches)),
        across=tuple(across.ticks),
    )


def _stretches(record: RunRecord) -> Iterator[Stretch]:
    begin_s = 0.0
    for row in record.rows:
        for attempt in row.attempts:
            ranks = {rank.rank: rank for rank in attempt.ranks if rank.telemetry and rank.telemetry.length_s > 0}
            if not ranks:
                continue
            name = row.nodeid.rpartition("::")[2] + (f", attempt {attempt.number}" if len(row.attempts) > 1 else "")
            length_s = max(told.length_s for told in map(_told, ranks.values()))
            yield Stretch(name, row.subject, begin_s, length_s, ranks)
            begin_s += length_s


def _told(rank: RankRecord) -> GpuTelemetry:
    assert rank.telemetry
    return rank.telemetry


def _panel(channel: str, title: str, stretches: Sequence[Stretch], across: Axis) -> Panel | None:
    means = _means(channel, stretches)
    if not means:
        return None
    chosen = picked(means)
    runs = {rank: [_points(channel, stretch, rank) for stretch in stretches] for rank, _ in chosen}
    up = axis_over([value for parts in runs.values() for points in parts for _, value in points], HEIGHT - BOTTOM, TOP)
    lines = [Drawn(label, style, _path(runs[rank], across, up)) for (rank, label), style in zip(chosen, STYLES, strict=False)]
    told = "; ".join(f"{label}: mean {rounded(round(means[rank], 1))}" for rank, label in chosen)
    return Panel(
        title=title,
        described=f"{title} over {count(len(stretches), 'attempt')} of the run. {told}. The table has the mean of each.",
        lines=tuple(lines),
        up=tuple(up.ticks),
        columns=tuple(label for _, label in chosen),
        rows=tuple((one.name, f"{one.length_s:.1f}", *(_mean_of(channel, one.ranks.get(rank)) for rank, _ in chosen)) for one in stretches),
    )


def _means(channel: str, stretches: Sequence[Stretch]) -> dict[int, float]:
    """By rank, over the time for which there was a value."""
    sums: dict[int, tuple[float, float]] = {}
    for stretch in stretches:
        for rank, one in stretch.ranks.items():
            level = _told(one).levels.get(channel)
            if level and level.held_s > 0:
                total, held_s = sums.get(rank, (0.0, 0.0))
                sums[rank] = (total + level.mean * level.held_s, held_s + level.held_s)
    return {rank: total / held_s for rank, (total, held_s) in sums.items()}


def _points(channel: str, stretch: Stretch, rank: int) -> list[tuple[float, float]]:
    """Second of the run and value: of the series where one was kept, else the mean, at its begin and at its end."""
    record = stretch.ranks.get(rank)
    if record is None:
        return []
    if record.series and channel in record.series.levels:
        step_s = record.series.point_s
        middles = ((stretch.begin_s + (number + 0.5) * step_s, value) for number, value in enumerate(record.series.levels[channel]))
        end_s = stretch.begin_s + stretch.length_s
        return [(min(at_s, end_s), value) for at_s, value in middles if value is not None]
    told = _told(record)
    level = told.levels.get(channel)
    return [(stretch.begin_s, level.mean), (stretch.begin_s + told.length_s, level.mean)] if level else []


def _path(parts: Sequence[Sequence[tuple[float, float]]], across: Axis, up: Axis) -> str:
    """Broken between attempts."""
    drawn = (" ".join(f"{across.place(at_s)} {up.place(value)}" for at_s, value in points) for points in parts)
    return "".join(f"M{points}" for points in drawn if points)


def _mean_of(channel: str, record: RankRecord | None) -> str:
    level = _told(record).levels.get(channel) if record else None
    return f"{rounded(round(level.mean, 1))} ({rounded(level.low)} to {rounded(level.high)})" if level else "no value"


def _subjects(stretches: Sequence[Stretch], across: Axis) -> Iterator[Band]:
    """Neighbours of one subject are one; its name stands there where it has room."""
    for subject, group in groupby(stretches, key=lambda one: one.subject):
        members = list(group)
        x, end = across.place(members[0].begin_s), across.place(members[-1].begin_s + members[-1].length_s)
        yield Band(x, round(end - x, 1), subject if len(subject) * _LETTER < end - x else "")


def _held_down(stretches: Sequence[Stretch], across: Axis) -> Iterator[Band]:
    """From the first to the last moment at which clocks of any GPU were held down, of each attempt and reason."""
    for stretch in stretches:
        between: dict[str, tuple[float, float]] = {}
        for told in map(_told, stretch.ranks.values()):
            for reason in told.throttled_between.keys() - _HEALTHY:
                first_s, last_s = between.get(reason, (stretch.length_s, 0.0))
                found = told.throttled_between[reason]
                between[reason] = (min(first_s, found.first_s), max(last_s, found.last_s))
        for first_s, last_s in sorted(between.values()):
            x, end = (across.place(stretch.begin_s + min(max(at_s, 0.0), stretch.length_s)) for at_s in (first_s, last_s))
            yield Band(x, round(max(end - x, 1.0), 1))


def _held_down_words(stretches: Sequence[Stretch]) -> Iterator[str]:
    """The longest of each attempt and reason."""
    for stretch in stretches:
        longest: dict[str, tuple[float, int]] = {}
        for rank, told in ((rank, _told(record)) for rank, record in stretch.ranks.items()):
            for reason, seconds in told.throttled_s.items():
                if reason not in _HEALTHY and seconds > longest.get(reason, (0.0, 0))[0]:
                    longest[reason] = (seconds, rank)
        for reason, (seconds, rank) in sorted(longest.items()):
            yield f"{stretch.name}: {reason}, {seconds:.2g} of {stretch.length_s:.1f} s, longest on rank {rank}"
