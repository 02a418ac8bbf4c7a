"""A run as its journals tell it: plan, identities and records of a small job, and the rows that its own reporter would have made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_acceptance.folder.journal import Journal, JournalContent
from gpu_acceptance.record.figure import Figure, make_figure
from gpu_acceptance.record.job import Job, RankFacts
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import WHOLE, Closing, PlannedValidation, RunPlan, RunRecord
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.verdict.attempts import bare_row, causes_before_victims, too_small
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.run_record import make_run_record
from tests.judging import make_identity, make_limit, make_profile

RUN_ID = "20261120-070000-ab12"
TRIAD = "acceptance/test_hbm.py::test_triad"
BF16 = "acceptance/test_gemm.py::test_gemm[bf16]"
LARGE_JOB = "acceptance/test_rail.py::test_rail"
PROFILE = make_profile(make_limit(), make_limit("gemm.bf16.rate"))
DEADLINE_S = 60.0


def make_plan(profile: Profile = PROFILE, nodeids: Sequence[str] = (FORMATION, TRIAD, BF16, LARGE_JOB), **more: object) -> RunPlan:
    validations = [
        PlannedValidation(nodeid=nodeid, deadline_s=DEADLINE_S, min_ranks=16 if nodeid == LARGE_JOB else 1) for nodeid in nodeids
    ]
    fields = {"run_id": RUN_ID, "started_at": "2026-11-20T07:00:00+00:00", "command": ("torchrun", "-m", "pytest"), "profile": profile}
    return RunPlan.model_validate(
        {**fields, "validations": tuple(validations), "gpu_acceptance_version": "0.1.0", "has_closing": True, **more}
    )


@dataclass(frozen=True)
class Told:
    """A run of which each rank told everything: records by validation, attempt and rank."""

    plan: RunPlan = field(default_factory=make_plan)
    world_size: int = 4
    attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)
    ranks_of_node: int = 0  # 0: all of them

    @property
    def job(self) -> Job:
        return Job(tuple(self._identity(rank).with_facts(self.facts(rank)) for rank in range(self.world_size)))

    def facts(self, rank: int) -> dict[str, str]:
        return {"gpu_uuid": f"GPU-0-{rank}", "nccl": "2.28.9"}

    def _identity(self, rank: int):
        return make_identity(rank, self.world_size, self.ranks_of_node or self.world_size).model_copy(update={"run_id": self.plan.run_id})

    def records(self, rank: int) -> list[RankRecord]:
        return [record for attempts in self.attempts.values() for attempt in attempts for record in attempt.ranks if record.rank == rank]

    def content(self, rank: int) -> JournalContent:
        identity = self._identity(rank).with_facts(self.facts(rank))
        return JournalContent(Path(f"run/journal/rank-{rank:05d}.jsonl"), identity, self.plan, tuple(self.records(rank)))

    def contents(self, *left_out: int) -> list[JournalContent]:
        return [self.content(rank) for rank in range(self.world_size) if rank not in left_out]

    def leave(self, run_dir: Path, *left_out: int, closing: Closing | None = None) -> Path:
        """Write the journals as supervisors do. Without a closing no rank was left to say how the run ended."""
        for rank in set(range(self.world_size)) - set(left_out):
            with Journal(run_dir / "journal" / f"rank-{rank:05d}.jsonl") as journal:
                journal.append(self._identity(rank))
                journal.append(self.plan)
                journal.append(RankFacts(rank=rank, facts=self.facts(rank)))
                for record in self.records(rank):
                    journal.append(record)
                if closing:
                    journal.append(closing)
        return run_dir

    def rows(self) -> list[Row]:
        """Return the rows that rank 0 would have made, had it lived."""
        return [self._row(validation) for validation in self.plan.validations]

    def _row(self, validation: PlannedValidation) -> Row:
        reason = str(too_small(validation, self.job) or "")
        if reason:
            return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, reason, validation.deadline_s)
        attempts = [
            Attempt(number=attempt.number, ranks=causes_before_victims(attempt.ranks)) for attempt in self.attempts[validation.nodeid]
        ]
        return make_row(validation.nodeid, attempts, self.plan.profile, self.job, self.plan.waivers, validation.deadline_s)


def concluded(run: Told) -> RunRecord:
    """The record that its reporter leaves, beside all journals."""
    ended_at = "2026-11-20T07:21:40+00:00"
    return make_run_record(run.plan, run.job, run.rows(), ended_at=ended_at, end=WHOLE, journals=range(run.world_size))


def attempt_of(nodeid: str, figures: Mapping[int, Sequence[Figure]], number: int = 1, **outcomes: Outcome) -> Attempt:
    """All ranks in `figures` passed with them; `rank_2=Outcome.DIED` says otherwise of one."""
    return Attempt(
        number=number,
        ranks=tuple(
            RankRecord(
                nodeid=nodeid,
                attempt=number,
                generation=1,
                rank=rank,
                outcome=outcomes.get(f"rank_{rank}", Outcome.PASSED),
                phase="call" if f"rank_{rank}" in outcomes else "",
                duration_s=1.5,
                figures=tuple(figures[rank]),
            )
            for rank in figures
        ),
    )


def checked(metric: str, values: Sequence[object], unit: str = "GB/s") -> dict[int, list[Figure]]:
    """One checked figure for each rank."""
    return {rank: [make_figure(metric, value, unit, judged=True)] for rank, value in enumerate(values)}


def told(triad: Sequence[object] = (120.0,) * 4, rate: Sequence[object] = (130.0,) * 4, plan: RunPlan | None = None, **outcomes) -> Told:
    """A run of four ranks; `outcomes` of ranks in the triad."""
    attempts = {
        FORMATION: [attempt_of(FORMATION, dict.fromkeys(range(4), ()))],
        TRIAD: [attempt_of(TRIAD, checked("hbm.triad.bandwidth", triad), **outcomes)],
        BF16: [attempt_of(BF16, checked("gemm.bf16.rate", rate))],
    }
    return Told(plan or make_plan(), 4, attempts)
