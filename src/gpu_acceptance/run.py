"""One acceptance run on one rank, from the first hello to the last bye. The pytest hooks are in plugin.py."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from gpu_acceptance import __version__
from gpu_acceptance.control import Control, ControlError, Message
from gpu_acceptance.events import StopSignals
from gpu_acceptance.files import RESULTS, Journal, RecordError, encode, write_results
from gpu_acceptance.identity import read_identity
from gpu_acceptance.job import Job
from gpu_acceptance.joining import NOT_WRITABLE, RefusedError, agree, join
from gpu_acceptance.launch import Rank
from gpu_acceptance.leader import Leader, LeaderOptions, Validation
from gpu_acceptance.limit import Profile
from gpu_acceptance.objections import FORMATION
from gpu_acceptance.processes import become_subreaper
from gpu_acceptance.record import Outcome, PlannedValidation, RankIdentity, Row, RunPlan, RunRecord
from gpu_acceptance.refusals import find_mismatch, find_wrong_hardware
from gpu_acceptance.report import write_page
from gpu_acceptance.run_files import RunFiles, new_run_id
from gpu_acceptance.run_record import make_run_record
from gpu_acceptance.settings import Settings, choose_profile
from gpu_acceptance.standby import elect, rebuild_run, send_journal
from gpu_acceptance.supervisor import LeaderLostError, Supervisor
from gpu_acceptance.validations import read_validation
from gpu_acceptance.worker_hold import Suite, WorkerHold

BACKSTOP_S = 60.0  # the process group's own timeout lies this far behind the longest deadline: the supervisor's always fires first


Summarize = Callable[[RunRecord, Path], Iterable[str]]


@dataclass(frozen=True)
class Ending:
    """What every rank knows at the end: the exit code and the lines for people."""

    exit_code: int
    verdict: str
    lines: tuple[str, ...] = ()


@dataclass
class Run:
    """The state of the run on this rank. Rank 0 has a leader, which holds the rows; all have the plan."""

    settings: Settings
    place: Rank
    supervisor: Supervisor
    identity: RankIdentity
    files: RunFiles
    default_deadline_s: float
    profile: Profile | None  # rank 0, until the plan tells all
    obstacles: list[RefusedError]  # why this rank cannot take part
    leader: Leader | None = None  # rank 0, once the validations are agreed on
    job: Job | None = None
    validations: dict[str, Validation] = field(default_factory=dict)
    num_deselected: int = 0
    started_at: str = field(default_factory=lambda: _now())
    plan: RunPlan | None = None  # once agreed, the same on all ranks
    ending: Ending | None = None
    alive: list[int] | None = None  # after the leading rank was lost: who is left

    @property
    def is_leader(self) -> bool:
        return self.place.rank == 0

    def agree(self, items: Sequence[pytest.Item], rootdir: Path, ini: Path, problems: Sequence[RefusedError]) -> list[str]:
        """The validations in one order for all ranks. Collective. Raises RefusedError."""
        self.validations = {item.nodeid: read_validation(item, self.default_deadline_s) for item in items}
        longest_s = max((validation.deadline_s for validation in self.validations.values()), default=self.default_deadline_s)

        def answer() -> Message:
            return {"plan": encode(self._make_plan()), "group_timeout_s": longest_s + BACKSTOP_S}

        agreed = agree(self.supervisor, list(self.validations), [*self.obstacles, *problems], answer)
        self.plan = RunPlan.model_validate_json(agreed["plan"])
        assert self.supervisor.journal
        assert self.supervisor.hold
        self.supervisor.journal.append(self.plan)
        files = sorted({str(item.path) for item in items if item.nodeid != FORMATION})
        parameters = dict(self.plan.profile.parameters)
        self.supervisor.hold.collect_with(Suite(rootdir, ini, files, parameters, agreed["group_timeout_s"]))
        return [validation.nodeid for validation in self.plan.validations]

    def withdraw(self, problem: RefusedError) -> None:
        """Tells all ranks that one cannot go on before anything was agreed. Raises RefusedError."""
        agree(self.supervisor, [], [problem], dict)

    def lead_with(self, note: Callable[[str], None]) -> None:
        """Rank 0 becomes the leader once the validations are agreed on."""
        assert self.profile is not None
        assert self.job is not None
        settings = self.settings
        options = LeaderOptions(settings.measure_only, settings.confirm, settings.budget)
        self.leader = Leader(self.supervisor, self.profile, self.job, settings.waivers, note, options)

    def run(self, nodeid: str, next_nodeid: str | None) -> tuple[Outcome, str, float, Row | None]:
        """One validation on all ranks: outcome, message, duration; on rank 0 also the row. Collective."""
        if self.supervisor.ended:
            row = self.leader.not_run(self.validations[nodeid], self.supervisor.ended) if self.leader else None
            return Outcome.NOT_RUN, self.supervisor.ended, 0.0, row
        if self.leader:
            row = self.leader.run(self.validations[nodeid], next_nodeid)
            return row.outcome, row.message, row.duration_s, row
        try:
            verdict = self.supervisor.follow()
        except LeaderLostError as error:
            self.alive = elect(self.supervisor, str(error))
            return Outcome.INTERRUPTED, str(error), 0.0, None
        if verdict["nodeid"] != nodeid:
            raise ControlError(f"rank 0 judged {verdict['nodeid']} where this rank was at {nodeid}")
        return Outcome(verdict["outcome"]), verdict["message"], verdict["duration_s"], None

    def finish(self, internal_error: str | None, summarize: Summarize) -> Ending:
        """Ends the workers; the leader judges the run, writes its record and tells all how it ended. Collective."""
        self.supervisor.quit_worker()
        if self.leader:
            self._tell(self._end_as_leader(internal_error, summarize))
        try:
            self._follow_to_the_end(summarize)
        except LeaderLostError as error:
            self.alive = elect(self.supervisor, str(error))
            self._follow_to_the_end(summarize)
        assert self.ending
        return self.ending

    def _follow_to_the_end(self, summarize: Summarize) -> None:
        if self.alive:
            send_journal(self.supervisor)
            if self.supervisor.is_leader:
                self._tell(self._end_as_standby(self.alive, summarize))
        final = self.supervisor.await_cast("final", silence_s=60 if self.alive is None else 20)
        self.ending = Ending(int(final["exit_code"]), final["verdict"], tuple(final["lines"]))

    def _tell(self, ending: Ending) -> None:
        final = {"exit_code": ending.exit_code, "verdict": ending.verdict, "lines": list(ending.lines)}
        self.supervisor.control.cast({"type": "final", **final})

    def _end_as_standby(self, alive: list[int], summarize: Summarize) -> Ending:
        """Writes what the lost leader can no longer write; where it did so at the last moment, that counts."""
        why = self.supervisor.ended or "the leading rank was lost"
        try:
            record = rebuild_run(self.supervisor, self.files, alive, why)
            return self._write(record, summarize)
        except Exception as error:
            return _broken(error)

    def _end_as_leader(self, internal_error: str | None, summarize: Summarize) -> Ending:
        """Judges and writes. Whatever breaks here is told to all ranks: no verdict is better than none said."""
        try:
            self._add_unreached()
            return self._write(self._conclude(internal_error), summarize)
        except Exception as error:
            return _broken(error)

    def _add_unreached(self) -> None:
        """Validations that pytest never came to (-x, --maxfail) are rows too."""
        assert self.leader
        reached = {row.nodeid for row in self.leader.rows}
        reason = self.supervisor.ended or "the run stopped before it (-x or --maxfail)"
        for nodeid, validation in self.validations.items():
            if nodeid not in reached:
                self.leader.not_run(validation, reason)

    def _conclude(self, internal_error: str | None) -> RunRecord:
        assert self.leader
        assert self.plan
        stopped, budget = self.supervisor.stopping, self.settings.budget
        return make_run_record(
            self.plan,
            self.leader.job,
            self.leader.finished_rows(),
            ended_at=_now(),
            too_small=self.leader.too_small,
            interrupted=None if budget and stopped == budget.text else stopped,
            internal_error=internal_error,
        )

    def _make_plan(self) -> RunPlan:
        assert self.profile
        settings = self.settings
        return RunPlan(
            run_id=self.files.folder.name,
            started_at=self.started_at,
            command=tuple(_command(self.place)),
            profile=self.profile,
            waivers=dict(settings.waivers),
            declared_gpus=settings.declared_gpus,
            measure_only=settings.measure_only,
            num_deselected=self.num_deselected,
            validations=tuple(
                PlannedValidation(nodeid=one.nodeid, deadline_s=one.deadline_s, min_ranks=one.min_ranks)
                for one in self.validations.values()
            ),
            gpu_acceptance_version=__version__,
        )

    def _write(self, record: RunRecord, summarize: Summarize) -> Ending:
        """Writes results and report; where they cannot be written the terminal still says all, and the exit code says why."""
        lines = tuple(summarize(record, self.files.folder))
        try:
            if (self.files.folder / RESULTS).exists():
                raise OSError(f"{RESULTS} is there already: another rank finished this run")
            write_results(self.files.folder, record)
            write_page(self.files.folder)
        except OSError as error:
            return Ending(3, record.conclusion.line, (*lines, f"the report could not be written to {self.files.folder}: {error}"))
        return Ending(record.conclusion.exit_code, record.conclusion.line, lines)


def _broken(error: Exception) -> Ending:
    text = f"no verdict: internal error while the run was judged: {type(error).__name__}: {error}"
    return Ending(3, text, (text, *traceback.format_exception(error)))


def start_run(settings: Settings, place: Rank, refusal: str | None) -> Run:
    """Joins all ranks. Collective. Raises RefusedError with the same text on every rank, or ControlError."""
    stop = StopSignals()
    become_subreaper()
    control = Control(place)
    supervisor = Supervisor(place, control, stop)
    identity = read_identity(place)
    chosen: dict[str, Profile] = {}
    joined: list[RankIdentity] = []

    def welcome(identities: list[RankIdentity]) -> Message:
        joined.extend(identities)
        chosen["profile"] = profile = _profile_for(settings, identities)
        return {"run_id": _fresh_run_id(settings), "deadline_s": profile.deadline_s}

    answer = join(supervisor, identity, refusal, welcome)
    run_id = answer["run_id"]
    identity = identity.model_copy(update={"run_id": run_id})
    files = RunFiles(settings.report_dir / run_id, place.rank)
    supervisor.hold = WorkerHold(control, supervisor.events, files, identity)
    obstacles = _open_journal(supervisor, files, identity)
    job = Job(tuple(one.model_copy(update={"run_id": run_id}) for one in joined)) if joined else None
    return Run(settings, place, supervisor, identity, files, answer["deadline_s"], chosen.get("profile"), obstacles, job=job)


def _open_journal(supervisor: Supervisor, files: RunFiles, identity: RankIdentity) -> list[RefusedError]:
    """Opens this rank's journal; where that fails, says why this rank cannot take part, when the ranks next speak."""
    try:
        files.make_folders()
        files.refuse_full_disk()
        supervisor.journal = Journal(files.journal)
        supervisor.journal.append(identity)
    except (OSError, RecordError) as error:
        return [RefusedError(f"cannot write to {files.folder}: {error}", NOT_WRITABLE)]
    return []


