"""Generations of workers, as rank 0 leads them: need of a new one, formation, the ranks that spoiled it, and its end."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from pydantic import Field

from gpu_acceptance.control.messages import Go, Kind
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import WORKER_END, Attempt, RankRecord
from gpu_acceptance.record.run_record import PlannedValidation
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.thresholds.limit import Profile, subject_of
from gpu_acceptance.verdict.attempts import is_poison
from gpu_acceptance.verdict.reasons import FORMATION

_END_S = 15.0  # for a healthy worker to tear down what is still up and to leave
_MOST_FAILED_FORMATIONS = 2  # in a row; then validations that need a group are not run
MOST_SPOILED = 3  # generations by one rank


class Validation(PlannedValidation):
    """One item of the run, with the requests of its markers. The deadline includes `lasts_s`."""

    needs_group: bool = True
    fresh: bool = False
    env: Mapping[str, str] = Field(default_factory=dict)
    lasts_s: float = 0.0  # that it was asked to take, in addition to the time of its subject

    def expected_s(self, profile: Profile, ranks_per_node: int, num_nodes: int) -> float | None:
        """Return its seconds in a job of this shape: 0 where the job is too small for it, None where the profile does not say."""
        there = ranks_per_node * num_nodes, ranks_per_node, num_nodes
        if any(number < least for number, least in zip(there, (self.min_ranks, self.min_ranks_per_node, self.min_nodes), strict=True)):
            return 0.0
        seconds = profile.expected_s.get(subject_of(self.nodeid))
        return None if seconds is None else seconds + self.lasts_s

    @property
    def wants_own_worker(self) -> bool:
        return self.fresh or bool(self.env)


class Generations:
    """The workers of all ranks, one generation at a time. Its methods are collective: the other ranks follow.

    `learn` takes the facts that workers told of their devices, by rank.
    """

    def __init__(self, supervisor: Supervisor, deadline_s: float, learn: Callable[[dict[int, dict[str, str]]], None]) -> None:
        self.formations: list[Attempt] = []
        self.endings: list[Attempt] = []
        self.usable = False  # the workers are up and no rank spoiled them
        self._supervisor = supervisor
        self._formation = Validation(nodeid=FORMATION, deadline_s=deadline_s)
        self._learn = learn
        self._number = 0
        self._sequence = 0
        self._env: Mapping[str, str] = {}
        self._single_use = False  # made for one validation
        self._previous: str | None = None  # the validation that it ran last
        self._failed_in_a_row = 0
        self._absent: list[int] = []  # ranks that go on without a worker; known once workers came up without a group
        self._spoiled_by: Counter[int] = Counter()

    def run(self, validation: Validation, attempt: int, following: str | None) -> tuple[RankRecord, ...]:
        """Run one attempt of a validation on all ranks."""
        records = self._attempt(validation, "run", attempt, next=following, previous=self._previous)
        spoilers = _spoilers(records, "run")
        self._spoiled_by.update(spoilers)
        self.usable = not spoilers
        self._previous = validation.nodeid
        return records

    def make_ready(self, validation: Validation) -> str | None:
        """Form usable workers for this validation; returns why that failed, or None."""
        while not self.suits(validation) and self._failed_in_a_row < _MOST_FAILED_FORMATIONS:
            self.form(validation.env)
            if self._supervisor.stopping:
                return f"interrupted by {self._supervisor.stopping}"
            if self.spoiled_too_often:
                return f"no workers: they could not be started (see {FORMATION})"
        if self._failed_in_a_row >= _MOST_FAILED_FORMATIONS:
            if validation.needs_group:
                return f"no process group: {_MOST_FAILED_FORMATIONS} formations in a row failed (see {FORMATION})"
            if not self.suits(validation) and not self.form(validation.env):
                return f"no workers: they could not be started (see {FORMATION})"
        self._single_use = validation.wants_own_worker
        return None

    def suits(self, validation: Validation) -> bool:
        """Return True where these workers can run it as they are."""
        untouched = self._previous is None or not (validation.fresh or self._single_use)
        return self.usable and untouched and dict(validation.env) == dict(self._env)

    def will_run(self, validation: Validation) -> bool:
        """Return True where these workers will also run this later one, as long as they stay healthy."""
        return not self._single_use and not validation.fresh and dict(validation.env) == dict(self._env)

    def renew(self, validation: Validation) -> bool:
        """Form new workers for another attempt of the same validation; returns True where they are usable."""
        formed = self.form(validation.env)
        self._single_use = validation.wants_own_worker
        return formed

    def form(self, env: Mapping[str, str]) -> bool:
        """Form new workers on all ranks, with a group as long as groups could be formed; returns True where they are usable.

        Without a group no rank needs another: a rank without a worker is left out from then on, and the others go on.
        """
        self.end()
        group = self._failed_in_a_row < _MOST_FAILED_FORMATIONS
        self._number += 1
        self._env, self._single_use, self._previous = env, False, None
        number = len(self.formations) + 1
        records = self._attempt(self._formation, "form", number, group=group, env=dict(env))
        self._supervisor.control.forget(self._number - 1)  # its workers are gone on all ranks
        self.formations.append(Attempt(number=number, ranks=records))
        without = [record.rank for record in records if record.outcome is not Outcome.PASSED]
        if group:
            self.usable = not without
            self._failed_in_a_row = 0 if self.usable else self._failed_in_a_row + 1
        else:
            self.usable = len(without) < len(records)
            self._absent = without if self.usable else []
        if not self.usable:
            self._spoiled_by.update(_spoilers(records, "form"))
        return self.usable

    def end(self) -> None:
        """End healthy workers, and keep how that went."""
        if self.usable and not self._supervisor.stopping:
            number = len(self.endings) + 1
            records = self._attempt(Validation(nodeid=WORKER_END, deadline_s=_END_S), "end", number)
            self._spoiled_by.update(_spoilers(records, "end"))
            self.endings.append(Attempt(number=number, ranks=records))
        self.usable = False

    @property
    def spoiled_too_often(self) -> list[int]:
        """Ranks that spoiled so many generations that the run ends."""
        return [rank for rank, times in sorted(self._spoiled_by.items()) if times >= MOST_SPOILED]

    def _attempt(self, validation: Validation, kind: Kind, attempt: int, **more: object) -> tuple[RankRecord, ...]:
        self._sequence += 1
        go = Go(
            seq=self._sequence,
            kind=kind,
            nodeid=validation.nodeid,
            deadline_s=validation.deadline_s,
            lasts_s=validation.lasts_s,
            generation=self._number,
            attempt=attempt,
            absent=tuple(self._absent),
        )
        self.usable = False  # where this raises, the workers are left in the middle of something
        state = self._supervisor.lead_attempt(go.model_copy(update=more))
        self._learn(state.facts)
        return state.records()


def _spoilers(records: Iterable[RankRecord], kind: str) -> list[int]:
    """Return the ranks because of which a generation cannot go on. A victim does not count."""
    if kind == "run":
        return [record.rank for record in records if is_poison(record) and record.outcome is not Outcome.VICTIM]
    harmless = {Outcome.PASSED, Outcome.VICTIM, Outcome.NOT_RUN}  # while workers form and end, each failed try spoils
    return [record.rank for record in records if record.outcome not in harmless]
