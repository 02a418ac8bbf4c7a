"""The length of a measurement, and how far its blocks lie apart.

A rate that is hopeless against its limit is told from a few operations, and so is every rate of a job whose bytes go another way than was
bought: what is broken must not take longer than what is sound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

HOPELESS = 0.5  # of the least that a limit allows: no jitter of a sound machine halves a rate


@dataclass(frozen=True)
class Spread:
    """The blocks behind one figure."""

    percent: float  # coefficient of variation
    best: float | None = None  # the figure of the best block, in the unit of the figure
    is_cut: bool = False  # they are a few operations, because the figure was hopeless or the measurement brief


@dataclass(frozen=True)
class Pace:
    """The pace of one validation. `floors`: the least that the limits of this job allow, by metric."""

    floors: Mapping[str, float]
    is_brief: bool = False

    def hopeless_s(self, metric: str, work: float) -> float:
        """Return the seconds above which an operation is hopeless: infinite where no limit has a floor, 0 in a brief measurement.

        `work`: of one operation, so that work / seconds has the unit of the metric.
        """
        floor = self.floors.get(metric, 0.0)
        if self.is_brief:
            return 0.0
        return work / (HOPELESS * floor) if floor > 0 else math.inf
