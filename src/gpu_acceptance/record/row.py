"""The record of one rank in one attempt of a validation, and the row of the report over all ranks."""

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpu_acceptance.base.model import Index, Model, Text
from gpu_acceptance.base.text import MAX_LINE
from gpu_acceptance.record.figure import MOST_CURVES, Curve, Figure
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.thresholds.limit import COUNTERS, Scope, Value, Whole, is_number, subject_of_metric

FORMING = "forming the group"  # the phase in which a worker meets the others of its generation
MOST_FOREIGN = 8  # processes of others that one record names
MOST_NAME = 64  # characters of the name of a process
MOST_COLLECTIVES = 64  # groups of one rank whose last collective a record names
WORKER_END = "worker_end"  # the row about the exit of healthy workers


class LastCollective(Model):
    """The place of a rank in one group, from its flight recorder: the first unfinished collective, else the last one."""

    group: str = Field(max_length=200)
    number: int  # in the order of the group
    is_p2p: bool = False  # numbered separately, with other numbers on other ranks
    operation: str = Field(max_length=300)  # `gloo:all_reduce [[4]] Float`
    finished: bool

    def __str__(self) -> str:
        return f"{'last' if self.finished else 'unfinished'} collective on {self.group}: number {self.number}, {self.operation}"


class ForeignUse(Model):
    """A process that does not belong to this run, on the GPU under test. The times are seconds since this rank's part of the run began."""

    gpu: Index  # NVML's
    pid: Annotated[int, Field(ge=0)] = 0  # 0: its memory alone shows it, because a container hides it
    name: str = Field("", max_length=MOST_NAME)  # as the kernel gives it; empty where it is not readable
    memory_bytes: Annotated[int, Field(ge=0)] | None = None  # the most that was seen; None: not known
    from_s: float  # the last moment at which it was not there
    to_s: float  # the first moment at which it was gone, or the end of the attempt


class CpuUse(Model):
    """Processor time during an attempt: of all programs on the machine, and of this rank's own processes."""

    length_s: float
    busy_s: float
    own_s: float
    num_cpus: int


class RankRecord(Model):
    """One attempt of one validation on one rank: one line of that rank's journal."""

    kind: Literal["rank"] = "rank"
    nodeid: str
    attempt: int
    generation: int
    rank: int
    outcome: Outcome
    brief: str = ""  # why rates were measured over a few operations only
    phase: str = ""  # setup, call or teardown, in which a bad outcome happened
    duration_s: float = 0.0
    message: Text = ""  # the exception, the exit code, the reason of a skip
    cause: Cause | None = Field(None, strict=False)
    returncode: int | None = None  # of a worker that ended by itself; below zero: by that signal
    stack: Text = ""  # of a stuck or killed worker, innermost frame first
    collectives: tuple[LastCollective, ...] = Field((), max_length=MOST_COLLECTIVES)  # of a stuck worker
    ras: Text = ""  # the answer of NCCL's RAS service then, asked by the first rank of a node
    log_tail: Text = ""  # end of the worker's output, when the outcome is bad
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = Field((), max_length=MOST_CURVES)  # over the steps of the validation
    counters: tuple[Figure, ...] = ()  # of the rank's GPU that rose meanwhile, read by its supervisor; never from a worker
    telemetry: GpuTelemetry | None = None  # of the rank's GPU meanwhile, sampled by its supervisor
    series: GpuSeries | None = None  # the same over time, of an attempt that lasted a minute or longer
    foreign: tuple[ForeignUse, ...] = Field((), max_length=MOST_FOREIGN)  # read by its supervisor
    cpu: CpuUse | None = None  # read by its supervisor; None where the machine does not tell
    unwatched: str = Field("", max_length=MAX_LINE)  # why it is not known who else used the GPU; empty where it is

    @model_validator(mode="after")
    def _keep_counters_apart(self) -> Self:
        """Refuse counters among the figures: a worker that could write counters could hide a rise."""
        for figures, are_counters in ((self.figures, False), (self.counters, True)):
            if stray := _find_stray(tuple([figure.metric for figure in figures]), are_counters):
                raise ValueError(f"{stray} among the {'counters' if are_counters else 'figures'} of a record")
        return self


@lru_cache(maxsize=4096)  # all ranks have the same names
def _find_stray(metrics: tuple[str, ...], are_counters: bool) -> str | None:
    return next((metric for metric in metrics if (subject_of_metric(metric) == COUNTERS) != are_counters), None)


class Mistake(StrEnum):
    """A mistake of the validation, not of the machine, that keeps a figure from being judged."""

    UNIT = "unit"  # differs from the unit of its limit
    SUBJECT = "subject"  # the metric belongs to another validation


class Judgement(Model):
    """One bound of one limit against the worst of its figures."""

    metric: str
    status: Status
    value: Value | None = None  # of the worst member
    unit: str = ""
    bound: str = ""  # "at_least", "at_most", "equals", "uniform", "peers"; empty where there is no limit
    asked: Value | None = None  # by the bound: 337, NVLS, the allowed deficit to its peers; None for "uniform"
    need: str = ""  # the bound in words: ">= 337", "== NVLS", "equal on all"
    scope: Scope = "job"
    source: str = ""
    remedy: str = ""  # of the limit, after a miss
    file: str = ""
    margin: float | None = None  # distance to the bound as a part of it; negative: missed
    mistake: Mistake | None = Field(None, strict=False)
    ranks: tuple[int, ...] = ()  # that missed it, or the worst one if it held
    labels: dict[str, str | Whole] = Field(default_factory=dict)  # of the figure that was judged, or could not be
    message: Text = ""  # one line for people; for NOT_APPLICABLE and WAIVED it carries the reason

    def __hash__(self) -> int:
        return hash((self.metric, self.bound, self.status, self.message))

    @property
    def asked_number(self) -> float | None:
        """The number that the figure itself was compared with."""
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
    lacks: tuple[str, ...] = ()  # needs that some rank lacks (inventory/needs.py), so that it was not run
