"""Clocks, power, temperature and throttling of the GPUs: over the run as charts, and of each attempt as cells of its table."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from gpu_acceptance.base.text import plural
from gpu_acceptance.inventory import gpu
from gpu_acceptance.record.gpu_telemetry import LEAST_KNOWN, GpuSeries, GpuTelemetry, Level
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.charts import Axis, Chart, Frame, path, picked, rect, svg, swatch, words
from gpu_acceptance.report.words import rounded
from gpu_acceptance.thresholds.limit import RESERVED_SUBJECTS

_UTILISATION = "utilisation_percent"
_COLUMNS = {
    _UTILISATION: "GPU busy (%)",
    "sm_clock_mhz": "SM clock (MHz)",
    "power_w": "power (W)",
    "gpu_temperature_c": "GPU (°C)",
    "memory_temperature_c": "memory (°C)",
}
_CHANNELS = {"sm_clock_mhz": "SM clock (MHz)", "power_w": "Power (W)", "gpu_temperature_c": "GPU temperature (°C)"}
_IDLE = "gpu idle"  # holds no clock of a GPU at work down
_HEALTHY = frozenset(gpu.event_reasons_of(gpu.GPU_IDLE | gpu.SW_POWER_CAP))
FRAME = Frame("long", width=960, height=210, left=64, right=8, top=26, bottom=28)
_LETTER = 6.5  # width of a letter in a drawing, rounded up


def time_columns(attempt: Attempt) -> tuple[str, ...]:
    """Return the columns of GPU telemetry; none where no GPU was sampled: on a CPU, or in an attempt shorter than a second."""
    return (*_COLUMNS.values(), "clocks held down (s)") if any(rank.telemetry for rank in attempt.ranks) else ()


def time_cells(rank: RankRecord) -> tuple[str, ...]:
    """Return one cell for each column of `time_columns`."""
    told = rank.telemetry
    if told is None:
        return ("not sampled",) * (len(_COLUMNS) + 1)

    def known(held_s: float) -> str:
        return f", known for {held_s:.1f} of {told.length_s:.1f} s" if held_s < LEAST_KNOWN * told.length_s else ""

    cells = []
    for channel in _COLUMNS:
        level = told.levels.get(channel)
        cells.append(_level_text(level) + known(level.held_s) if level else f"no value: {told.missing.get(channel, 'unknown')}")
    held = "; ".join(f"{reason}: {seconds:.2g}" for reason, seconds in told.throttled_s.items() if reason != _IDLE) or "never"
    missing = told.missing.get("event_reasons")
    return (*cells, held + known(told.reasons_held_s) if missing is None else f"no value: {missing}")


def note(attempt: Attempt) -> str:
    """Say how the cells of `time_columns` were measured."""
    if not time_columns(attempt):
        return ""
    return (
        "Of the GPU: mean over the attempt (lowest to highest), as its supervisor sampled it; shown, not judged. "
        "Busy is NVML's utilisation: the time in which a kernel or a copy ran."
    )


def busy(record: RunRecord) -> str:
    """Say how busy the GPUs were during validations, formations left out; empty where that was not sampled.

    Time for which there is no value counts as idle.
    """
    told = defaultdict[int, list[tuple[float, float]]](list)  # by rank: seconds of an attempt, and its mean times the known ones
    for row in (row for row in record.rows if row.subject not in RESERVED_SUBJECTS):
        for one in (rank for attempt in row.attempts for rank in attempt.ranks):
            if one.telemetry and (level := one.telemetry.levels.get(_UTILISATION)):
                told[one.rank].append((one.telemetry.length_s, level.mean * level.held_s))
    if not told:
        return ""
    lengths_s, used = ({rank: sum(pair[end] for pair in pairs) for rank, pairs in told.items()} for end in (0, 1))
    shares = {rank: used[rank] / length_s for rank, length_s in lengths_s.items()}
    least = min(shares, key=lambda rank: shares[rank])
    of_all = f"{sum(shares.values()) / len(shares):.0f} % of {max(lengths_s.values()):.0f} s of validations"
    return f"{of_all}, mean of {plural(len(shares), 'GPU')}; least on rank {least}: {shares[least]:.0f} %"


def _level_text(level: Level) -> str:
    return f"{rounded(round(level.mean, 1))} ({rounded(level.low)} to {rounded(level.high)})"


@dataclass(frozen=True)
class OverTime:
    """Charts of clock, power and temperature, and a sentence about each time that clocks were held down."""

    charts: tuple[Chart, ...]
    held_down: tuple[str, ...]


@dataclass(frozen=True)
class _Stretch:
    """One attempt of a validation, with the ranks that were sampled."""

    name: str
    subject: str
    begin_s: float
    length_s: float
    told: dict[int, GpuTelemetry]
    series: dict[int, GpuSeries | None]


def over_time(record: RunRecord) -> OverTime | None:
    """Draw the run in seconds, attempts one after the other. None where no GPU was sampled, as on a CPU."""
    stretches = list(_stretches(record))
    if not stretches:
        return None
    across = FRAME.across(0.0, stretches[-1].begin_s + stretches[-1].length_s)
    subjects, held_down = list(_subjects(stretches, across)), list(_held_down(stretches, across))
    charts = (_chart(channel, title, stretches, across, subjects, held_down) for channel, title in _CHANNELS.items())
    return OverTime(tuple(chart for chart in charts if chart), tuple(_held_down_texts(stretches)))


def _stretches(record: RunRecord) -> Iterator[_Stretch]:
    begin_s = 0.0
    for row in record.rows:
        for attempt in row.attempts:
            told = {rank.rank: rank.telemetry for rank in attempt.ranks if rank.telemetry and rank.telemetry.length_s > 0}
            if told:
                name = row.nodeid.rpartition("::")[2] + (f", attempt {attempt.number}" if len(row.attempts) > 1 else "")
                length_s = max(one.length_s for one in told.values())
                yield _Stretch(name, row.subject, begin_s, length_s, told, {rank.rank: rank.series for rank in attempt.ranks})
                begin_s += length_s


def _chart(
    channel: str, title: str, stretches: Sequence[_Stretch], across: Axis, subjects: Sequence[Markup], held_down: Sequence[Markup]
) -> Chart | None:
    """Draw one channel of three GPUs at the most. None where no GPU has a value of it."""
    levels = defaultdict[int, list[Level]](list)
    for stretch in stretches:
        for rank, told in stretch.told.items():
            if (level := told.levels.get(channel)) and level.held_s > 0:
                levels[rank].append(level)
    if not levels:
        return None
    means = {rank: sum(one.mean * one.held_s for one in some) / sum(one.held_s for one in some) for rank, some in levels.items()}
    chosen = picked(means)
    points = {rank: [_points(channel, stretch, rank) for stretch in stretches] for rank, *_ in chosen}
    up = FRAME.up_over(value for parts in points.values() for part in parts for _, value in part)
    lines = [path(style, _broken_path(points[rank], across, up)) for rank, _, style in chosen]
    means_told = "; ".join(f"{label}: mean {rounded(round(means[rank], 1))}" for rank, label, _ in chosen)
    described = f"{title} over {plural(len(stretches), 'attempt')} of the run. {means_told}. The table has the mean of each."
    legend = [(swatch(style), label) for _, label, style in chosen]
    if held_down:
        legend.append((svg("swatch", 28, 8, [rect("held", 0, 2, 28, 5)]), "clocks held down, on any GPU"))
    return Chart(
        title=title,
        svg=FRAME.draw(across.ticks, up.ticks, [*lines, *held_down], described, behind=subjects),
        legend=tuple(legend),
        name=title,
        columns=("Validation", "Seconds", *(label for _, label, _ in chosen)),
        rows=tuple((one.name, f"{one.length_s:.1f}", *(_mean_cell(channel, one, rank) for rank, *_ in chosen)) for one in stretches),
    )


def _mean_cell(channel: str, stretch: _Stretch, rank: int) -> str:
    level = stretch.told[rank].levels.get(channel) if rank in stretch.told else None
    return _level_text(level) if level else "no value"


def _points(channel: str, stretch: _Stretch, rank: int) -> list[tuple[float, float]]:
    """Return second of the run and value: of the series where one was kept, else the mean, at its begin and at its end."""
    told, series = stretch.told.get(rank), stretch.series.get(rank)
    if told is None:
        return []
    if series and channel in series.levels:
        end_s = stretch.begin_s + stretch.length_s
        middles = ((stretch.begin_s + (number + 0.5) * series.point_s, value) for number, value in enumerate(series.levels[channel]))
        return [(min(at_s, end_s), value) for at_s, value in middles if value is not None]
    level = told.levels.get(channel)
    return [(stretch.begin_s, level.mean), (stretch.begin_s + told.length_s, level.mean)] if level else []


def _broken_path(parts: Sequence[Sequence[tuple[float, float]]], across: Axis, up: Axis) -> str:
    """Return a path that is broken between attempts."""
    drawn = (" ".join(f"{across.place(at_s)} {up.place(value)}" for at_s, value in points) for points in parts)
    return "".join(f"M{points}" for points in drawn if points)


def _subjects(stretches: Sequence[_Stretch], across: Axis) -> Iterator[Markup]:
    """Yield a band for neighbours of one subject, with its name where there is room."""
    for number, (subject, group) in enumerate(groupby(stretches, key=lambda one: one.subject)):
        members = list(group)
        x, end = across.place(members[0].begin_s), across.place(members[-1].begin_s + members[-1].length_s)
        yield rect("even" if number % 2 else "odd", x, FRAME.top, round(end - x, 1), FRAME.floor - FRAME.top)
        yield words("of", x + 2, FRAME.top - 6, subject if len(subject) * _LETTER < end - x else "")


def _held_down(stretches: Sequence[_Stretch], across: Axis) -> Iterator[Markup]:
    """Mark, for each attempt and reason, the time from the first to the last moment at which clocks of any GPU were held down."""
    for stretch in stretches:
        between = defaultdict[str, list[float]](list)
        for told in stretch.told.values():
            for reason in told.throttled_between.keys() - _HEALTHY:
                found = told.throttled_between[reason]
                between[reason] += (found.first_s, found.last_s)
        for first_s, last_s in sorted((min(seconds), max(seconds)) for seconds in between.values()):
            x, end = (across.place(stretch.begin_s + min(max(at_s, 0.0), stretch.length_s)) for at_s in (first_s, last_s))
            yield rect("held", x, FRAME.floor - 5, round(max(end - x, 1.0), 1), 5)


def _held_down_texts(stretches: Sequence[_Stretch]) -> Iterator[str]:
    """Yield the longest time of each attempt and reason."""
    for stretch in stretches:
        held = [(reason, seconds, -rank) for rank, told in stretch.told.items() for reason, seconds in told.throttled_s.items()]
        longest = {reason: (seconds, -rank) for reason, seconds, rank in sorted(held) if reason not in _HEALTHY and seconds > 0}
        for reason, (seconds, rank) in longest.items():
            yield f"{stretch.name}: {reason}, {seconds:.2g} of {stretch.length_s:.1f} s, longest on rank {rank}"
