"""Charts as SVG: axes, curves over steps, panels of rates, and histograms of step times."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from gpu_acceptance.record.figure import Curve
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.report.words import count, ranks_text, rounded
from gpu_acceptance.thresholds.limit import Value, is_number
from gpu_acceptance.thresholds.parameter_relations import reference_of

MOST_RANKS = 3
_MOST_TICKS = 8
_DECADES = 4  # a range of more than so many is drawn on a logarithmic axis
PANEL_WIDTH, PANEL_HEIGHT = 340, 200
PANEL_LEFT, PANEL_RIGHT, PANEL_TOP, PANEL_BOTTOM = 52, 16, 12, 30  # of the drawing, around the lines
_HALF_BOUND = 16.0  # of the length of a bound, which is of one place only
_ROOM = 48.0  # that a word beneath the axis needs
_MOST = 1e300  # a float near its end leaves no room above it
WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28  # of the drawing, around the curves
_MOST_ROWS = 24  # of the table
STYLES = ("first", "second", "third")  # of style.css: colour and dashes
_LOSS = ".loss"
_REFERENCES = {"lora_convergence": "lora.reference"}  # subject -> the parameter that has the curve of a sound run
_STEP_TIME = ".step_s"
_NUM_BARS = 40
_LEAST_HEIGHT = 2.0  # a single step among thousands is seen
_SAME = 1e-9  # relative, and in seconds: no clock tells less apart

Step = tuple[float, int]  # how long it took, on which rank


def picked(means: Mapping[int, float]) -> list[tuple[int, str]]:
    """By rank, the mean of what is drawn: all of a few; else the lowest, the middle and the highest one, each with why."""
    if len(means) <= MOST_RANKS:
        return [(rank, f"rank {rank}") for rank in means]
    ranks = sorted(means, key=lambda rank: means[rank])
    chosen = {"lowest mean": ranks[0], "middle": ranks[len(ranks) // 2], "highest mean": ranks[-1]}
    return [(rank, f"rank {rank} ({why} of {len(ranks)} ranks)") for why, rank in chosen.items()]


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, which differ, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Of a value, in the units of the drawing."""
        low, high, own = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return round(self.begin + (own - low) / (high - low) * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and words of round values within the range."""
        values = _powers(self.low, self.high) if self.is_log else _multiples(self.low, self.high)
        return [(self.place(value), f"{value:.6g}") for value in values if self.low <= value <= self.high]


def axis_over(values: Sequence[float], begin: float, end: float) -> Axis:
    """For all of these finite values, at least one; logarithmic where all are above 0 and they differ by decades."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 10**_DECADES:
        return Axis(low, high, begin, end, is_log=True)
    room = (high - low) / 20 or abs(high) / 20 or 1.0
    return Axis(low - room, high + room, begin, end)


def _multiples(low: float, high: float) -> list[float]:
    """Of 1, 2 or 5 times a power of ten: as many as fit."""
    least = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= least)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Of ten, each that lies within, or each n-th where they are many."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first + 1) / _MOST_TICKS)))]


@dataclass(frozen=True)
class PanelLine:
    """By its place on the axis the worst of what was measured there, and the best."""

    label: str
    style: str
    points: Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class DrawnPanelLine:
    """One line of a panel; the dots are its points, and `band` is empty where the worst is as the best."""

    label: str
    style: str
    path: str
    dots: str
    band: str


@dataclass(frozen=True)
class Panel:
    """Shapes in the units of the drawing."""

    title: str
    described: str  # for those who do not see it
    lines: tuple[DrawnPanelLine, ...]
    bounds: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]


def can_be_drawn(value: object) -> TypeGuard[int | float]:
    """Nothing below 0 has a place here."""
    return is_number(value) and 0 <= value < _MOST


def make_panel(title: str, lines: Sequence[PanelLine], bounds: Iterable[tuple[int, float]], word: Callable[[int], str]) -> Panel | None:
    """None where there is nothing to draw. `word`: for a place on the axis, a whole number above 0."""
    lines, bounds = [line for line in lines if line.points], list(bounds)
    if not lines:
        return None
    places = sorted({place for line in lines for place in line.points})
    highest = max([best for line in lines for pair in line.points.values() for best in pair] + [bound for _, bound in bounds])
    across = Axis(math.log2(places[0]) - 0.5, math.log2(places[-1]) + 0.5, PANEL_LEFT, PANEL_WIDTH - PANEL_RIGHT)
    up = Axis(0.0, 1.08 * highest or 1.0, PANEL_HEIGHT - PANEL_BOTTOM, PANEL_TOP)
    return Panel(
        title=title,
        described=f"{title}. {'. '.join(_told(line, word) for line in lines)}.",
        lines=tuple(_drawn(line, across, up) for line in lines),
        bounds="".join(f"M{_x(across, place) - _HALF_BOUND:.1f} {up.place(bound)}h{2 * _HALF_BOUND:.0f}" for place, bound in bounds),
        across=tuple(sorted(_ticks(places, across, word))),
        up=tuple(up.ticks),
    )


