"""One measured value, as a test gave it. What is no value says so, and is never judged as one."""

import math
import re
from collections.abc import Mapping
from operator import not_
from types import MappingProxyType
from typing import Any, cast, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass

from gpu_acceptance.base.model import CLOSED
from gpu_acceptance.base.text import clip
from gpu_acceptance.thresholds.limit import Value

Labels = Mapping[str, str | int]
NONE: Labels = MappingProxyType({})


def _is_none(value: object) -> bool:
    return value is None


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class Figure:
    """One measured value of a metric on one rank. `value` is None when what was measured is no value; `anomaly` says what it was.

    A dataclass with slots, as the record of a large job has millions: read in half the time of a model (400,000 of them), and smaller.
    What it has nothing to say of is not written: every rank writes a dozen counters in every validation, and most of them only say 0.
    """

    metric: str
    value: Value | None
    unit: str
    judged: bool  # True: `check`, asks for judgement. False: `record`, informs
    anomaly: str = Field(default="", exclude_if=not_)
    spread_percent: float | None = Field(default=None, exclude_if=_is_none)  # coefficient of variation of the blocks behind the value
    detail: str = Field(default="", max_length=1_000, exclude_if=not_)  # which part of the machine it is of, for people: links, ports, XIDs
    labels: dict[str, str | int] | None = Field(
        default=None, max_length=16, exclude_if=_is_none
    )  # what it is of, for whoever draws it: bytes=4096

    def label(self, name: str) -> str | int | None:
        return self.labels.get(name) if self.labels else None


_MOST_TEXT = 1_000  # characters of a text that is a figure
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_UNIT = re.compile(r"[A-Za-z0-9_%/.*^-]{1,40}")
_LABEL = re.compile(r"[a-z][a-z0-9_]{0,29}")
_VALUES = get_args(Value)
_MOST_LABEL = 200  # characters of one that is a text


def make_figure(
    metric: str,
    value: object,
    unit: str,
    *,
    judged: bool,
    spread_percent: float | None = None,
    anomaly: str = "",
    detail: str = "",
    labels: Labels = NONE,
) -> Figure:
    """A figure of whatever a test measured; what is no finite number, text or bool becomes an anomaly, never a value.

    `anomaly`: why there is no value, where that is known; `value` counts for nothing then.
    Raises ValueError over a metric or a unit that cannot be one: that is the test's mistake, not the machine's.
    """
    for what, text, pattern in (("metric", metric, _NAME), ("unit", unit, _UNIT)):
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise ValueError(f"{what} {text!r:.100} is none; allowed: {pattern.pattern}")
    anomaly = anomaly or _anomaly(value) or (_spread_anomaly(spread_percent) if spread_percent is not None else "")
    about: dict[str, Any] = {}  # what is not said is not looked at
    if detail:
        about["detail"] = clip(detail, _MOST_TEXT)
    if labels:
        about["labels"] = {name: _label(name, told) for name, told in labels.items()}
    if anomaly:
        return Figure(metric=metric, value=None, unit=unit, judged=judged, anomaly=anomaly, **about)
    if spread_percent is not None:
        about["spread_percent"] = float(spread_percent)
    return Figure(metric=metric, value=cast(Value, value), unit=unit, judged=judged, **about)


def _label(name: str, value: object) -> str | int:
    if not _LABEL.fullmatch(name) or isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"label {name!r:.100} is {value!r:.100}; allowed: a text or an integer, by a name of {_LABEL.pattern}")
    return clip(value, _MOST_LABEL) if isinstance(value, str) else value


def _anomaly(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, _VALUES):
        return type(value).__name__
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return f"a text of {len(value)} characters"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "an integer beyond 64 bits"
    return ""


def _spread_anomaly(spread_percent: object) -> str:
    if isinstance(spread_percent, bool) or not isinstance(spread_percent, int | float):
        return f"spread is a {type(spread_percent).__name__}"
    return "" if math.isfinite(spread_percent) else f"spread is {spread_percent}"
