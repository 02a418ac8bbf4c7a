"""What a validation saw over its steps, such as a loss: kept in the record, judged by nobody."""

import itertools
import math
from collections.abc import Sequence

from pydantic import Field

from gpu_acceptance.model import Model

MOST_POINTS = 240  # of a longer one each is the mean of as many neighbours
MOST_CURVES = 16  # of one validation on one rank: 240 points of each are some 60 kB of a message of 1 MiB
_DIGITS = 6  # significant ones


class Curve(Model):
    """Points in the order of time. None: what was there was no finite number."""

    name: str = Field(max_length=200, pattern=r"^[A-Za-z0-9_.-]+$")
    unit: str = Field(max_length=40, pattern=r"^[A-Za-z0-9_%/.*^-]+$")
    num_steps: int = Field(ge=1)  # that it is of
    points: tuple[float | None, ...] = Field(min_length=1, max_length=MOST_POINTS)


def curve_of(name: str, values: Sequence[float], unit: str) -> Curve:
    """Raises ValueError where there is none, and over a name or a unit that cannot be one."""
    num_parts = min(len(values), MOST_POINTS)
    bounds = [len(values) * part // num_parts for part in range(num_parts + 1)] if num_parts else []
    points = tuple(_mean(values[begin:end]) for begin, end in itertools.pairwise(bounds))
    return Curve(name=name, unit=unit, num_steps=len(values), points=points)


def _mean(values: Sequence[float]) -> float | None:
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    return float(f"{mean:.{_DIGITS}g}") if math.isfinite(mean) else None
