"""Rank 0's part: says what runs when, forms generations of workers, judges, and tells every rank the same verdict."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_acceptance.attempts import bare_row, is_poison, too_small
from gpu_acceptance.board import Board
from gpu_acceptance.budget import Budget
from gpu_acceptance.job import Job
from gpu_acceptance.judge import wants_repeat
from gpu_acceptance.limit import Profile
from gpu_acceptance.objections import FORMATION
from gpu_acceptance.ranges import named
from gpu_acceptance.record import Attempt, Outcome, RankRecord, Row, clip
from gpu_acceptance.supervisor import Supervisor
from gpu_acceptance.verdict import make_row, subject_of

_MOST_FAILED_FORMATIONS = 2  # in a row; then validations that need a group are not run
_MOST_POISONED = 3  # generations by one rank
_LIVE_LINE_S = 10.0
_CAST_TEXT = 8_000  # an announced verdict stays below 16 kB; the whole text is in the record


@dataclass(frozen=True)
class Validation:
    """One item of the run and what it asked for with its markers."""

    nodeid: str
    deadline_s: float
    needs_group: bool = True
    min_ranks: int = 1
    fresh: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LeaderOptions:
    measure_only: bool = False
    confirm: int = 0  # how often a missed limit is measured again, each time by new workers
    budget: Budget | None = None


class Leader:
    """Holds the rows of the run. `note` shows one line to people."""

    def __init__(
        self,
        supervisor: Supervisor,
        profile: Profile,
        job: Job,
        waivers: Mapping[str, str],
        note: Callable[[str], None],
        options: LeaderOptions,
    ) -> None:
        self.rows: list[Row] = []
        self.job = job
        self.too_small: dict[str, str] = {}  # subjects whose validations all need more ranks than there are -> reason
        self._supervisor = supervisor
        self._profile = profile
        self._waivers = waivers
        self._note = note
        self._measure_only = options.measure_only
        self._confirm = options.confirm
        self._budget = options.budget
        self._generation = 0
        self._sequence = 0
        self._env: Mapping[str, str] = {}
        self._usable = False  # the workers of this generation are up and nobody poisoned them
        self._single_use = False  # the generation was made for one validation
        self._failed_formations = 0
        self._formations: list[Attempt] = []
        self._poisoned_by: Counter[int] = Counter()
        self._last_line = 0.0
        supervisor.on_tick = self._tick

    def run(self, validation: Validation, next_nodeid: str | None) -> Row:
        """Runs one validation on all ranks and announces its verdict to all. Collective: the others follow."""
        row = self._row(validation, next_nodeid)
        self.rows.append(row)
        self._supervisor.ended = self._supervisor.ended or self._why_end()
        self._supervisor.control.cast(
            {
                "type": "verdict",
                "nodeid": row.nodeid,
                "outcome": row.outcome,
                "message": clip(row.message, _CAST_TEXT),
                "duration_s": row.duration_s,
                "ended": self._supervisor.ended,
            }
        )
        self._supervisor.follow()
        return row

    def not_run(self, validation: Validation, reason: str) -> Row:
        """A row for what did not run; local, because every rank knows why."""
        row = bare_row(validation.nodeid, Outcome.NOT_RUN, reason, validation.deadline_s)
        self.rows.append(row)
        return row

    def finished_rows(self) -> list[Row]:
        """All rows; row 0 holds every formation of the run, the later ones too, and the worst of them counts."""
        if not self._formations:
            return self.rows
        first = self._judged(Validation(FORMATION, self._profile.deadline_s), self._formations)
        return [first, *[row for row in self.rows if row.nodeid != FORMATION]]

    def _row(self, validation: Validation, next_nodeid: str | None) -> Row:
        if self._supervisor.stopping:
            return bare_row(validation.nodeid, Outcome.NOT_RUN, f"interrupted by {self._supervisor.stopping}", validation.deadline_s)
        if validation.nodeid == FORMATION:
            self._form(validation.env)
            return self._judged(validation, self._formations[-1:])
        reason = too_small(validation.min_ranks, self.job.world_size)
        if reason:
            self.too_small[subject_of(validation.nodeid)] = reason
            return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, reason, validation.deadline_s)
        obstacle = self._out_of_time(validation) or self._make_ready(validation)
        if obstacle:
            return bare_row(validation.nodeid, Outcome.NOT_RUN, obstacle, validation.deadline_s)
        return self._judged(validation, self._attempts(validation, next_nodeid))

    def _out_of_time(self, validation: Validation) -> str | None:
        if self._budget is None:
            return None
        expected_s = self._profile.expected_s.get(subject_of(validation.nodeid))
        return self._budget.refuses(validation.deadline_s if expected_s is None else expected_s)

    def _attempts(self, validation: Validation, next_nodeid: str | None) -> list[Attempt]:
        attempts: list[Attempt] = []
        while True:
            go = self._go(validation, "run", attempt=len(attempts) + 1, next=next_nodeid)
            records = self._collect(go)
            attempts.append(Attempt(number=len(attempts) + 1, ranks=records))
            reason = self._why_repeat(validation, attempts)
            if reason is None:
                return attempts
            self._note(f"{validation.nodeid}: {reason}")

    def _why_repeat(self, validation: Validation, attempts: list[Attempt]) -> str | None:
        """Why this validation runs again, or None; a confirmation needs workers that know nothing of the first attempt."""
        if not self._usable or any(record.outcome is not Outcome.PASSED for record in attempts[-1].ranks):
            return None
        row = self._judged(validation, attempts)
        reason = wants_repeat(row.judgements, len(attempts))
        if reason is not None:
            return f"repeated once: {reason}"
        if row.outcome is not Outcome.FAILED or len(attempts) > self._confirm or self._supervisor.stopping:
            return None
        formed = self._form(validation.env, group=self._failed_formations < _MOST_FAILED_FORMATIONS)
        return f"missed a limit, measured again by new workers (--confirm={self._confirm})" if formed else None

    def _make_ready(self, validation: Validation) -> str | None:
        """A usable generation for this validation; else why there is none."""
        wrong = validation.fresh or self._single_use or dict(validation.env) != dict(self._env)
        while (not self._usable or wrong) and self._failed_formations < _MOST_FAILED_FORMATIONS:
            if self._form(validation.env):
                wrong = False
            if self._supervisor.stopping:
                return f"interrupted by {self._supervisor.stopping}"
            if self._too_often():
                return f"no workers: they could not be started (see {FORMATION})"
        if self._failed_formations >= _MOST_FAILED_FORMATIONS:
            if validation.needs_group:
                return f"no process group: {_MOST_FAILED_FORMATIONS} formations in a row failed (see {FORMATION})"
            if (not self._usable or wrong) and not self._form(validation.env, group=False):
                return f"no workers: they could not be started (see {FORMATION})"
        self._single_use = validation.fresh or bool(validation.env)
        return None

    def _form(self, env: Mapping[str, str], *, group: bool = True) -> bool:
        poisoned = not self._usable
        self._generation += 1
        self._env, self._single_use = env, False
        formation = Validation(FORMATION, self._profile.deadline_s, env=env)
        go = self._go(formation, "form", attempt=len(self._formations) + 1, group=group, poisoned=poisoned)
        records = self._collect(go)
        self._formations.append(Attempt(number=len(self._formations) + 1, ranks=records))
        self._usable = all(record.outcome is Outcome.PASSED for record in records)
        if group:
            self._failed_formations = 0 if self._usable else self._failed_formations + 1
        return self._usable

    def _go(self, validation: Validation, kind: str, **more: object) -> dict[str, object]:
        self._sequence += 1
        return {
            "type": "go",
            "seq": self._sequence,
            "kind": kind,
            "nodeid": validation.nodeid,
            "generation": self._generation,
            "deadline_s": validation.deadline_s,
            "env": dict(validation.env),
            **more,
        }

    def _collect(self, go: dict[str, object]) -> tuple[RankRecord, ...]:
        board = self._supervisor.lead_attempt(go)
        self._learn(board.facts)
        records = board.records()
        culprits = [record.rank for record in records if is_poison(record) and record.outcome is not Outcome.VICTIM]
        if go["kind"] == "form":
            culprits = [record.rank for record in records if record.outcome is not Outcome.PASSED]
        if culprits:
            self._usable = False
            self._poisoned_by.update(culprits)
        return records

    def _learn(self, facts: dict[int, dict[str, str]]) -> None:
        """Puts what workers found when they opened their devices into the identities of the run."""
        self.job = Job(tuple(identity.with_facts(facts.get(identity.rank, {})) for identity in self.job.ranks))

    def _judged(self, validation: Validation, attempts: list[Attempt]) -> Row:
        return make_row(
            validation.nodeid,
            tuple(attempts),
            self._profile,
            self.job,
            self._waivers,
            validation.deadline_s,
            measure_only=self._measure_only,
        )

    def _why_end(self) -> str | None:
        """Why no further validation can run."""
        if self._supervisor.stopping:
            return f"interrupted by {self._supervisor.stopping}"
        if self.rows[-1].attempts:
            lost = [record.rank for record in self.rows[-1].attempts[-1].ranks if record.outcome is Outcome.LOST]
            if lost:
                return f"{named('rank', lost)} lost: no answer from the supervisor"
        return self._too_often()

    def _too_often(self) -> str | None:
        often = [rank for rank, times in sorted(self._poisoned_by.items()) if times >= _MOST_POISONED]
        return f"{self.job.who(often)} poisoned {_MOST_POISONED} generations of workers" if often else None

    def _tick(self) -> None:
        if self._budget and self._budget.is_spent and not self._supervisor.stopping:
            self._supervisor.control.cast({"type": "stop", "reason": self._budget.text})
        self._live_line()

    def _live_line(self) -> None:
        """One line on a long validation: which, elapsed, deadline, who is awaited."""
        board, now = self._supervisor.board, time.monotonic()
        if board is None or board.elapsed_s < _LIVE_LINE_S or now - self._last_line < _LIVE_LINE_S:
            return
        self._last_line = now
        self._note(live_line(board, self.job))


def live_line(board: Board, job: Job) -> str:
    """`acceptance/test_hbm.py::test_copy: 20 s of 300 s, 7 of 8 ranks done, awaiting rank 3 (node-01, GPU 3)`."""
    awaited = board.awaited
    done = job.world_size - len(awaited)
    elapsed = f"{board.elapsed_s:.0f} s of {board.go['deadline_s']:g} s"
    return f"{board.go['nodeid']}: {elapsed}, {done} of {job.world_size} ranks done, awaiting {job.who(awaited)}"
