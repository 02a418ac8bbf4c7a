"""One validation of the report: its attempts on all ranks, and what the limits made of them."""

from enum import StrEnum

from pydantic import Field

from gpu_acceptance.base.model import Model, Text
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.rank_record import RankRecord
from gpu_acceptance.thresholds.limit import Scope, Value
from gpu_acceptance.thresholds.values import is_number

WORKER_END = "worker_end"  # the row of how healthy workers left


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
    labels: dict[str, str | int] = Field(default_factory=dict)  # of the figure that was judged, or could not be
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
