"""Charts as SVG, which is made here alone: of paths, rectangles and words.

From these come margin bars, curves over steps, panels of rates and histograms of step times.
"""

import contextlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from markupsafe import Markup

from gpu_acceptance.base.text import plural, visible
from gpu_acceptance.record.figure import Curve
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.report.words import ranks_text, rounded
from gpu_acceptance.thresholds.limit import Value, is_number
from gpu_acceptance.thresholds.parameter_relations import reference_of

MOST_RANKS = 3
STYLES = ("first", "second", "third")  # colour and dashes, in style.css
REFERENCE = "sound run (profile)"  # a curve or a rate that the profile knows
SCALE = 0.25  # margins are drawn from -25 % to +25 %, all on this one scale
BAR_WIDTH = 160  # in units of the drawing; the bound is in the middle
_MOST_TICKS = 8
_DECADES = 4  # values that span more are drawn on a logarithmic axis
_HALF_BOUND = 16.0  # half the length of the dash that marks a bound
_ROOM = 48.0  # space that a word beneath the axis needs
_MOST = 1e300  # a float near its end leaves no room above it
_MOST_ROWS = 24  # in a table
_LOSS = ".loss"
_REFERENCES = {"lora_convergence": "lora.reference"}  # subject -> the parameter that has the curve of a sound run
_STEP_TIME = ".step_s"
_NUM_BARS = 40
_LEAST_HEIGHT = 2.0  # so that a single step among thousands is visible
_SAME = 1e-9  # relative, and in seconds: no clock tells less apart

Ticks = Sequence[tuple[float, str]]  # place and word


