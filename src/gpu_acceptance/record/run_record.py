"""The record of a run, to and from JSON: `results.json`.

All data from disk or from another rank is validated. Nothing is pickled.
Text from machines is stored unchanged, and escaped where it is shown.

Format history: 1 (2026-11) first; 2 (2026-11) with the plan and the end of the run, from which all else is concluded again.
"""

from enum import StrEnum
from operator import not_
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gpu_acceptance.base.model import Model, Text
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.record.job import RankIdentity, RankNumber
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.thresholds.contract import Contract, JudgedContract
from gpu_acceptance.thresholds.limit import Profile, Value

MOST_NAMES = 50  # of each kind in a record; the number of changed files is not limited
SCHEMA_VERSION = 2


class ForeignFixture(Model):
    """A fixture that another file provides under a name of the suite's own, so that it overrides that one."""

    name: str = Field(max_length=200)
    file: str = Field(max_length=1_000)


class SuiteState(Model):
    """The suite as rank 0 found it before the run. Names are those of files below the suite's folder, or node ids."""

    source: Literal["checkout", "bundle", "wheel", "unknown"] = "unknown"  # the reference for `changed`
    commit: str = Field("", max_length=64)  # of a checkout or a bundle
    changed: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # changed, added or missing
    num_changed: int = 0
    conftests: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # but the suite's own
    fixtures: tuple[ForeignFixture, ...] = Field((), max_length=MOST_NAMES)
    threads: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # started by an import, non-daemon: name and module
    hidden: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # test functions that gave fewer validations than they define


class Drill(Model):
    """A fault for drills, as its validation declares it."""

    fault: str  # in words
    finds: str  # glob over metrics: of these a limit must be missed
    parameters: dict[str, Value] = Field(default_factory=dict)  # that plant it, in place of those of the profile
    plant: str = ""  # of measure/planted.py
    on_all: bool = False  # ranks; else on one


class Plant(Drill):
    """A fault that is planted in one rank, or in all (None), while the validation `item` runs."""

    rank: RankNumber | None
    item: str  # node id

    @property
    def where(self) -> str:
        """`rank 1`, or `all ranks`."""
        return "all ranks" if self.rank is None else f"rank {self.rank}"


class PlannedValidation(Model):
    nodeid: str
    deadline_s: float
    min_ranks: int = 1
    min_ranks_per_node: int = 1
    min_nodes: int = 1
    needs: tuple[str, ...] = ()  # of inventory/needs.py
    plant: Annotated[Plant | None, Field(exclude_if=not_)] = None  # in a drill

    @property
    def item(self) -> str:
        """The node id of the test that runs."""
        return self.plant.item if self.plant else self.nodeid


class RunPlan(Model):
    """The validations of a run and the limits that judge them. The second line of every journal: any of them is enough."""

    model_config = ConfigDict(revalidate_instances="always")  # a profile is a plain dataclass, whose values are checked here

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
    has_authentic_messages: bool | None = None  # between the ranks; None: in records of older versions
    has_closing: bool = False  # each journal ends with a closing line; False: in records of older versions
    num_deselected: int = 0
    selection: str = ""  # the selected part, if not the whole suite; a caveat of the verdict
    not_collected: tuple[str, ...] = ()  # a sentence for each test file whose validations are not known
    not_at_level: dict[str, int] = Field(default_factory=dict)  # by subject, the number of validations outside the chosen level
    suite: SuiteState | None = None  # as rank 0 saw it; None: in records of older versions
    validations: tuple[PlannedValidation, ...]  # in rank 0's order
    gpu_acceptance_version: str

    @property
    def is_drill(self) -> bool:
        """True where faults are planted: such a run accepts nothing."""
        return any(one.plant for one in self.validations)


class DisputedRecord(Model):
    """A record that differs between its rank and rank 0, which judged it: outcome and digest on both sides, or `nothing`."""

    rank: int
    nodeid: str
    attempt: int
    told: str
    judged: str


class ControlMessages(Model):
    """The control messages of a run, over all ranks; counts are by kind of message."""

    is_authenticated: bool  # each carried a code that only the run's own processes can make
    dropped: dict[str, int] = Field(default_factory=dict)  # not authentic, or repeated: from outside the run
    lost: dict[str, int] = Field(default_factory=dict)  # sent, and deleted or overwritten before they were read
    disputed: tuple[DisputedRecord, ...] = ()  # the first of each objecting rank


