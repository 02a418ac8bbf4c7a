"""What a run leaves behind: figures, rank records, rows and the run record, to and from JSON.

Whatever comes back from disk or from another rank goes through validation. Nothing is pickled.
Text from machines is kept as it came; whoever shows it escapes it.

Format history: 1 (2026-11) first.
"""

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer, model_validator
from pydantic.dataclasses import dataclass

from gpu_acceptance.inventory.declared import DeclaredNode, place_of
from gpu_acceptance.inventory.named_gpu import Gpu
from gpu_acceptance.record.curve import MOST_CURVES, Curve
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry
from gpu_acceptance.text.clip import MAX_TEXT, clip
from gpu_acceptance.text.model import CLOSED, Model
from gpu_acceptance.thresholds.contract import Contract, JudgedContract
from gpu_acceptance.thresholds.limit import COUNTERS, DEFAULT_LEVEL, ChangeKind, Profile, Scope, Value, subject_of_metric

SCHEMA_VERSION = 1
WORKER_END = "worker_end"  # the row of how healthy workers left
FORMING = "forming the group"  # the phase in which a worker meets the others of its generation
MOST_COLLECTIVES = 64  # groups of one rank whose last collective a record names

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Bounds = tuple[float, float]  # at least, at most


class Outcome(StrEnum):
    """How a validation ended, on one rank or over all of them."""

    PASSED = "passed"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"
    FAILED = "failed"
    DIED = "died"
    STUCK = "stuck"
    ERROR = "error"
    UNSTABLE = "unstable"
    NO_LIMIT = "no limit"
    NOT_MEASURED = "not measured"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"
    VICTIM = "victim"


class Status(StrEnum):
    """How one bound of a limit fared."""

    HELD = "held"
    MISSED = "missed"
    UNSTABLE = "unstable"
    NOT_MEASURED = "not measured"
    NO_LIMIT = "no limit"
    INVALID = "invalid"  # NaN, wrong unit, above the ceiling: a figure that cannot be judged
    NOT_APPLICABLE = "not applicable"
    WAIVED = "waived"


_OPTIONAL = frozenset({"anomaly", "spread_percent", "detail"})


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class Figure:
    """One measured value of a metric on one rank. `value` is None when what was measured is no value; `anomaly` says what it was.

    A dataclass with slots, as the record of a large job has millions: read in half the time of a model (400,000 of them), and smaller.
    """

    metric: str
    value: Value | None
    unit: str
    judged: bool  # True: `check`, asks for judgement. False: `record`, informs
    anomaly: str = ""
    spread_percent: float | None = None  # coefficient of variation of the blocks behind the value
    detail: str = Field(default="", max_length=1_000)  # which part of the machine it is of: links, ports, XIDs

    @model_serializer(mode="wrap")
    def _write_what_is_there(self, write: SerializerFunctionWrapHandler) -> dict[str, Value | None]:
        """Every rank writes a dozen counters in every validation, and most of them have nothing to say but 0."""
        return {name: value for name, value in write(self).items() if name not in _OPTIONAL or value not in {"", None}}


_FIGURE = TypeAdapter(Figure)
_MOST_TEXT = 1_000  # characters of a text that is a figure
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_UNIT = re.compile(r"[A-Za-z0-9_%/.*^-]{1,40}")


def make_figure(
    metric: str, value: object, unit: str, *, judged: bool, spread_percent: float | None = None, anomaly: str = "", detail: str = ""
) -> Figure:
    """A figure of whatever a test measured; what is no finite number, text or bool becomes an anomaly, never a value.

    `anomaly`: why there is no value, where that is known; `value` counts for nothing then.
    Raises ValueError over a metric or a unit that cannot be one: that is the test's mistake, not the machine's.
    """
    for what, text, pattern in (("metric", metric, _NAME), ("unit", unit, _UNIT)):
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise ValueError(f"{what} {text!r:.100} is none; allowed: {pattern.pattern}")
    anomaly = anomaly or _anomaly(value) or (_spread_anomaly(spread_percent) if spread_percent is not None else "")
    detail = clip(detail, _MOST_TEXT)
    if anomaly:
        return Figure(metric=metric, value=None, unit=unit, judged=judged, anomaly=anomaly, detail=detail)
    assert isinstance(value, bool | int | float | str)
    spread = None if spread_percent is None else float(spread_percent)
    return Figure(metric=metric, value=value, unit=unit, judged=judged, spread_percent=spread, detail=detail)


