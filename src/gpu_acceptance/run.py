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
from gpu_acceptance.files import write_results
from gpu_acceptance.identity import read_identity
from gpu_acceptance.job import Job
from gpu_acceptance.launch import Rank
from gpu_acceptance.leader import Leader, Validation
from gpu_acceptance.limit import Profile
from gpu_acceptance.processes import become_subreaper
from gpu_acceptance.record import ChangeRecord, Conclusion, Header, Outcome, RankIdentity, Row, RunRecord
from gpu_acceptance.refusals import find_mismatch, find_wrong_hardware
from gpu_acceptance.report import write_page
from gpu_acceptance.run_files import RunFiles, new_run_id
from gpu_acceptance.settings import Settings, choose_profile
from gpu_acceptance.supervisor import RefusedError, Suite, Supervisor
from gpu_acceptance.validations import read_validation
from gpu_acceptance.values import plural
from gpu_acceptance.verdict import conclude

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
    """The state of the run on this rank. Rank 0 has a leader, which knows the profile and all rows."""

    settings: Settings
    place: Rank
    supervisor: Supervisor
    identity: RankIdentity
    files: RunFiles
    default_deadline_s: float
    profile: Profile | None  # rank 0
    leader: Leader | None = None  # rank 0, once the validations are agreed on
    job: Job | None = None
    validations: dict[str, Validation] = field(default_factory=dict)
    num_deselected: int = 0
    started_at: str = field(default_factory=lambda: _now())
    ending: Ending | None = None

    @property
    def is_leader(self) -> bool:
        return self.place.rank == 0

    def agree(self, items: Sequence[pytest.Item], suite: Suite, errors: Sequence[str]) -> list[str]:
        """The validations in one order for all ranks. Collective. Raises RefusedError."""
        self.validations = {item.nodeid: read_validation(item, self.default_deadline_s) for item in items}
        longest = max((validation.deadline_s for validation in self.validations.values()), default=self.default_deadline_s)
        return self.supervisor.agree_on_suite(suite, list(self.validations), list(errors), longest + BACKSTOP_S)

    def lead_with(self, note: Callable[[str], None]) -> None:
        """Rank 0 becomes the leader once the validations are agreed on."""
        assert self.profile is not None and self.job is not None
        settings = self.settings
        self.leader = Leader(self.supervisor, self.profile, self.job, settings.waivers, note, measure_only=settings.measure_only)

    def run(self, nodeid: str, next_nodeid: str | None) -> tuple[Outcome, str, float, Row | None]:
        """One validation on all ranks: outcome, message, duration; on rank 0 also the row. Collective."""
        if self.supervisor.ended:
            row = self.leader.not_run(self.validations[nodeid], self.supervisor.ended) if self.leader else None
            return Outcome.NOT_RUN, self.supervisor.ended, 0.0, row
        if self.leader:
            row = self.leader.run(self.validations[nodeid], next_nodeid)
            return row.outcome, row.message, row.duration_s, row
        verdict = self.supervisor.follow()
        if verdict["nodeid"] != nodeid:
            raise ControlError(f"rank 0 judged {verdict['nodeid']} where this rank was at {nodeid}")
        return Outcome(verdict["outcome"]), verdict["message"], verdict["duration_s"], None

    def finish(self, internal_error: str | None, summarize: Summarize) -> Ending:
        """Ends the workers; rank 0 judges the run, writes its record and tells all how it ended. Collective."""
        self.supervisor.quit_worker()
        if self.leader:
            ending = self._end_as_leader(internal_error, summarize)
            self.supervisor.control.cast(
                {"type": "final", "exit_code": ending.exit_code, "verdict": ending.verdict, "lines": list(ending.lines)}
            )
        final = self.supervisor.await_cast("final", silence_s=60)
        self.ending = Ending(int(final["exit_code"]), final["verdict"], tuple(final["lines"]))
        return self.ending

    def _end_as_leader(self, internal_error: str | None, summarize: Summarize) -> Ending:
        """Judges and writes. Whatever breaks here is told to all ranks: no verdict is better than none said."""
        try:
            self._add_unreached()
            return self._write(self._conclude(internal_error), summarize)
        except Exception as error:
            text = f"no verdict: internal error while the run was judged: {type(error).__name__}: {error}"
            return Ending(3, text, (text, *traceback.format_exc().splitlines()))

    def _add_unreached(self) -> None:
        """Validations that pytest never came to (-x, --maxfail) are rows too."""
        assert self.leader
        reached = {row.nodeid for row in self.leader.rows}
        reason = self.supervisor.ended or "the run stopped before it (-x or --maxfail)"
        for nodeid, validation in self.validations.items():
            if nodeid not in reached:
                self.leader.not_run(validation, reason)

    def _conclude(self, internal_error: str | None) -> RunRecord:
        assert self.leader and self.profile
        rows = self.leader.finished_rows()
        conclusion = conclude(
            rows,
            self.profile,
            self.leader.job,
            self.settings.waivers,
            declared_gpus=self.settings.declared_gpus,
            measure_only=self.settings.measure_only,
            interrupted=self.supervisor.stopping,
            internal_error=internal_error,
            not_applicable_subjects=self.leader.too_small,
            notes=[f"{plural(self.num_deselected, 'validation')} deselected"] if self.num_deselected else [],
        )
        return RunRecord(
            header=self._header(),
            conclusion=conclusion,
            rows=tuple(rows),
            changes=tuple(ChangeRecord(**vars(change)) for change in self.profile.changes),
            not_applicable=dict(self.profile.not_applicable),
            waivers=dict(self.settings.waivers),
        )

    def _header(self) -> Header:
        assert self.leader and self.profile
        return Header(
            run_id=self.files.folder.name,
            started_at=self.started_at,
            ended_at=_now(),
            command=tuple(_command(self.place)),
            profile=self.profile.name,
            profile_digest=self.profile.digest,
            profile_files={file.file: file.sha256 for file in self.profile.files},
            required=tuple(sorted(self.profile.requires)),
            parameters=dict(self.profile.parameters),
            declared_gpus=self.settings.declared_gpus,
            measure_only=self.settings.measure_only,
            gpu_acceptance_version=__version__,
            ranks=self.leader.job.ranks,
        )

    def _write(self, record: RunRecord, summarize: Summarize) -> Ending:
        """Writes results and report; where they cannot be written there is no verdict to show, and the exit code says so."""
        conclusion: Conclusion = record.conclusion
        lines = tuple(summarize(record, self.files.folder))
        try:
            write_results(self.files.folder, record)
            write_page(self.files.folder)
        except OSError as error:
            problem = f"the report could not be written to {self.files.folder}: {error}"
            return Ending(3, "INCOMPLETE", (*lines, problem))
        return Ending(conclusion.exit_code, conclusion.line, lines)


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
        return {"run_id": _fresh_run_id(settings), "parameters": dict(profile.parameters), "deadline_s": profile.deadline_s}

    answer = supervisor.join(identity, refusal, welcome)
    identity = identity.model_copy(update={"run_id": answer["run_id"]})
    files = RunFiles(settings.report_dir / answer["run_id"], place.rank)
    supervisor.open_files(files, identity)
    job = Job(tuple(one.model_copy(update={"run_id": answer["run_id"]}) for one in joined)) if joined else None
    return Run(settings, place, supervisor, identity, files, answer["deadline_s"], chosen.get("profile"), job=job)


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
        raise RefusedError(f"--report-dir={folder}: cannot be made: {error.strerror}; name a folder that can be written") from None
    if not os.access(folder, os.W_OK):
        raise RefusedError(f"--report-dir={folder}: not writable; name a folder that is")


def _command(place: Rank) -> list[str]:
    """How the run was started: torchrun's own command, or this process's in a world of one."""
    if place.store_port:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(os.getppid()).cmdline()
    return sys.orig_argv


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