def _x(across: Axis, place: int) -> float:
    return across.place(math.log2(place))


def _ticks(places: Sequence[int], across: Axis, word: Callable[[int], str]) -> Iterator[tuple[float, str]]:
    """From the right; a place without room for its word has none."""
    taken = math.inf
    for place in reversed(places):
        x = _x(across, place)
        has_room = taken - x >= _ROOM
        yield x, word(place) if has_room else ""
        taken = x if has_room else taken


def _drawn(line: PanelLine, across: Axis, up: Axis) -> DrawnPanelLine:
    worst, best = ([(_x(across, place), up.place(line.points[place][end])) for place in sorted(line.points)] for end in (0, 1))
    path, back = (" ".join(f"{x} {y}" for x, y in points) for points in (worst, best[::-1]))
    dots = "".join(f"M{x} {y}h0" for x, y in worst)  # no length, which round ends make a dot
    return DrawnPanelLine(line.label, line.style, f"M{path}", dots, f"M{path} {back}Z" if worst != best else "")


def _told(line: PanelLine, word: Callable[[int], str]) -> str:
    return f"{line.label}: {', '.join(f'{line.points[place][0]:.4g} at {word(place)}' for place in sorted(line.points))}"


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


@dataclass(frozen=True)
class Bar:
    """Steps that took from `low` to `high` seconds, the upper end left out but in the last bar."""

    low: float
    high: float
    num_steps: int
    ranks: str


@dataclass(frozen=True)
class Histogram:
    """Shapes in the units of the drawing."""

    title: str
    described: str  # for those who do not see it
    path: str
    across: tuple[tuple[float, str], ...]  # seconds: place and word
    up: tuple[tuple[float, str], ...]  # numbers of steps
    rows: tuple[tuple[str, str, str, str], ...]  # of bars with any step: from, to, steps, ranks


def histograms(attempt: Attempt) -> tuple[Histogram, ...]:
    """One for each name of single steps' times, in the order of the first rank that has it."""
    found: dict[str, list[Step]] = {}
    missing: dict[str, int] = {}
    for rank in attempt.ranks:
        for curve in rank.curves:
            if curve.name.endswith(_STEP_TIME) and curve.unit == "s" and len(curve.points) == curve.num_steps:
                steps = [(point, rank.rank) for point in curve.points if can_be_drawn(point)]
                found.setdefault(curve.name, []).extend(steps)
                missing[curve.name] = missing.get(curve.name, 0) + curve.num_steps - len(steps)
    return tuple(_histogram(name, steps, missing[name]) for name, steps in found.items() if steps)


def _histogram(name: str, steps: Sequence[Step], num_missing: int) -> Histogram:
    bars = list(_bars(steps))
    across = Axis(bars[0].low, bars[-1].high, LEFT, WIDTH - RIGHT)
    up = Axis(0.0, 1.05 * max(bar.num_steps for bar in bars), HEIGHT - BOTTOM, TOP)
    filled = [bar for bar in bars if bar.num_steps]
    ordered = sorted(taken for taken, _ in steps)
    ranks = ranks_text({rank for _, rank in steps})
    without = f"; {count(num_missing, 'step')} without a time" if num_missing else ""
    return Histogram(
        title=f"Single steps of {name.removesuffix(_STEP_TIME)}",
        described=(
            f"{count(len(steps), 'step')} on {ranks} by how long they took: shortest {rounded(ordered[0])} s, "
            f"median {rounded(ordered[len(ordered) // 2])} s, longest {rounded(ordered[-1])} s{without}."
        ),
        path="".join(_shape(bar, across, up) for bar in filled),
        across=tuple((place, f"{word} s") for place, word in across.ticks),
        up=tuple((place, word) for place, word in up.ticks if "." not in word),
        rows=tuple((f"{bar.low:.6g}", f"{bar.high:.6g}", str(bar.num_steps), bar.ranks) for bar in filled),
    )


def _bars(steps: Iterable[Step]) -> Iterator[Bar]:
    """Of one width, from the shortest step to the longest; around them where all took the same."""
    ordered = sorted(steps)
    low, high = ordered[0][0], ordered[-1][0]
    if high - low <= _SAME * max(high, 1.0):
        low, high = 0.95 * low, 1.05 * high + _SAME
    inside: list[list[Step]] = [[] for _ in range(_NUM_BARS)]
    for taken, rank in ordered:
        inside[min(int((taken - low) / (high - low) * _NUM_BARS), _NUM_BARS - 1)].append((taken, rank))
    for number, members in enumerate(inside):
        begin, end = (low + (high - low) * edge / _NUM_BARS for edge in (number, number + 1))
        yield Bar(begin, end, len(members), ranks_text({rank for _, rank in members}) if members else "")


def _shape(bar: Bar, across: Axis, up: Axis) -> str:
    left, right, floor = across.place(bar.low), across.place(bar.high), HEIGHT - BOTTOM
    top = min(up.place(bar.num_steps), floor - _LEAST_HEIGHT)
    return f"M{left} {floor}V{top}H{right}V{floor}Z"
