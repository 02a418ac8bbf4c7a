"""Single steps of training by how long they took, those of all ranks together: one that stalls now and then stands apart.

Drawn where each point of a curve is one step: a mean of neighbours would hide the step that is looked for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.record.row import Attempt
from gpu_acceptance.report.axis import Axis
from gpu_acceptance.report.formatting import count, ranks_text, rounded
from gpu_acceptance.report.panel import can_be_drawn
from gpu_acceptance.report.pictures import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

_STEP_TIME = ".step_s"
_NUM_BARS = 40
_LEAST_HEIGHT = 2.0  # a single step among thousands is seen
_SAME = 1e-9  # relative, and in seconds: no clock tells less apart

Step = tuple[float, int]  # how long it took, on which rank


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
