"""Rank 0's part: it announces what runs, judges, and tells every rank the same verdict."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpu_acceptance.base.budget import Budget
from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.base.text import clip, named
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.messages import Stop, Verdict
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import WORKER_END, Attempt, Row
from gpu_acceptance.supervisor.generations import MOST_SPOILED, Generations, Validation
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.verdict.attempts import all_passed, bare_row
from gpu_acceptance.verdict.judge import wants_repeat
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row, row_without_run

_LIVE_LINE_S = 10.0
_PACE_KNOWN_S = 30.0  # of finished validations, by the profile; before that their pace predicts little
_MINUTES_FROM_S = 90.0
_CAST_TEXT = 8_000  # an announced verdict stays below 16 kB; the whole text is in the record


@dataclass(frozen=True)
class LeaderOptions:
    measure_only: bool = False
    confirm: int = 0  # how often a missed limit is measured again, each time by new workers
    budget: Budget | None = None


class Leader:
    """Holds the rows of the run. `note` shows a line to people."""

    def __init__(
        self,
        supervisor: Supervisor,
        profile: Profile,
        job: Job,
        waivers: Mapping[str, str],
        note: Callable[[str], None],
        options: LeaderOptions,
        order: Mapping[str, Validation],
    ) -> None:
        self.rows: list[Row] = []
        self.job = job
        self._supervisor = supervisor
        self._profile = profile
        self._waivers = waivers
        self._note = note
        self._options = options
        self._order = order
        self._generations = Generations(supervisor, profile.deadline_s, self._learn)
        self._last_line = 0.0
        self._began = time.monotonic()
        supervisor.on_tick = self._tick

    def run(self, validation: Validation) -> Row:
        """Run one validation on all ranks and announce its verdict. Collective: the others follow."""
        try:
            row = self._row(validation)
        except ControlError as error:
            self.rows.append(bare_row(validation.nodeid, Outcome.INTERRUPTED, f"interrupted: {error}", validation.deadline_s))
            raise
        self.rows.append(row)
        self._supervisor.ended = self._supervisor.ended or self._why_end()
        self._supervisor.control.broadcast(
            Verdict(
                nodeid=row.nodeid,
                outcome=row.outcome,
                message=clip(row.message, _CAST_TEXT),
                duration_s=row.duration_s,
                ended=self._supervisor.ended,
            )
        )
        self._supervisor.follow()
        return row

    def not_run(self, validation: Validation, reason: str) -> Row:
        """Add a row for a validation that did not run. Not collective, because every rank knows why."""
        row = bare_row(validation.nodeid, Outcome.NOT_RUN, reason, validation.deadline_s)
        self.rows.append(row)
        return row

    def end_workers(self) -> None:
        """End healthy workers on all ranks, and keep how that went. Collective: the others follow."""
        self._generations.end()

    @property
    def has_doubtful_rows(self) -> bool:
        """True where a rank was stuck, which also happens where a stranger took an awaited message away."""
        return any(row.outcome is Outcome.STUCK for row in self.finished_rows())

    def finished_rows(self, unreached: Iterable[Row] = ()) -> list[Row]:
        """Return all rows. Row 0 holds all formations of the run, and the worst of them counts. A bad end is a row."""
        rows = [*(row for row in self.rows if row.nodeid != FORMATION), *unreached]
        formations, endings = self._generations.formations, self._generations.endings
        if formations:
            rows.insert(0, self._judged(Validation(nodeid=FORMATION, deadline_s=self._profile.deadline_s), formations))
        if endings:
            ending = self._judged(Validation(nodeid=WORKER_END, deadline_s=self._profile.deadline_s), endings)
            rows += [ending] if ending.outcome not in {Outcome.PASSED, Outcome.NOT_APPLICABLE} else []
        return rows

    def _row(self, validation: Validation) -> Row:
        if self._supervisor.stopping:
            return bare_row(validation.nodeid, Outcome.NOT_RUN, f"interrupted by {self._supervisor.stopping}", validation.deadline_s)
        if validation.nodeid == FORMATION:
            self._generations.form(validation.env)
            return self._judged(validation, self._generations.formations[-1:])
        if row := row_without_run(validation, self.job, self._profile.not_applicable):
            return row
        obstacle = self._out_of_time(validation) or self._generations.make_ready(validation)
        if obstacle:
            return bare_row(validation.nodeid, Outcome.NOT_RUN, obstacle, validation.deadline_s)
        return self._judged(validation, self._attempts(validation))

    def _out_of_time(self, validation: Validation) -> str | None:
        if self._options.budget is None:
            return None
        expected_s = self._expected_s(validation)
        return self._options.budget.refuses(validation.deadline_s if expected_s is None else expected_s)

    def _next_of_these_workers(self, validation: Validation) -> str | None:
        """Return the next validation of the same workers: fixtures that it needs stay up until then."""
        nodeids = list(self._order)
        later = [self._order[nodeid] for nodeid in nodeids[nodeids.index(validation.nodeid) + 1 :]]
        following = next(filter(self._runs_here, later), None)
        return following.nodeid if following and self._generations.will_run(following) else None

    def _attempts(self, validation: Validation) -> list[Attempt]:
        attempts: list[Attempt] = []
        while True:
            number = len(attempts) + 1
            records = self._generations.run(validation, number, self._next_of_these_workers(validation))
            attempts.append(Attempt(number=number, ranks=records))
            reason = self._why_repeat(validation, attempts)
            if reason is None:
                return attempts
            self._note(f"{validation.nodeid}: {reason}")

    def _why_repeat(self, validation: Validation, attempts: list[Attempt]) -> str | None:
        """Return why this validation runs again, or None. A confirmation gets new workers."""
        if not self._generations.usable or not all_passed(attempts[-1].ranks):
            return None
        row = self._judged(validation, attempts)
        reason = wants_repeat(row.judgements, len(attempts))
        if reason is not None:
            return f"repeated once: {reason}"
        confirm = self._options.confirm
        if row.outcome is not Outcome.FAILED or len(attempts) > confirm or self._supervisor.stopping:
            return None
        formed = self._generations.renew(validation)
        return f"missed a limit, measured again by new workers (--confirm={confirm})" if formed else None

    def _learn(self, facts: dict[int, dict[str, str]]) -> None:
        """Add facts that workers found when they opened their devices to the identities of the run."""
        self.job = Job(tuple(identity.with_facts(facts.get(identity.rank, {})) for identity in self.job.ranks))

    def _judged(self, validation: Validation, attempts: list[Attempt]) -> Row:
        with gc_paused():
            return make_row(
                validation.nodeid,
                tuple(attempts),
                self._profile,
                self.job,
                self._waivers,
                validation.deadline_s,
                measure_only=self._options.measure_only,
            )

    def _why_end(self) -> str | None:
        """Return why no further validation can run, or None."""
        if self._supervisor.stopping:
            return f"interrupted by {self._supervisor.stopping}"
        if self.rows[-1].attempts:
            lost = [record.rank for record in self.rows[-1].attempts[-1].ranks if record.outcome is Outcome.LOST]
            if lost:
                return f"{named('rank', lost)} lost: no answer from the supervisor"
        often = self._generations.spoiled_too_often
        return f"{self.job.who(often)} poisoned {MOST_SPOILED} generations of workers" if often else None

    def _tick(self) -> None:
        budget = self._options.budget
        if budget and budget.is_spent and not self._supervisor.stopping:
            self._supervisor.control.broadcast(Stop(reason=budget.text))
        self._live_line()

    def _live_line(self) -> None:
        """Show `acceptance/test_hbm.py::test_copy: 20 s of 300 s, 7 of 8 ranks done, awaiting rank 3 (node-01, GPU 3)`."""
        state, now = self._supervisor.attempt_state, time.monotonic()
        if state is None or state.elapsed_s < _LIVE_LINE_S or now - self._last_line < _LIVE_LINE_S:
            return
        self._last_line = now
        awaited, world_size, left = state.awaited, self.job.world_size, self.time_left
        elapsed = f"{state.elapsed_s:.0f} s of {state.go.deadline_s:g} s, {world_size - len(awaited)} of {world_size} ranks done"
        rest = f"; {left} for the whole run" if left else ""
        self._note(f"{state.go.nodeid}: {elapsed}, awaiting {self.job.who(awaited)}{rest}")

    @property
    def expected_s(self) -> float:
        """Seconds that the validations of this run take, as far as the profile knows them."""
        return sum(self._expected_s(one) or 0.0 for one in self._order.values() if self._runs_here(one))

    @property
    def time_left(self) -> str:
        """`about 4 min left`, by the profile and the speed of the run so far; empty where it is not known, or nothing is left."""
        seen = {row.nodeid for row in self.rows}
        to_come_s = sum(self._expected_s(one) or 0.0 for nodeid, one in self._order.items() if nodeid not in seen and self._runs_here(one))
        done_s, elapsed_s = self.expected_s - to_come_s, time.monotonic() - self._began
        pace = elapsed_s / done_s if done_s > _PACE_KNOWN_S else 1.0
        left_s = to_come_s * pace
        return f"about {left_s / 60:.0f} min left" if left_s >= _MINUTES_FROM_S else f"about {left_s:.0f} s left" if left_s >= 1 else ""

    def _runs_here(self, validation: Validation) -> bool:
        return row_without_run(validation, self.job, self._profile.not_applicable) is None

    def _expected_s(self, validation: Validation) -> float | None:
        return validation.expected_s(self._profile, self.job.gpus_per_node, self.job.num_nodes)
