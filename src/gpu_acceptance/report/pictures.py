"""Curves of a validation as pictures: by step, with the least there is and the curve of a sound run where these are known.

A picture has at most three ranks: of more the one with the lowest mean, the middle one, and the one with the highest.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.figure import Curve
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.report.axis import Axis, axis_over
from gpu_acceptance.report.formatting import count
from gpu_acceptance.report.picked import MOST_RANKS, picked
from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.thresholds.parameter_relations import reference_of

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28  # of the drawing, around the curves
_MOST_ROWS = 24  # of the table
STYLES = ("first", "second", "third")  # of style.css: colour and dashes
_LOSS = ".loss"
_REFERENCES = {"lora_convergence": "lora.reference"}  # subject -> the parameter that has the curve of a sound run


@dataclass(frozen=True)
class Drawn:
    """One line of a picture, and what it is called."""

    label: str
    style: str
    path: str


@dataclass(frozen=True)
class Picture:
    title: str
    described: str  # for those who do not see it
    lines: tuple[Drawn, ...]
    across: tuple[tuple[float, str], ...]  # steps: place and word
    up: tuple[tuple[float, str], ...]
    columns: tuple[str, ...]  # of the table: one for each line
    rows: tuple[tuple[str, ...], ...]  # the step first
    note: str


@dataclass(frozen=True)
class _Line:
    label: str
    style: str
    steps: Sequence[int]
    values: Sequence[float | None]


def pictures(attempt: Attempt, parameters: Mapping[str, Value]) -> tuple[Picture, ...]:
    """One for each name, in the order of the first rank that has it; `parameters`: of the run."""
    by_name: dict[str, dict[int, Curve]] = {}
    for rank in attempt.ranks:
        for curve in rank.curves:
            by_name.setdefault(curve.name, {}).setdefault(rank.rank, curve)
    return tuple(_picture(name, curves, attempt.ranks, parameters) for name, curves in by_name.items())


def _picture(name: str, curves: Mapping[int, Curve], ranks: Iterable[RankRecord], parameters: Mapping[str, Value]) -> Picture:
    chosen = picked({rank: _mean(curve) for rank, curve in curves.items()})
    longest = max(curves.values(), key=lambda curve: curve.num_steps)
    lines = [_Line(label, style, curves[rank].steps, curves[rank].points) for (rank, label), style in zip(chosen, STYLES, strict=False)]
    lines += _known(name, longest, ranks, parameters)
    title = name if longest.unit == "relative" else f"{name} in {longest.unit}"
    finite = [value for line in lines for value in line.values if value is not None and math.isfinite(value)]
    across = Axis(-0.5, longest.num_steps - 0.5, LEFT, WIDTH - RIGHT)
    up = axis_over(finite or [0.0], HEIGHT - BOTTOM, TOP)
    return Picture(
        title=title,
        described=_described(title, longest, lines),
        lines=tuple(Drawn(line.label, line.style, _path(line, across, up)) for line in lines),
        across=tuple((place, word) for place, word in across.ticks if "." not in word),
        up=tuple(up.ticks),
        columns=tuple(line.label for line in lines),
        rows=tuple(_rows(lines)),
        note=_note(curves, longest, len(lines[0].steps)),
    )


def _mean(curve: Curve) -> float:
    """Infinite where a point is no number: such a rank is the last."""
    points = [point for point in curve.points if point is not None]
    return statistics.fmean(points) if len(points) == len(curve.points) else math.inf


def _known(name: str, curve: Curve, ranks: Iterable[RankRecord], parameters: Mapping[str, Value]) -> Iterator[_Line]:
    """What a loss is to come to, and how a sound run came there."""
    subject = name.removesuffix(_LOSS)
    if subject == name:
        return
    words = parameters.get(_REFERENCES.get(subject, ""))
    if isinstance(words, str) and (losses := _losses(words, curve.num_steps)):
        yield _Line("sound run (profile)", "reference", range(len(losses)), losses)
    floors = (figure.value for rank in ranks for figure in rank.figures if figure.metric == f"{subject}.floor")
    floor = next((value for value in floors if isinstance(value, int | float)), None)
    if floor is not None:
        yield _Line("least there is", "floor", (0, curve.num_steps - 1), (floor, floor))


def _losses(words: str, num_steps: int) -> list[float]:
    try:
        return reference_of(words, num_steps)
    except ValueError:  # a record of other steps than its profile has, which reads as without one
        return []


def _path(line: _Line, across: Axis, up: Axis) -> str:
    """Broken where there is no number. A point by itself is a line of no length, which round ends make a dot."""
    parts, pen = [], "M"
    for step, value in zip(line.steps, line.values, strict=True):
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = across.place(step), up.place(value)
        parts.append(f"M{x} {y}h0" if pen == "M" else f"L{x} {y}")
        pen = "L"
    return "".join(parts)


def _rows(lines: Sequence[_Line]) -> Iterator[tuple[str, ...]]:
    """At most so many steps of the first line, its first and its last among them."""
    steps = lines[0].steps
    by_step = [dict(zip(line.steps, line.values, strict=True)) for line in lines]
    constant = [line.values[0] if line.style == "floor" else None for line in lines]
    number = min(len(steps), _MOST_ROWS)
    for place in sorted({round(index * (len(steps) - 1) / max(number - 1, 1)) for index in range(number)}):
        step = steps[place]
        cells = (values.get(step, other) for values, other in zip(by_step, constant, strict=True))
        yield (str(step), *("none" if value is None else str(value) for value in cells))


def _described(title: str, curve: Curve, lines: Sequence[_Line]) -> str:
    told = [f"{line.label}: {_ends(line.values)}" for line in lines]
    return f"{title} over {count(curve.num_steps, 'step')}. {'. '.join(told)}."


def _ends(values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "no number"
    missing = len(values) - len(finite)
    ends = f"from {finite[0]:.4g} to {finite[-1]:.4g}, lowest {min(finite):.4g}, highest {max(finite):.4g}"
    return ends + (f", {missing} of {len(values)} are no number" if missing else "")


def _note(curves: Mapping[int, Curve], longest: Curve, num_points: int) -> str:
    parts = []
    if len(longest.points) < longest.num_steps:
        parts.append(f"Each point is the mean of its neighbours: {len(longest.points)} of {longest.num_steps} steps.")
    if num_points > _MOST_ROWS:
        parts.append(f"The table has {_MOST_ROWS} of {num_points} points; results.json has all.")
    if len(curves) > MOST_RANKS:
        parts.append(f"Drawn are {MOST_RANKS} of {len(curves)} ranks.")
    return " ".join(parts)
