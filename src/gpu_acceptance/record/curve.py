"""What a validation saw over its steps, such as a loss: kept in the record, judged by nobody."""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from gpu_acceptance.base.model import Model

MOST_POINTS = 240  # of a longer one each is the mean of as many neighbours
MOST_CURVES = 16  # of one validation on one rank: 240 points of each are some 60 kB of a message of 1 MiB
_DIGITS = 6  # significant ones
_LONGEST = 200  # characters
_WORD = re.compile(rf"[A-Za-z0-9_%/.*^-]{{1,{_LONGEST}}}")


class Curve(Model):
    """Points in the order of time. None: what was there was no finite number."""

    name: str = Field(max_length=_LONGEST)
    unit: str = Field(max_length=_LONGEST)
    num_steps: int  # that it is of
    points: tuple[float | None, ...] = Field(max_length=MOST_POINTS)

    @model_validator(mode="after")
    def _be_of_words_and_steps(self) -> Self:
        _check_words(self.name, self.unit)
        if not 1 <= len(self.points) <= self.num_steps < 2**63:
            raise ValueError(f"{len(self.points)} points of {self.num_steps} steps")
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """Of each point the step in the middle of those that it is the mean of, counted from 0; each later than the one before."""
        bounds = _bounds(self.num_steps, len(self.points))
        return tuple((begin + end - 1) // 2 for begin, end in itertools.pairwise(bounds))


def curve_of(name: str, values: Sequence[float], unit: str) -> Curve:
    """Raises ValueError where there is none, and over a name or a unit that cannot be one."""
    _check_words(name, unit)
    if not values:
        raise ValueError(f"curve {name} has no steps")
    bounds = _bounds(len(values), min(len(values), MOST_POINTS))
    points = tuple(_mean(values[begin:end]) for begin, end in itertools.pairwise(bounds))
    return Curve(name=name, unit=unit, num_steps=len(values), points=points)


def _check_words(name: str, unit: str) -> None:
    for what, text in (("name", name), ("unit", unit)):
        if not _WORD.fullmatch(text):
            raise ValueError(f"{what} of a curve {text!r:.100} is none; allowed: {_WORD.pattern}")


def _bounds(num_steps: int, num_points: int) -> list[int]:
    return [num_steps * point // num_points for point in range(num_points + 1)]


def _mean(values: Sequence[float]) -> float | None:
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    return float(f"{mean:.{_DIGITS}g}") if math.isfinite(mean) else None
