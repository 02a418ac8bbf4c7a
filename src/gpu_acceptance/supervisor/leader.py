"""Rank 0's part: it announces what runs on which workers, judges, and tells every rank the same verdict."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from pydantic import Field

from gpu_acceptance.base.budget import Budget
from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.base.text import clip, named
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.messages import AwaitFree, Freed, Go, Kind, Stop, Verdict
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import WORKER_END, Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import Drill, PlannedValidation
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.thresholds.levels import TRANSPORT, phase_of
from gpu_acceptance.thresholds.limit import COUNTERS, Profile, subject_of, subject_of_metric
from gpu_acceptance.verdict import busy
from gpu_acceptance.verdict.attempts import all_passed, bare_row, spoilers
from gpu_acceptance.verdict.judge import wants_repeat
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import declared_reason, make_row, row_without_run

_END_S = 15.0  # for a healthy worker to tear down what is still up and to leave
_MOST_FAILED_FORMATIONS = 2  # in a row; then validations that need a group are not run
MOST_SPOILED = 3  # generations of workers: by one subject, which then ends; by one rank that cannot form or end them: all ends
_LIVE_LINE_S = 10.0
_PATIENCE, _LEAST_PATIENCE_S = 5, 60.0  # times the usual seconds of a validation, once one was stuck; a first call may compile
_PACE_KNOWN_S = 30.0  # of finished validations, by the profile; before that their pace predicts little
_MINUTES_FROM_S = 90.0
_FREE_S, _STILL_BUSY_S = 60.0, 1.0  # for a foreign process to go; for one that did not go before
_ANSWER_S = 5.0  # beyond that, for the ranks to tell
_CAST_TEXT = 8_000  # an announced verdict stays below 16 kB; the whole text is in the record


class Validation(PlannedValidation):
    """One item of the run, with the requests of its markers. The deadline includes `lasts_s`."""

    needs_group: bool = True
    fresh: bool = False
    env: Mapping[str, str] = Field(default_factory=dict)
    drills: tuple[Drill, ...] = ()
    lasts_s: float = 0.0  # that it was asked to take, in addition to the time of its subject

    def expected_s(self, profile: Profile, ranks_per_node: int, num_nodes: int) -> float | None:
        """Return its seconds in a job of this shape: 0 where the job is too small for it, None where the profile does not say."""
        there = ranks_per_node * num_nodes, ranks_per_node, num_nodes
        if any(number < least for number, least in zip(there, (self.min_ranks, self.min_ranks_per_node, self.min_nodes), strict=True)):
            return 0.0
        seconds = profile.expected_s.get(subject_of(self.nodeid))
        return None if seconds is None else seconds + self.lasts_s

    @property
    def is_between_gpus(self) -> bool:
        """True where it moves bytes between GPUs."""
        return self.needs_group or self.min_ranks > 1 or self.min_ranks_per_node > 1


@dataclass
class Leader:
    """Holds the rows of the run, and the workers of all ranks, one generation at a time."""

    supervisor: Supervisor
    profile: Profile
    job: Job
    waivers: Mapping[str, str]
    note: Callable[[str], None]  # shows a line to people
    order: Mapping[str, Validation]
    measure_only: bool = False
    confirm: int = 0  # how often a missed limit is measured again, each time by new workers
    budget: Budget | None = None

    def __post_init__(self) -> None:
        self.rows: list[Row] = []
        self._formations: list[Attempt] = []
        self._endings: list[Attempt] = []
        self._usable = False  # the workers are up and no rank spoiled them
        self._generation = 0
        self._sequence = 0
        self._env: dict[str, str] = {}  # of the workers
        self._single_use = False  # they are made for one validation
        self._previous: str | None = None  # the validation that they ran last
        self._failed: Counter[frozenset[tuple[str, str]]] = Counter()  # formations in a row, by the variables of their workers
        self._absent: list[int] = []  # ranks that go on without a worker; known once workers came up without a group
        self._spoiled: Counter[str] = Counter()  # generations, by the subject that spoiled them
        self._spoiled_by: Counter[int] = Counter()  # by the rank, while workers formed or ended
        self._out_of_time = ""  # why nothing more is begun
        self._patience_s = _FREE_S  # with foreign processes on the GPUs
        self._brief = ""  # why rates between GPUs need no more than a few operations
        self._phase = ""  # the one that was begun last, where there is a budget
        self._last_line = 0.0
        self._began = time.monotonic()
        self.supervisor.on_tick = self._tick

    def run(self, validation: Validation) -> Row:
        """Run one validation on all ranks and announce its verdict. Collective: the others follow."""
        supervisor, validation = self.supervisor, self._with_patience(validation)
        try:
            row = self._row(validation)
        except ControlError as error:
            self.rows.append(bare_row(validation.nodeid, Outcome.INTERRUPTED, f"interrupted: {error}", validation.deadline_s))
            raise
        self.rows.append(row)
        supervisor.ended = supervisor.ended or self._why_end()
        text = clip(row.message, _CAST_TEXT)
        supervisor.control.broadcast(
            Verdict(nodeid=row.nodeid, outcome=row.outcome, message=text, duration_s=row.duration_s, ended=supervisor.ended)
        )
        supervisor.follow()
        return row

    def _with_patience(self, validation: Validation) -> Validation:
        """Return it with its deadline in this run: once a rank was stuck, a few times its usual seconds. A hung cluster is told sooner."""
        expected_s = self._expected_s(validation)
        if expected_s is None or not any(row.outcome is Outcome.STUCK for row in self.rows):
            return validation
        patience_s = max(_LEAST_PATIENCE_S, _PATIENCE * expected_s)
        return validation.model_copy(update={"deadline_s": min(validation.deadline_s, patience_s)})

    def not_run(self, validation: Validation, reason: str) -> Row:
        """Add a row for a validation that did not run. Not collective, because every rank knows why."""
        self.rows.append(bare_row(validation.nodeid, Outcome.NOT_RUN, reason, validation.deadline_s))
        return self.rows[-1]

    def end_workers(self) -> None:
        """End healthy workers on all ranks, and keep how that went. Collective: the others follow."""
        if self._usable and not self.supervisor.stopping:
            number = len(self._endings) + 1
            records = self._attempt(Validation(nodeid=WORKER_END, deadline_s=_END_S), "end", number)
            self._spoiled_by.update(spoilers(records, "end"))
            self._endings.append(Attempt(number=number, ranks=records))
        self._usable = False

    @property
    def has_doubtful_rows(self) -> bool:
        """True where a rank was stuck, which also happens where a stranger took an awaited message away."""
        return any(row.outcome is Outcome.STUCK for row in self.finished_rows())

    def finished_rows(self, unreached: Iterable[Row] = ()) -> list[Row]:
        """Return all rows. Row 0 holds all formations of the run, and the worst of them counts. A bad end is a row."""
        rows = [*(row for row in self.rows if row.nodeid != FORMATION), *unreached]
        if self._formations:
            rows.insert(0, self._judged(Validation(nodeid=FORMATION, deadline_s=self.profile.deadline_s), self._formations))
        if self._endings:
            ending = self._judged(Validation(nodeid=WORKER_END, deadline_s=self.profile.deadline_s), self._endings)
            rows += [ending] if ending.outcome not in {Outcome.PASSED, Outcome.NOT_APPLICABLE} else []
        return rows

    def _row(self, validation: Validation) -> Row:
        if self._interrupted:
            return bare_row(validation.nodeid, Outcome.NOT_RUN, self._interrupted, validation.deadline_s)
        if validation.nodeid == FORMATION:
            self._form(validation)
            return self._judged(validation, self._formations[-1:])
        if row := row_without_run(validation, self.job, self.profile.not_applicable):
            return row
        if obstacle := self._left_out(validation) or self._make_ready(validation):
            return bare_row(validation.nodeid, Outcome.NOT_RUN, obstacle, validation.deadline_s)
        attempts: list[Attempt] = []
        reason: str | None = ""
        while reason is not None:
            number, following = len(attempts) + 1, self._next_of_these_workers(validation)
            brief = self._brief if validation.is_between_gpus else ""
            records = self._attempt(validation, "run", number, next=following, previous=self._previous, brief=brief)
            self._usable, self._previous = not spoilers(records, "run"), validation.nodeid
            self._spoiled[subject_of(validation.nodeid)] += not self._usable
            attempts.append(Attempt(number=number, ranks=records))
            if (reason := self._why_repeat(validation, attempts)) is not None:
                self.note(f"{validation.nodeid}: {reason}")
        row = self._judged(validation, attempts)
        if not (self._brief or validation.plant) and phase_of(self.profile, validation.nodeid) == TRANSPORT:
            own = (one for one in row.judgements if subject_of_metric(one.metric) != COUNTERS)
            missed = next((one for one in own if one.status is Status.MISSED), None)
            self._brief = f"{missed.metric} missed its limit" if missed else ""
        return row

    @property
    def _interrupted(self) -> str:
        return f"interrupted by {self.supervisor.stopping}" if self.supervisor.stopping else ""

    def _left_out(self, validation: Validation) -> str | None:
        """Return why this validation is not begun, whatever the workers are like; or None."""
        subject = subject_of(validation.nodeid)
        if self._spoiled[subject] >= MOST_SPOILED:
            return f"subject {subject} spoiled {MOST_SPOILED} generations of workers: the rest of it is left out"
        if self.budget and not self._out_of_time and (refused := self._refused(self.budget, validation)):
            if not (phase := phase_of(self.profile, validation.nodeid)):
                return refused  # of a site's own, a shorter one may still fit
            self._out_of_time = f"{refused}; phase {phase} and what follows are left out"
        return self._out_of_time or None

    def _refused(self, budget: Budget, validation: Validation) -> str | None:
        """Return why the budget does not allow this validation, or all of its phase where it is the first; or None."""
        phase = phase_of(self.profile, validation.nodeid)
        if not phase or phase == self._phase:
            return budget.refuses(self._needed_s(validation))
        self._phase = phase
        whole = [one for one in self.order.values() if phase_of(self.profile, one.nodeid) == phase and self._runs_here(one)]
        return budget.refuses(sum(map(self._needed_s, whole)), f"phase {phase}")

    def _needed_s(self, validation: Validation) -> float:
        expected_s = self._expected_s(validation)
        return validation.deadline_s if expected_s is None else expected_s

    def _next_of_these_workers(self, validation: Validation) -> str | None:
        """Return the next validation, where these workers will run it if they stay healthy: fixtures that it needs stay up until then."""
        nodeids = list(self.order)
        later = [self.order[nodeid] for nodeid in nodeids[nodeids.index(validation.nodeid) + 1 :]]
        following = next(filter(self._runs_here, later), None)
        stays = following and not (self._single_use or following.fresh) and self._env_of(following) == self._env
        return following.nodeid if following and stays else None

    def _why_repeat(self, validation: Validation, attempts: list[Attempt]) -> str | None:
        """Return why this validation runs again, or None. A confirmation gets new workers."""
        whole = busy.undisturbed(attempts, self.waivers)
        if attempts[-1] not in whole:
            is_first = len(attempts) - len(whole) == 1
            return self._why_repeat_disturbed(validation, attempts[-1].ranks) if is_first else None
        is_brief = any(record.brief for record in attempts[-1].ranks)
        if is_brief or not self._usable or not all_passed(attempts[-1].ranks):
            return None
        row = self._judged(validation, attempts)
        reason = wants_repeat(row.judgements, len(whole))
        if reason is not None:
            return f"repeated once: {reason}"
        if row.outcome is not Outcome.FAILED or len(whole) > self.confirm or self.supervisor.stopping:
            return None
        formed = self._form(validation)
        self._single_use = validation.fresh
        return f"missed a limit, measured again by new workers (--confirm={self.confirm})" if formed else None

    def _why_repeat_disturbed(self, validation: Validation, records: Iterable[RankRecord]) -> str | None:
        """Return why a disturbed validation runs again, once no foreign process is there; None where one stays, or nobody can tell."""
        is_over = bool(self._interrupted) or any(record.outcome is Outcome.LOST for record in records)
        is_late = self.budget is not None and self.budget.refuses(self._needed_s(validation)) is not None
        why = busy.why_disturbed(records)
        if is_over or is_late or not self._gets_free(f"{validation.nodeid}: {why}") or self._make_ready(validation):
            return None
        return f"repeated once: {why}"

    def _gets_free(self, why: str) -> bool:
        """Wait until no foreign process uses a GPU of this job. Collective: the others answer. One that stayed is not awaited again."""
        self.note(f"{why}; waiting up to {self._patience_s:g} s until no other is there")
        mail = self.supervisor.mail(Freed)
        mail.clear()
        self.supervisor.control.broadcast(AwaitFree(seq=self._sequence, within_s=self._patience_s))
        self.supervisor.await_mail(Freed, self._patience_s + _ANSWER_S, until_stopped=True)
        free = {rank for rank, answer in mail.items() if answer.is_free and answer.seq == self._sequence}
        is_free = len(free) == self.job.world_size and not self._interrupted
        self._patience_s = _FREE_S if is_free else _STILL_BUSY_S
        return is_free

    def _judged(self, validation: Validation, attempts: list[Attempt]) -> Row:
        shown = validation.nodeid, tuple(attempts), self.profile, self.job, self.waivers, validation.deadline_s
        with gc_paused():
            return make_row(*shown, measure_only=self.measure_only)

    # --- the workers of all ranks ------------------------------------------------------------------------------------------------

    def _make_ready(self, validation: Validation) -> str | None:
        """Form usable workers for this validation; returns why that failed, or None."""
        env = self._env_of(validation)
        while not self._suits(validation) and not self._lacks_group(env):
            self._form(validation)
            if self._interrupted:
                return self._interrupted
            if self._spoiled_too_often:
                return f"no workers: they could not be started (see {FORMATION})"
        if self._lacks_group(env):
            if validation.needs_group:
                return f"no process group: {_MOST_FAILED_FORMATIONS} formations in a row failed (see {FORMATION})"
            if not self._suits(validation) and not self._form(validation):
                return f"no workers: they could not be started (see {FORMATION})"
        self._single_use = validation.fresh
        return None

    def _lacks_group(self, env: Mapping[str, str]) -> bool:
        """Return True where workers with these variables form no group, or those without any."""
        return max(self._failed[frozenset()], self._failed[frozenset(env.items())]) >= _MOST_FAILED_FORMATIONS

    def _suits(self, validation: Validation) -> bool:
        """Return True where these workers can run it as they are."""
        untouched = self._previous is None or not (validation.fresh or self._single_use)
        return self._usable and untouched and self._env_of(validation) == self._env

    def _env_of(self, validation: Validation) -> dict[str, str]:
        """Return the variables of the workers that run it: none where it is declared away, so that it costs no workers of its own."""
        return {} if declared_reason(validation.nodeid, self.profile.not_applicable) is not None else dict(validation.env)

    def _needs_of_workers_for(self, validation: Validation) -> tuple[str, ...]:
        """Return the libraries that workers import which are made for this validation, and for those after it that share them."""
        env, nodeids = self._env_of(validation), list(self.order)
        later = filter(self._runs_here, (self.order[nodeid] for nodeid in nodeids[nodeids.index(validation.nodeid) :]))
        shared = takewhile(lambda one: self._env_of(one) == env and (one is validation or not one.fresh), later)
        return tuple(dict.fromkeys(need for one in shared for need in one.needs))

    def _form(self, validation: Validation) -> bool:
        """Form new workers for this validation on all ranks, with a group as long as groups could be formed. True where they are usable.

        Without a group no rank needs another: a rank without a worker is left out from then on, and the others go on.
        """
        self.end_workers()
        self._generation += 1
        self._env, self._single_use, self._previous = self._env_of(validation), False, None
        group = not self._lacks_group(self._env)
        number, key = len(self._formations) + 1, frozenset(self._env.items())
        self._absent = [] if group else self._absent
        formation = Validation(nodeid=FORMATION, deadline_s=self.profile.deadline_s)
        records = self._attempt(formation, "form", number, group=group, env=self._env, needs=self._needs_of_workers_for(validation))
        self.supervisor.control.forget(self._generation - 1)  # its workers are gone on all ranks
        self._formations.append(Attempt(number=number, ranks=records))
        without = [record.rank for record in records if record.outcome is not Outcome.PASSED]
        self._usable = not without if group else len(without) < len(records)
        if group:
            self._failed[key] = 0 if self._usable else self._failed[key] + 1
        else:
            self._absent = without if self._usable else []
        if not self._usable and not self._env:
            self._spoiled_by.update(spoilers(records, "form"))
        return self._usable

    @property
    def _spoiled_too_often(self) -> list[int]:
        """Ranks that did not form or end their workers so often that the run ends."""
        return [rank for rank, times in sorted(self._spoiled_by.items()) if times >= MOST_SPOILED]

    def _attempt(self, validation: Validation, kind: Kind, attempt: int, **more: object) -> tuple[RankRecord, ...]:
        """Let all ranks make an attempt. Facts that workers found when they opened their devices become part of the job."""
        self._sequence += 1
        go = Go(
            seq=self._sequence,
            kind=kind,
            nodeid=validation.nodeid,
            deadline_s=validation.deadline_s,
            lasts_s=validation.lasts_s,
            is_hurried=validation.nodeid in self.order and validation.deadline_s < self.order[validation.nodeid].deadline_s,
            generation=self._generation,
            attempt=attempt,
            absent=tuple(self._absent),
            plant=validation.plant,
        )
        self._usable = False  # where this raises, the workers are left in the middle of something
        state = self.supervisor.lead_attempt(go.model_copy(update=more))
        self.job = Job(tuple(identity.with_facts(state.facts.get(identity.rank, {})) for identity in self.job.ranks))
        return state.records()

    def _why_end(self) -> str | None:
        """Return why no further validation can run, or None."""
        if self._interrupted:
            return self._interrupted
        if self.rows[-1].attempts:
            lost = [record.rank for record in self.rows[-1].attempts[-1].ranks if record.outcome is Outcome.LOST]
            if lost:
                return f"{named('rank', lost)} lost: no answer from the supervisor"
        often = self._spoiled_too_often
        return f"{self.job.who(often)} could not form or end {MOST_SPOILED} generations of workers" if often else None

    # --- lines for people --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.budget and self.budget.is_spent and not self.supervisor.stopping:
            self.supervisor.control.broadcast(Stop(reason=self.budget.text))
        self._live_line()

    def _live_line(self) -> None:
        """Show `acceptance/test_hbm.py::test_copy: 20 s of 300 s, 7 of 8 ranks done, awaiting rank 3 (node-01, GPU 3)`."""
        state, now = self.supervisor.attempt_state, time.monotonic()
        if state is None or state.elapsed_s < _LIVE_LINE_S or now - self._last_line < _LIVE_LINE_S:
            return
        self._last_line = now
        awaited, world_size, left = state.awaited, self.job.world_size, self.time_left
        elapsed = f"{state.elapsed_s:.0f} s of {state.go.deadline_s:g} s, {world_size - len(awaited)} of {world_size} ranks done"
        rest = f"; {left} for the whole run" if left else ""
        self.note(f"{state.go.nodeid}: {elapsed}, awaiting {self.job.who(awaited)}{rest}")

    @property
    def expected_s(self) -> float:
        """Seconds that the validations of this run take, as far as the profile knows them."""
        return sum(self._expected_s(one) or 0.0 for one in self.order.values() if self._runs_here(one))

    @property
    def time_left(self) -> str:
        """`about 4 min left`, by the profile and the speed of the run so far; empty where it is not known, or nothing is left."""
        seen = {row.nodeid for row in self.rows}
        to_come_s = sum(self._expected_s(one) or 0.0 for nodeid, one in self.order.items() if nodeid not in seen and self._runs_here(one))
        done_s, elapsed_s = self.expected_s - to_come_s, time.monotonic() - self._began
        pace = elapsed_s / done_s if done_s > _PACE_KNOWN_S else 1.0
        left_s = to_come_s * pace
        return f"about {left_s / 60:.0f} min left" if left_s >= _MINUTES_FROM_S else f"about {left_s:.0f} s left" if left_s >= 1 else ""

    def _runs_here(self, validation: Validation) -> bool:
        return row_without_run(validation, self.job, self.profile.not_applicable) is None

    def _expected_s(self, validation: Validation) -> float | None:
        return validation.expected_s(self.profile, self.job.gpus_per_node, self.job.num_nodes)
