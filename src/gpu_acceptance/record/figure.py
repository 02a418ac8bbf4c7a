"""Figures that a validation measured, curves over its steps, and figures made of a machine's answers."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from operator import is_, not_
from types import MappingProxyType
from typing import Any, Self, cast

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from gpu_acceptance.base.model import CLOSED, Model
from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.thresholds.limit import Value, Whole

Labels = Mapping[str, str | int]
NONE: Labels = MappingProxyType({})
MOST_POINTS = 240  # each point of a longer curve is the mean of as many neighbours
MOST_CURVES = 16  # of one validation on one rank: 240 points of each are some 60 kB of a message of 1 MiB
_DIGITS = 6  # significant ones
_LONGEST = 200  # characters
_WORD = re.compile(rf"[A-Za-z0-9_%/.*^-]{{1,{_LONGEST}}}")
_MOST_TEXT = 1_000  # characters of a text that is a figure
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_UNIT = re.compile(r"[A-Za-z0-9_%/.*^-]{1,40}")
_LABEL = re.compile(r"[a-z][a-z0-9_]{0,29}")
_MOST_LABEL = 200  # characters of a text
_is_none = partial(is_, None)


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class Figure:
    """One measured value of a metric on one rank. `value` is None if the measurement gave no value; `anomaly` says what it gave.

    A dataclass with slots, because the record of a large job has millions: it is read in half the time of a model (400,000 of them), and
    is smaller. Empty fields are not written: every rank writes a dozen counters in every validation, and most of them only say 0.
    """

    metric: str
    value: Value | None
    unit: str
    judged: bool  # True: `check`, asks for judgement. False: `record`, informs
    anomaly: str = Field(default="", exclude_if=not_)
    spread_percent: float | None = Field(default=None, exclude_if=_is_none)  # coefficient of variation of the blocks behind the value
    best: float | None = Field(default=None, exclude_if=_is_none)  # of these blocks
    is_cut: bool = Field(default=False, exclude_if=not_)  # they are a few operations: hopeless, or of a brief measurement
    is_least: bool = Field(default=False, exclude_if=not_)  # the true value is this or more: a counter that fell began again in between
    detail: str = Field(default="", max_length=1_000, exclude_if=not_)  # the part of the machine, for people: links, ports, XIDs
    labels: dict[str, str | Whole] | None = Field(default=None, max_length=16, exclude_if=_is_none)  # for charts: bytes=4096

    def label(self, name: str) -> str | int | None:
        return self.labels.get(name) if self.labels else None


def make_figure(
    metric: str,
    value: object,
    unit: str,
    *,
    judged: bool,
    spread: Spread | None = None,
    anomaly: str = "",
    is_least: bool = False,
    detail: str = "",
    labels: Labels = NONE,
) -> Figure:
    """Return the figure of any measured object, or of a reader's answer.

    An object that is no finite number, text or bool becomes an anomaly, never a value. `anomaly`: why there is no value, if that is known.
    Raises ValueError over an invalid metric name or unit: that is the test's mistake, not the machine's.
    """
    for what, text, pattern in (("metric name", metric, _NAME), ("unit", unit, _UNIT)):
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise ValueError(f"invalid {what} {text!r:.100}; must match {pattern.pattern}")
    if isinstance(value, Missing):
        labels = {**labels, "missing": value.missing.value}
    anomaly = anomaly or _anomaly(value, spread)
    about: dict[str, Any] = {}  # validation skips what is absent
    if detail:
        about["detail"] = clip(detail, _MOST_TEXT)
    if labels:
        about["labels"] = {name: _label(name, text) for name, text in labels.items()}
    if anomaly:
        return Figure(metric=metric, value=None, unit=unit, judged=judged, anomaly=anomaly, **about)
    if is_least:
        about["is_least"] = True
    if spread is not None:
        about["spread_percent"] = float(spread.percent)
        if spread.best is not None:
            about["best"] = float(spread.best)
        if spread.is_cut:
            about["is_cut"] = True
    return Figure(metric=metric, value=cast(Value, value), unit=unit, judged=judged, **about)


def _label(name: str, value: object) -> str | int:
    if _is_too_long(value):
        raise ValueError(f"label {name!r:.100} is an integer beyond 64 bits; allowed: -2**63 to 2**63 - 1")
    if not _LABEL.fullmatch(name) or isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"label {name!r:.100} is {value!r:.100}; allowed: a text or an integer, by a name of {_LABEL.pattern}")
    return clip(value, _MOST_LABEL) if isinstance(value, str) else value


def _is_too_long(value: object) -> bool:
    return isinstance(value, int) and abs(value) >= 2**63


def _anomaly(value: object, spread: Spread | None) -> str:
    """Return why this is no value with its spread; an empty text where it is one."""
    if isinstance(value, Missing) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if not isinstance(value, float | int | str):
        return type(value).__name__
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return f"a text of {len(value)} characters"
    if _is_too_long(value):
        return "an integer beyond 64 bits"
    for what, number in (("spread", spread.percent), ("best block", spread.best)) if spread else ():
        if number is None and what == "best block":
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"{what} is a {type(number).__name__}"
        if not math.isfinite(number):
            return f"{what} is {number}"
    return ""


def parts_of(finding: tuple[Any, ...]) -> tuple[str, Any, str, str, Mapping[str, Any]]:
    """Return metric, value, unit, detail and labels of a finding, which may end before the last two."""
    metric, value, unit, *rest = finding
    return metric, value, unit, rest[0] if rest else "", rest[1] if len(rest) > 1 else NONE


class Curve(Model):
    """Points in the order of time. None: the value there was no finite number."""

    name: str = Field(max_length=_LONGEST)
    unit: str = Field(max_length=_LONGEST)
    num_steps: int  # behind all points
    points: tuple[float | None, ...] = Field(max_length=MOST_POINTS)

    @model_validator(mode="after")
    def _be_of_words_and_steps(self) -> Self:
        _check_words(self.name, self.unit)
        if not 1 <= len(self.points) <= self.num_steps < 2**63:
            raise ValueError(f"{len(self.points)} points of {self.num_steps} steps")
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """Return for each point the middle of the steps behind it, counted from 0; they ascend."""
        bounds = _bounds(self.num_steps, len(self.points))
        return tuple((begin + end - 1) // 2 for begin, end in itertools.pairwise(bounds))


def curve_of(name: str, values: Sequence[float], unit: str) -> Curve:
    """Return the curve of these values. Raises ValueError without values, and over an invalid name or unit."""
    _check_words(name, unit)
    if not values:
        raise ValueError(f"curve {name} has no steps")
    points = []
    for begin, end in itertools.pairwise(_bounds(len(values), min(len(values), MOST_POINTS))):
        part = values[begin:end]
        mean = math.fsum(part) / len(part) if all(map(math.isfinite, part)) else math.nan
        points.append(float(f"{mean:.{_DIGITS}g}") if math.isfinite(mean) else None)
    return Curve(name=name, unit=unit, num_steps=len(values), points=tuple(points))


def _check_words(name: str, unit: str) -> None:
    for what, text in (("name", name), ("unit", unit)):
        if not _WORD.fullmatch(text):
            raise ValueError(f"invalid {what} of a curve {text!r:.100}; must match {_WORD.pattern}")


def _bounds(num_steps: int, num_points: int) -> list[int]:
    return [num_steps * point // num_points for point in range(num_points + 1)]
