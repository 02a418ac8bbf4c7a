"""What is to be judged and by what: the second line of every journal."""

from typing import Literal

from pydantic import ConfigDict, Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.record.suite_state import SuiteState
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.limit import Profile


class PlannedValidation(Model):
    nodeid: str
    deadline_s: float
    min_ranks: int = 1
    min_ranks_per_node: int = 1
    min_nodes: int = 1
    needs: tuple[str, ...] = ()  # of inventory/needs.py


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
    has_authentic_messages: bool | None = None  # between the ranks; None: of a version that does not say so
    has_closing: bool = False  # each journal ends with how the run ended; False: of a version whose ranks did not say so
    num_deselected: int = 0
    selection: str = ""  # where less than the whole suite was asked for: what; it weakens the verdict
    not_collected: tuple[str, ...] = ()  # a sentence for each test file of which no validations are known
    not_at_level: dict[str, int] = Field(default_factory=dict)  # by subject: how many validations the chosen level leaves out
    suite: SuiteState | None = None  # as rank 0 saw it; None: an earlier version did not look
    validations: tuple[PlannedValidation, ...]  # in rank 0's order
    gpu_acceptance_version: str