def figure_from_json(told: object) -> Figure:
    """As it came in a message. Raises ValueError over what is none."""
    return _FIGURE.validate_json(json.dumps(told))


def _anomaly(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or not isinstance(value, bool | int | float | str):
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
            if stray := _stray(tuple(figure.metric for figure in figures), are_counters):
                raise ValueError(f"{stray} among the {'counters' if are_counters else 'figures'} of a record")
        return self


@lru_cache(maxsize=4096)  # all ranks have the same names
def _stray(metrics: tuple[str, ...], are_counters: bool) -> str | None:
    """The first that belongs among the others."""
    return next((metric for metric in metrics if (subject_of_metric(metric) == COUNTERS) != are_counters), None)


class RankIdentity(Model):
    """Who a rank is: told once, before any GPU is touched; first line of that rank's journal."""

    kind: Literal["identity"] = "identity"
    schema_version: Literal[1] = 1
    run_id: str = ""
    rank: int
    local_rank: int
    node: int
    host: str
    local_world_size: int
    world_size: int
    gpus: tuple[Gpu, ...] = ()  # all GPUs of this node that NVML shows
    gpu_uuid: str = ""  # of the GPU its worker really opened; empty until it did
    num_gpus_on_bus: int = 0  # of this node, as the PCI bus shows them; a device that would not say what it is counts
    nvml_problem: str = ""  # what NVML did not answer; empty where it answered all
    versions: dict[str, str] = Field(default_factory=dict)  # python, torch, cuda, nccl, driver, kernel, ...
    environment: dict[str, str] = Field(default_factory=dict)  # variables that change results
    chassis_serial: str = ""
    rack: str = ""  # where --site says that it stands
    inventory: dict[str, str] = Field(default_factory=dict)  # its node in words; the first rank of a node tells
    clock_ahead_s: Bounds | None = None  # of its node's clock against node 0's; None: nobody asked, or no answer came

    @property
    def num_gpus(self) -> int:
        """GPUs that exist on this node: the larger of what NVML and the PCI bus show (a container may hide some from NVML)."""
        return max(len(self.gpus), self.num_gpus_on_bus)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU its worker opened, before that the one with the local rank's index; None on a machine without GPUs."""
        if self.gpu_uuid:
            return next((gpu for gpu in self.gpus if gpu.uuid == self.gpu_uuid), None)
        return self.gpus[self.local_rank] if self.local_rank < len(self.gpus) else None

    @property
    def node_place(self) -> str:
        """`node-03`, or `node-03, rack B2` where somebody said so."""
        return place_of(self.host, self.rack)

    @property
    def place(self) -> str:
        """`node-03, GPU 5, serial 1653924100006`: where to send the technician."""
        return f"{self.node_place}, {self.gpu.label}" if self.gpu else self.node_place

    def with_facts(self, facts: Mapping[str, str]) -> "RankIdentity":
        """The same rank, with what its worker found when it opened its device: `gpu_uuid`, and versions by name."""
        versions = {name: value for name, value in facts.items() if name != "gpu_uuid"}
        return self.model_copy(update={"gpu_uuid": facts.get("gpu_uuid", self.gpu_uuid), "versions": {**self.versions, **versions}})


class RankFacts(Model):
    """What a rank's worker found when it opened its device; a line of that rank's journal for each worker that told."""

    kind: Literal["facts"] = "facts"
    rank: int
    facts: dict[str, str]


class PlannedValidation(Model):
    nodeid: str
    deadline_s: float
    min_ranks: int = 1
    min_ranks_per_node: int = 1
    min_nodes: int = 1


class RunPlan(Model):
    """What is to be judged and by what; the same second line in every rank's journal, so that any journal is enough to judge by."""

    model_config = ConfigDict(revalidate_instances="always")  # a profile is a plain dataclass: its values are checked here, not by itself

    kind: Literal["plan"] = "plan"
    run_id: str
    started_at: str  # ISO 8601, UTC
    command: tuple[str, ...]
    profile: Profile
    waivers: dict[str, str] = Field(default_factory=dict)
    declared_gpus: int | None = None  # --gpus
    expected_nodes: int | None = None  # --expect-nodes
    declared_nodes: tuple[DeclaredNode, ...] = ()  # --site
    contract: Contract | None = None  # --contract
    measure_only: bool = False
    allow_busy: bool = False  # --allow-busy
    num_deselected: int = 0
    selection: str = ""  # where less than the whole suite was asked for: what; it weakens the verdict
    not_collected: tuple[str, ...] = ()  # a sentence for each test file of which no validations are known
    not_at_level: dict[str, int] = Field(default_factory=dict)  # by subject: how many validations the chosen level leaves out
    validations: tuple[PlannedValidation, ...]  # in rank 0's order
    gpu_acceptance_version: str


class Judgement(Model):
    """One bound of one limit against the worst of its figures."""

    metric: str
    status: Status
    value: Value | None = None  # of the worst member
    unit: str = ""
    bound: str = ""  # "at_least", "at_most", "equals", "uniform", "peers"; empty where there is no limit
    need: str = ""  # ">= 337", "== NVLS", "equal on all"
    scope: Scope = "job"
    source: str = ""
    remedy: str = ""  # what the limit says is to be done about a miss
    file: str = ""
    margin: float | None = None  # distance to the bound as a part of it; negative: missed
    ranks: tuple[int, ...] = ()  # who missed it, or the worst one where it held
    message: Text = ""  # one line for people; for NOT_APPLICABLE and WAIVED it carries the reason


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


class ChangeRecord(Model):
    kind: ChangeKind
    key: str
    old: str
    new: str
    file: str
    sha256: str


class Coverage(Model):
    """Nodes x GPUs x limits. `limits_expected` counts the bounds that had to be judged for ACCEPTED."""

    nodes: int
    ranks: int
    gpus_existing: int
    gpus_tested: int
    limits_expected: int
    limits_judged: int
    limits_held: int


class Conclusion(Model):
    """The verdict of a run and everything that weakens it."""

    verdict: Literal["ACCEPTED", "REJECTED", "INCOMPLETE"]
    line: Text  # the whole verdict line, weaknesses included
    exit_code: int
    reasons: tuple[str, ...] = ()  # why not ACCEPTED, causes first
    coverage: Coverage
    limits: tuple[Judgement, ...] = ()  # every bound of the profile that applies, judged over the whole run
    contract: JudgedContract | None = None  # by those bounds, where --contract named one


class Header(Model):
    run_id: str
    started_at: str  # ISO 8601, UTC
    ended_at: str
    command: tuple[str, ...]
    profile: str
    profile_digest: str
    profile_files: dict[str, str]  # file -> sha256
    required: tuple[str, ...]
    parameters: dict[str, Value]
    declared_gpus: int | None = None  # --gpus
    expected_nodes: int | None = None  # --expect-nodes
    declared_nodes: tuple[DeclaredNode, ...] = ()  # --site
    measure_only: bool = False
    allow_busy: bool = False
    level: str = DEFAULT_LEVEL  # --level
    not_at_level: dict[str, int] = Field(default_factory=dict)  # by subject: how many validations it left out
    gpu_acceptance_version: str
    ranks: tuple[RankIdentity, ...]
    rebuilt: str = ""  # from which journals and why, where no reporter finished the run; such a run is never ACCEPTED


class RunRecord(Model):
    """`results.json`: all that a run knows. The report is built from this alone."""

    schema_version: Literal[1] = 1
    header: Header
    conclusion: Conclusion
    rows: tuple[Row, ...]
    changes: tuple[ChangeRecord, ...] = ()
    not_applicable: dict[str, str] = Field(default_factory=dict)
    waivers: dict[str, str] = Field(default_factory=dict)