def path(style: str, shape: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(style, shape)


def rect(style: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(style, x, y, width, height)


def words(style: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(style, x, y, visible(text))


def svg(style: str, width: float, height: float, shapes: Iterable[Markup], described: str = "") -> Markup:
    """Return a whole drawing. One without a description has its own size and is hidden from screen readers."""
    if described:
        attributes = Markup('role="img" aria-label="{}"').format(visible(described))
    else:
        attributes = Markup('width="{}" height="{}" aria-hidden="true" focusable="false"').format(width, height)
    inner = Markup("\n").join(shapes)
    return Markup('<svg class="{}" viewBox="0 0 {} {}" {}>\n{}\n</svg>').format(style, width, height, attributes, inner)


def swatch(style: str) -> Markup:
    """Return the piece of a line that a legend shows."""
    return svg("swatch", 28, 8, [path(style, "M2 4h24")])


def margin_bar(margin: float) -> Markup:
    """Draw a margin beside its bound: to the right held, to the left missed, with an arrow where it is beyond the scale."""
    is_missed, half = margin < 0, BAR_WIDTH // 2
    style = "short" if is_missed else "spare"
    width = round(min(abs(margin), SCALE) / SCALE * half, 2)
    shapes = [rect("scale", 0, 5.5, BAR_WIDTH, 1), rect(style, half - width if is_missed else half, 2, width, 8)]
    if abs(margin) > SCALE:
        shapes.append(path(style, "M8 0 L0 6 L8 12 Z" if is_missed else f"M{BAR_WIDTH - 8} 0 L{BAR_WIDTH} 6 L{BAR_WIDTH - 8} 12 Z"))
    return svg("bar", BAR_WIDTH, 12, [*shapes, rect("bound", half - 1, 0, 2, 12)])


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, which differ, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, in units of the drawing."""
        low, high, own = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return round(self.begin + (own - low) / (high - low) * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and words of the powers of ten in the range, or of multiples of 1, 2 or 5 times one; only as many as fit."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            values = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first + 1) / _MOST_TICKS)))]
        else:
            least = (self.high - self.low) / _MOST_TICKS
            power = 10.0 ** math.floor(math.log10(least))
            step = next(step * power for step in (1, 2, 5, 10) if step * power >= least)
            values = [number * step for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(self.place(value), f"{value:.6g}") for value in values if self.low <= value <= self.high]


@dataclass(frozen=True)
class Frame:
    """The size of a drawing, and its margins around the curves, in which the words of the axes stand."""

    style: str
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    @property
    def floor(self) -> int:
        return self.height - self.bottom

    def across(self, low: float, high: float) -> Axis:
        return Axis(low, high, self.left, self.width - self.right)

    def up(self, low: float, high: float) -> Axis:
        return Axis(low, high, self.floor, self.top)

    def up_over(self, values: Iterable[float | None]) -> Axis:
        """Return an axis for all values that are finite; logarithmic where all are above 0 and they differ by decades."""
        finite = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if low > 0 and high / low > 10**_DECADES:
            return Axis(low, high, self.floor, self.top, is_log=True)
        room = (high - low) / 20 or abs(high) / 20 or 1.0
        return self.up(low - room, high + room)

    def draw(self, across: Ticks, up: Ticks, shapes: Iterable[Markup], described: str, behind: Iterable[Markup] = ()) -> Markup:
        """Return the drawing: what is `behind` the axes, the axes with their words, and the shapes."""
        axes = list(behind)
        for y, word in up:
            axes += [path("grid", f"M{self.left - 6} {y}H{self.width - self.right}"), words("up", self.left - 10, y, word)]
        for x, word in across:
            axes += [path("grid", f"M{x} {self.floor}v5"), words("across", x, self.height - 8, word)]
        return svg(f"chart {self.style}".strip(), self.width, self.height, [*axes, *shapes], described)


PICTURE = Frame("", width=640, height=220, left=64, right=12, top=12, bottom=28)
PANEL = Frame("half", width=340, height=200, left=52, right=16, top=12, bottom=30)


@dataclass(frozen=True)
class Chart:
    """A drawing, its legend (swatch and label), and its values in a table, unless it is one of several with one table."""

    title: str
    svg: Markup
    legend: tuple[tuple[Markup, str], ...] = ()
    name: str = ""  # of the values in the table
    note: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class PanelLine:
    """One line of a panel. `points`: place on the axis -> the worst and the best of what was measured there."""

    label: str
    style: str
    points: Mapping[int, tuple[float, float]]


def can_be_drawn(value: object) -> TypeGuard[int | float]:
    """Return True for a number that has a place in a panel: none below 0 has."""
    return is_number(value) and 0 <= value < _MOST


def make_panel(title: str, lines: Sequence[PanelLine], bounds: Iterable[tuple[int, object]], word: Callable[[int], str]) -> Chart | None:
    """Draw lines over powers of two, and bounds (place, value). None where no line has a point.

    `word` writes a place on the axis, which is a whole number above 0.
    """
    lines, drawn = [line for line in lines if line.points], [(place, bound) for place, bound in bounds if can_be_drawn(bound)]
    if not lines:
        return None
    places = sorted({place for line in lines for place in line.points})
    highest = max([best for line in lines for pair in line.points.values() for best in pair] + [bound for _, bound in drawn])
    across = PANEL.across(math.log2(places[0]) - 0.5, math.log2(places[-1]) + 0.5)
    up = PANEL.up(0.0, 1.08 * highest or 1.0)
    x_of = {place: across.place(math.log2(place)) for place in {*places, *(place for place, _ in drawn)}}
    shapes = [shape for line in lines for shape in _panel_line(line, x_of, up)]
    legend = [(swatch(line.style), line.label) for line in lines]
    if drawn:
        marks = (f"M{x_of[place] - _HALF_BOUND:.1f} {up.place(bound)}h{2 * _HALF_BOUND:.0f}" for place, bound in drawn)
        shapes.append(path("limit", "".join(marks)))
        legend.append((swatch("limit"), "limit, where it is judged"))
    told = (
        f"{line.label}: {', '.join(f'{worst:.4g} at {word(place)}' for place, (worst, _) in sorted(line.points.items()))}" for line in lines
    )
    ticks, taken = list[tuple[float, str]](), math.inf  # words are placed from the right; a place without room for its word has none
    for place in reversed(places):
        has_room = taken - x_of[place] >= _ROOM
        ticks.insert(0, (x_of[place], word(place) if has_room else ""))
        taken = x_of[place] if has_room else taken
    return Chart(title, PANEL.draw(ticks, up.ticks, shapes, f"{title}. {'. '.join(told)}."), tuple(legend))


def _panel_line(line: PanelLine, x_of: Mapping[int, float], up: Axis) -> Iterator[Markup]:
    worst, best = ([(x_of[place], up.place(line.points[place][end])) for place in sorted(line.points)] for end in (0, 1))
    there, back = (" ".join(f"{x} {y}" for x, y in points) for points in (worst, best[::-1]))
    if worst != best:
        yield path(f"band {line.style}", f"M{there} {back}Z")
    yield path(line.style, f"M{there}")
    yield path(f"dots {line.style}", "".join(f"M{x} {y}h0" for x, y in worst))  # round ends make a dot of a line without length


@dataclass(frozen=True)
class _Line:
    """One line of a picture. `points`: step -> value."""

    label: str
    style: str
    points: Mapping[int, float | None]


def picked(means: Mapping[int, float]) -> list[tuple[int, str, str]]:
    """Return rank, label and style of the ranks to draw: all of a few, else those with the lowest, the middle and the highest mean."""
    ranks = sorted(means, key=lambda rank: means[rank])
    chosen = {"lowest mean": ranks[0], "middle": ranks[len(ranks) // 2], "highest mean": ranks[-1]}
    labels = [(rank, f"rank {rank} ({why} of {len(ranks)} ranks)") for why, rank in chosen.items()]
    if len(means) <= MOST_RANKS:
        labels = [(rank, f"rank {rank}") for rank in means]
    return [(rank, label, style) for (rank, label), style in zip(labels, STYLES, strict=False)]


def pictures(attempt: Attempt, parameters: Mapping[str, Value]) -> tuple[Chart, ...]:
    """Draw each curve, by name, in the order of the first rank that has it. `parameters` of the run have the references."""
    by_name: dict[str, dict[int, Curve]] = {}
    for rank in attempt.ranks:
        for curve in rank.curves:
            by_name.setdefault(curve.name, {}).setdefault(rank.rank, curve)
    return tuple(_picture(name, curves, attempt.ranks, parameters) for name, curves in by_name.items())


def _picture(name: str, curves: Mapping[int, Curve], ranks: Iterable[RankRecord], parameters: Mapping[str, Value]) -> Chart:
    longest = max(curves.values(), key=lambda curve: curve.num_steps)
    # a rank with a point that is not a number is the last
    means = {rank: statistics.fmean(math.inf if point is None else point for point in one.points) for rank, one in curves.items()}
    chosen = picked(means)
    lines = [_Line(label, style, dict(zip(curves[rank].steps, curves[rank].points, strict=True))) for rank, label, style in chosen]
    steps = list(lines[0].points)
    lines += _known(name, longest, ranks, parameters)
    name = name if longest.unit == "relative" else f"{name} in {longest.unit}"
    across = PICTURE.across(-0.5, longest.num_steps - 0.5)
    up = PICTURE.up_over(value for line in lines for value in line.points.values())
    told = ". ".join(f"{line.label}: {_ends(list(line.points.values()))}" for line in lines)
    notes = []
    if len(longest.points) < longest.num_steps:
        notes.append(f"Each point is the mean of its neighbours: {len(longest.points)} of {longest.num_steps} steps.")
    if len(steps) > _MOST_ROWS:
        notes.append(f"The table has {_MOST_ROWS} of {len(steps)} points; results.json has all.")
    if len(curves) > MOST_RANKS:
        notes.append(f"Drawn are {MOST_RANKS} of {len(curves)} ranks.")
    number = min(len(steps), _MOST_ROWS)
    shown = sorted({steps[round(index * (len(steps) - 1) / max(number - 1, 1))] for index in range(number)})
    return Chart(
        title=f"{name}, by step",
        name=name,
        svg=PICTURE.draw(
            [(place, word) for place, word in across.ticks if "." not in word],
            up.ticks,
            [path(line.style, _broken_path(line, across, up)) for line in lines],
            f"{name} over {plural(longest.num_steps, 'step')}. {told}.",
        ),
        legend=tuple((swatch(line.style), line.label) for line in lines),
        note=" ".join(notes),
        columns=("Step", *(line.label for line in lines)),
        rows=tuple((str(step), *(_cell(line, step) for line in lines)) for step in shown),
    )


def _cell(line: _Line, step: int) -> str:
    value = line.points.get(step, line.points[0] if line.style == "floor" else None)
    return "none" if value is None else str(value)


def _known(name: str, curve: Curve, ranks: Iterable[RankRecord], parameters: Mapping[str, Value]) -> Iterator[_Line]:
    """Yield the curve of a sound run beside a loss, and the least loss that is possible."""
    subject = name.removesuffix(_LOSS)
    if subject == name:
        return
    text = parameters.get(_REFERENCES.get(subject, ""))
    with contextlib.suppress(ValueError):  # a record of other steps than its profile has
        if losses := reference_of(text, curve.num_steps) if isinstance(text, str) else []:
            yield _Line(REFERENCE, "reference", dict(enumerate(losses)))
    floors = (figure.value for rank in ranks for figure in rank.figures if figure.metric == f"{subject}.floor")
    floor = next((value for value in floors if isinstance(value, int | float)), None)
    if floor is not None:
        yield _Line("least there is", "floor", {0: floor, curve.num_steps - 1: floor})


def _broken_path(line: _Line, across: Axis, up: Axis) -> str:
    """Return a path that is broken where there is no number. A point by itself is a line without length, drawn as a dot."""
    parts, pen = [], "M"
    for step, value in line.points.items():
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = across.place(step), up.place(value)
        parts.append(f"M{x} {y}h0" if pen == "M" else f"L{x} {y}")
        pen = "L"
    return "".join(parts)


def _ends(values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return "no number"
    missing = len(values) - len(finite)
    ends = f"from {finite[0]:.4g} to {finite[-1]:.4g}, lowest {min(finite):.4g}, highest {max(finite):.4g}"
    return ends + (f", {missing} of {len(values)} are no number" if missing else "")


def histograms(attempt: Attempt) -> tuple[Chart, ...]:
    """Draw the times of single steps, by name, in the order of the first rank that has them."""
    found = defaultdict[str, list[tuple[float, int]]](list)  # seconds and rank
    missing = Counter[str]()
    for rank in attempt.ranks:
        for curve in rank.curves:
            if curve.name.endswith(_STEP_TIME) and curve.unit == "s" and len(curve.points) == curve.num_steps:
                steps = [(point, rank.rank) for point in curve.points if can_be_drawn(point)]
                found[curve.name] += steps
                missing[curve.name] += curve.num_steps - len(steps)
    return tuple(_histogram(name, sorted(steps), missing[name]) for name, steps in found.items() if steps)


def _histogram(name: str, steps: Sequence[tuple[float, int]], num_missing: int) -> Chart:
    """`steps`: the shortest first."""
    low, high = steps[0][0], steps[-1][0]
    if high - low <= _SAME * max(high, 1.0):
        low, high = 0.95 * low, 1.05 * high + _SAME
    members = defaultdict[int, list[int]](list)  # ranks by number of the bar; the last bar has its upper edge too
    for seconds, rank in steps:
        members[min(int((seconds - low) / (high - low) * _NUM_BARS), _NUM_BARS - 1)].append(rank)
    across, up = PICTURE.across(low, high), PICTURE.up(0.0, 1.05 * max(map(len, members.values())))
    shape, rows = "", []
    for bar, ranks in members.items():
        begin, end = (low + (high - low) * edge / _NUM_BARS for edge in (bar, bar + 1))
        top = min(up.place(len(ranks)), PICTURE.floor - _LEAST_HEIGHT)
        shape += f"M{across.place(begin)} {PICTURE.floor}V{top}H{across.place(end)}V{PICTURE.floor}Z"
        rows.append((f"{begin:.6g}", f"{end:.6g}", str(len(ranks)), ranks_text(ranks)))
    name = f"Single steps of {name.removesuffix(_STEP_TIME)}"
    without = f"; {plural(num_missing, 'step')} without a time" if num_missing else ""
    described = (
        f"{plural(len(steps), 'step')} on {ranks_text(rank for _, rank in steps)} by how long they took: "
        f"shortest {rounded(steps[0][0])} s, median {rounded(steps[len(steps) // 2][0])} s, longest {rounded(steps[-1][0])} s{without}."
    )
    beneath, beside = [(place, f"{word} s") for place, word in across.ticks], [tick for tick in up.ticks if "." not in tick[1]]
    return Chart(
        title=f"{name}, by how long they took",
        name=name,
        svg=PICTURE.draw(beneath, beside, [path("bars", shape)], described),
        note=described,
        columns=("From (s)", "To (s)", "Steps", "On"),
        rows=tuple(rows),
    )
