"""How one attempt went on one rank: a line of its journal."""

from functools import lru_cache
from typing import Literal, Self

from pydantic import Field, model_validator

from gpu_acceptance.base.model import Model, Text
from gpu_acceptance.record.curve import MOST_CURVES, Curve
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry
from gpu_acceptance.record.outcome import Cause, Outcome
from gpu_acceptance.thresholds.limit import COUNTERS, subject_of_metric

FORMING = "forming the group"  # the phase in which a worker meets the others of its generation
MOST_COLLECTIVES = 64  # groups of one rank whose last collective a record names


class LastCollective(Model):
    """Where a rank stands on one group, as its flight recorder tells: the first unfinished collective, else the last one."""

    group: str = Field(max_length=200)
    number: int  # in the order of the group
    is_p2p: bool = False  # counted apart, and not alike on all ranks
    operation: str = Field(max_length=300)  # `gloo:all_reduce [[4]] Float`
    finished: bool

    def __str__(self) -> str:
        return f"{'last' if self.finished else 'unfinished'} collective on {self.group}: number {self.number}, {self.operation}"


class RankRecord(Model):
    """How one attempt of one validation went on one rank: one line of that rank's journal."""

    kind: Literal["rank"] = "rank"
    nodeid: str
    attempt: int
    generation: int
    rank: int
    outcome: Outcome
    phase: str = ""  # setup, call or teardown: where a bad outcome happened
    duration_s: float = 0.0
    message: Text = ""  # the exception, the exit code, the reason of a skip
    cause: Cause | None = Field(None, strict=False)
    returncode: int | None = None  # of a worker that ended by itself; below zero: by that signal
    stack: Text = ""  # of a stuck or killed worker, innermost frame first
    collectives: tuple[LastCollective, ...] = Field((), max_length=MOST_COLLECTIVES)  # of a stuck worker
    ras: Text = ""  # what NCCL's RAS service said then; asked by the first rank of a node
    log_tail: Text = ""  # end of the worker's output, when the outcome is bad
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = Field((), max_length=MOST_CURVES)  # over the steps of the validation
    counters: tuple[Figure, ...] = ()  # what rose on the rank's GPU meanwhile, as its supervisor read it; no figure of a worker is here
    telemetry: GpuTelemetry | None = None  # of the rank's GPU meanwhile, sampled by its supervisor
    series: GpuSeries | None = None  # the same over time, of an attempt that lasted a minute or longer

    @model_validator(mode="after")
    def _keep_counters_apart(self) -> Self:
        """A worker that could write counters could hide what rose."""
        for figures, are_counters in ((self.figures, False), (self.counters, True)):
            if stray := _stray(tuple([figure.metric for figure in figures]), are_counters):
                raise ValueError(f"{stray} among the {'counters' if are_counters else 'figures'} of a record")
        return self


@lru_cache(maxsize=4096)  # all ranks have the same names
def _stray(metrics: tuple[str, ...], are_counters: bool) -> str | None:
    """The first that belongs among the others."""
    return next((metric for metric in metrics if (subject_of_metric(metric) == COUNTERS) != are_counters), None)
