"""What one rank did in one attempt of a validation, and the row of the report that all ranks give."""

from enum import StrEnum
from functools import lru_cache
from typing import Literal, Self

from pydantic import Field, model_validator

from gpu_acceptance.base.model import Model, Text
from gpu_acceptance.record.figure import MOST_CURVES, Curve, Figure
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.thresholds.limit import COUNTERS, Scope, Value, Whole, is_number, subject_of_metric

FORMING = "forming the group"  # the phase in which a worker meets the others of its generation
MOST_COLLECTIVES = 64  # groups of one rank whose last collective a record names
WORKER_END = "worker_end"  # the row of how healthy workers left


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


class Mistake(StrEnum):
    """What keeps a figure from being judged that is a mistake of its validation, and none of the machine's."""

    UNIT = "unit"  # another than its limit's
    SUBJECT = "subject"  # the metric belongs to another validation


class Judgement(Model):
    """One bound of one limit against the worst of its figures."""

    metric: str
    status: Status
    value: Value | None = None  # of the worst member
    unit: str = ""
    bound: str = ""  # "at_least", "at_most", "equals", "uniform", "peers"; empty where there is no limit
    asked: Value | None = None  # by the bound: 337, NVLS, the deficit to its peers that is allowed; None of "uniform"
    need: str = ""  # the same in words: ">= 337", "== NVLS", "equal on all"
    scope: Scope = "job"
    source: str = ""
    remedy: str = ""  # what the limit says is to be done about a miss
    file: str = ""
    margin: float | None = None  # distance to the bound as a part of it; negative: missed
    mistake: Mistake | None = Field(None, strict=False)
    ranks: tuple[int, ...] = ()  # who missed it, or the worst one where it held
    labels: dict[str, str | Whole] = Field(default_factory=dict)  # of the figure that was judged, or could not be
    message: Text = ""  # one line for people; for NOT_APPLICABLE and WAIVED it carries the reason

    def __hash__(self) -> int:
        return hash((self.metric, self.bound, self.status, self.message))

    @property
    def asked_number(self) -> float | None:
        """The number that the figure itself was held against."""
        return float(self.asked) if self.bound != "peers" and is_number(self.asked) else None


class Attempt(Model):
    number: int  # 1 is the first; 2 an announced repeat
    ranks: tuple[RankRecord, ...]


class Row(Model):
    """One validation of the report, over all ranks and attempts."""

    nodeid: str
    subject: str
    outcome: Outcome
    message: Text = ""
    duration_s: float = 0.0
    deadline_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    lacks: tuple[str, ...] = ()  # what it needs and some rank lacks (inventory/needs.py): why it was not run