class Refusal(Model):
    """The reason why a run was refused: nothing ran, which proves nothing."""

    kind: Literal["refusal"] = "refusal"
    message: Text
    exit_code: Literal[6] = 6  # INCOMPLETE; a refusal with another code keeps no journal
    ended_at: str  # ISO 8601, UTC


class Coverage(Model):
    """Nodes x GPUs x limits. `limits_expected` counts the bounds that had to be judged for ACCEPTED."""

    nodes: int
    ranks: int
    gpus_existing: int
    gpus_tested: int
    limits_expected: int
    limits_judged: int
    limits_held: int


Verdict = Literal["ACCEPTED", "REJECTED", "INCOMPLETE"]


class ObjectionKind(StrEnum):
    """The kind of a reason against ACCEPTED."""

    NOT_WRITTEN = "report not written"
    INTERNAL_ERROR = "internal error"
    UNCONFIRMED = "unconfirmed"
    INTERRUPTED = "interrupted"
    NOT_CONCLUDED = "not concluded"
    TOOK_NO_PART = "took no part"
    MEASURED_ONLY = "measured only"
    MESSAGES_LOST = "messages lost"
    TOLD_OTHERWISE = "told otherwise"
    NOT_COLLECTED = "not collected"
    VALIDATION = "validation"
    LIMIT_MISSED = "limit missed"
    NEVER_MEASURED = "never measured"
    NOT_JUDGED = "not judged"
    NOTHING_PROVED = "nothing proved"
    CONTRACT = "contract"
    NO_LIMIT = "no limit"
    NODES_ABSENT = "nodes absent"
    NODES_UNLIKE = "nodes unlike"
    RANKS_SILENT = "ranks silent"
    GPUS_UNTESTED = "GPUs untested"
    GPUS_SHARED = "GPUs shared"
    DRILL = "drill"
    WRONG_PROFILE = "wrong profile"
    NOTHING_RAN = "nothing ran"


class Objection(Model):
    """One reason against ACCEPTED. `nodeid`: its validation; empty for the run as a whole."""

    kind: ObjectionKind
    nodeid: str = ""
    text: Text


class Conclusion(Model):
    """The verdict of a run, its reasons and its caveats."""

    verdict: Verdict
    line: Text  # the whole verdict line, caveats included
    exit_code: int
    objections: tuple[Objection, ...] = ()  # why not ACCEPTED, causes first
    coverage: Coverage
    limits: tuple[Judgement, ...] = ()  # every bound of the profile that applies, judged over the whole run
    contract: JudgedContract | None = None  # by those bounds, where --contract named one

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons against ACCEPTED in words, each once."""
        return tuple(dict.fromkeys(objection.text for objection in self.objections))


class RunEnd(Model):
    """The end of a run, apart from its rows."""

    interrupted: str | None = None  # the cause, a signal for example
    control_lost: bool = False  # ranks lost the store, their leader or a launcher
    internal_error: str | None = None
    unconfirmed: str | None = None  # the journal that does not confirm the conclusion, and why
    not_concluded: tuple[str, ...] = ()  # why no reporter that saw the whole run judged it
    took_no_part: tuple[str, ...] = ()  # ranks that did not meet the others, and why
    not_written: str | None = None  # the file of its report that could not be written, and why


WHOLE = RunEnd()


class RunRecord(Model):
    """The content of `results.json`. The report is built from this alone.

    The judgements follow from the plan, the ranks, their attempts and the end: each reader judges again (verdict/run_record.py).
    """

    schema_version: Literal[2] = 2
    plan: RunPlan
    ranks: tuple[RankIdentity, ...]
    rows: tuple[Row, ...]
    ended_at: str  # ISO 8601, UTC
    end: RunEnd
    control: ControlMessages | None = None  # None: in records of older versions
    journals: tuple[int, ...]  # ranks whose journals are beside this record
    conclusion: Conclusion

    @property
    def rebuilt(self) -> str:
        """The source and reason of a record that was rebuilt from journals; such a run is never ACCEPTED."""
        return self.end.not_concluded[0] if self.end.not_concluded else ""

    @property
    def closing(self) -> "Closing":
        """The last line that each journal must have."""
        verdict, exit_code = self.conclusion.verdict, self.conclusion.exit_code
        return Closing(verdict=verdict, exit_code=exit_code, ended_at=self.ended_at, end=self.end, control=self.control)


class Closing(Model):
    """The last line of a journal: the end of the run, which the rank received before any output, and could confirm."""

    kind: Literal["closing"] = "closing"
    verdict: Verdict
    exit_code: int
    ended_at: str
    end: RunEnd
    control: ControlMessages | None