def _profile_for(settings: Settings, identities: list[RankIdentity]) -> Profile:
    """The profile of rank 0's machine rules; a node that is not like it fails by name."""
    first = identities[0]
    mismatch = find_mismatch(identities, settings.declared_gpus)
    if mismatch:
        raise RefusedError(mismatch)
    profile = choose_profile(settings, first.gpu.name if first.gpu else None)
    wrong = find_wrong_hardware(profile.name, first, profile.device_name, named=settings.hardware is not None)
    if wrong:
        raise RefusedError(wrong)
    return profile


def _fresh_run_id(settings: Settings) -> str:
    """An id that no earlier run in this folder has, checked where the report is written."""
    run_id = settings.run_id or new_run_id()
    folder = settings.report_dir / run_id
    if folder.exists():
        raise RefusedError(f"--run-id={run_id}: {folder} exists; a run never overwrites another")
    _refuse_unwritable(settings.report_dir)
    return run_id


def _refuse_unwritable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"--report-dir={folder}: cannot be made: {error.strerror}; name a folder that can be written"
        raise RefusedError(text, NOT_WRITABLE) from None
    if not os.access(folder, os.W_OK):
        raise RefusedError(f"--report-dir={folder}: not writable; name a folder that is", NOT_WRITABLE)


def _command(place: Rank) -> list[str]:
    """How the run was started: torchrun's own command, or this process's in a world of one."""
    if place.store_port:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(os.getppid()).cmdline()
    return sys.orig_argv


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
