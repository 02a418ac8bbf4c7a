"""What one GPU did over a stretch of time, as a record keeps it and a validation is told it."""

import time
from typing import Annotated

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.answer import Answer, Missing, Why

MAX_WHY = 500  # characters
LEAST_KNOWN = 0.9  # of a stretch of time, for a mean to be one of it
_Name = Annotated[str, Field(max_length=100)]
_Why = Annotated[str, Field(max_length=MAX_WHY)]
_MOST = 64  # channels, or reasons: there are 14 and 9
MOST_POINTS = 240  # of a series: one for each minute of 4 h
KEPT_FROM_S = 60.0  # attempts that last as long keep a series


class Level(Model):
    """The mean is weighted by time."""

    mean: float
    low: float
    high: float
    held_s: float  # for which there was a value
    cv_percent: float | None = None  # standard deviation over time, in percent of the mean; None: of a mean of 0, and in older records


class Between(Model):
    """The first and the last moment at which something was so, in seconds from the begin of the stretch of time."""

    first_s: float
    last_s: float


class GpuTelemetry(Model):
    """Sampled by the rank's supervisor. The unit of a channel is the end of its name; rates are in GB/s."""

    length_s: float
    seen_s: float  # of it, for which there is a sample, with values or without
    num_samples: int
    longest_gap_s: float  # without a sample
    longest_gap_begin_s: float | None = None  # from the begin of the stretch; None: in older records
    levels: dict[_Name, Level] = Field(max_length=_MOST)  # by channel: sm_clock_mhz, power_w, utilisation_percent, ...
    throttled_s: dict[_Name, float] = Field(max_length=_MOST)  # by the reason why clocks were not higher; idleness is one
    throttled_between: dict[_Name, Between] = Field({}, max_length=_MOST)  # by the same reasons
    reasons_held_s: float  # for which those were known
    missing: dict[_Name, _Why] = Field(max_length=_MOST)  # by channel, why there is no level

    def mean(self, channel: str) -> Answer[float]:
        """Missing, and why, where the GPU or NVML did not tell, or told of less than 90 % of the time."""
        level = self.levels.get(channel)
        if level is None:
            return Missing(Why.NOT_THERE, self.missing.get(channel, f"no channel {channel}"))
        if level.held_s < LEAST_KNOWN * self.length_s:
            return Missing(Why.UNREADABLE, f"{channel} is known for {level.held_s:.1f} of {self.length_s:.1f} s")
        return level.mean


_Points = Annotated[tuple[float | None, ...], Field(max_length=MOST_POINTS)]
_Places = Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_POINTS)], ...], Field(max_length=MOST_POINTS)]


class GpuSeries(Model):
    """How it went: points of equal length, one after the other from the begin of the stretch of time."""

    point_s: float
    levels: dict[_Name, _Points] = Field(max_length=_MOST)  # by channel, the mean of each point; None: no value
    throttled: dict[_Name, _Places] = Field(max_length=_MOST)  # by reason, in which points it was set; idleness and the power cap are none


def check_moments(begin_s: float, end_s: float) -> None:
    """Refuses what no stretch of time.monotonic() can lie between."""
    are_numbers = all(isinstance(one, int | float) for one in (begin_s, end_s))
    if not (are_numbers and 0 <= begin_s <= end_s <= time.monotonic()):
        shown = f"telemetry from {begin_s!r:.40} to {end_s!r:.40}"
        raise ValueError(f"{shown}: wanted are two moments of time.monotonic() that have been, the earlier one first")
