"""Lines over whole numbers that double and double again, message sizes or GPUs: on an axis of powers of two, from 0 up."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from gpu_acceptance.report.axis import Axis
from gpu_acceptance.thresholds.values import is_number

WIDTH, HEIGHT = 340, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 12, 30  # of the drawing, around the lines
_HALF_BOUND = 16.0  # of the length of a bound, which is of one place only
_ROOM = 48.0  # that a word beneath the axis needs
_MOST = 1e300  # a float near its end leaves no room above it


@dataclass(frozen=True)
class Line:
    """By its place on the axis the worst of what was measured there, and the best."""

    label: str
    style: str
    points: Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class Drawn:
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
    lines: tuple[Drawn, ...]
    bounds: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]


def can_be_drawn(value: object) -> TypeGuard[int | float]:
    """Nothing below 0 has a place here."""
    return is_number(value) and 0 <= value < _MOST


def make_panel(title: str, lines: Sequence[Line], bounds: Iterable[tuple[int, float]], word: Callable[[int], str]) -> Panel | None:
    """None where there is nothing to draw. `word`: for a place on the axis, a whole number above 0."""
    lines, bounds = [line for line in lines if line.points], list(bounds)
    if not lines:
        return None
    places = sorted({place for line in lines for place in line.points})
    highest = max([best for line in lines for pair in line.points.values() for best in pair] + [bound for _, bound in bounds])
    across = Axis(math.log2(places[0]) - 0.5, math.log2(places[-1]) + 0.5, LEFT, WIDTH - RIGHT)
    up = Axis(0.0, 1.08 * highest or 1.0, HEIGHT - BOTTOM, TOP)
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


def _drawn(line: Line, across: Axis, up: Axis) -> Drawn:
    worst, best = ([(_x(across, place), up.place(line.points[place][end])) for place in sorted(line.points)] for end in (0, 1))
    path, back = (" ".join(f"{x} {y}" for x, y in points) for points in (worst, best[::-1]))
    dots = "".join(f"M{x} {y}h0" for x, y in worst)  # no length, which round ends make a dot
    return Drawn(line.label, line.style, f"M{path}", dots, f"M{path} {back}Z" if worst != best else "")


def _told(line: Line, word: Callable[[int], str]) -> str:
    return f"{line.label}: {', '.join(f'{line.points[place][0]:.4g} at {word(place)}' for place in sorted(line.points))}"
