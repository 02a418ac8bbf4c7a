"""One acceptance run on one rank, from the agreement on what runs to the last bye. The pytest hooks are in plugin.py."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_acceptance.base.guard import ask, end_launcher_later, new_mark, remove_within, stem_in
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.messages import Agreed, Final, StopRequest
from gpu_acceptance.control.rank import USAGE, Rank, RefusedError, UnmetError, interrupted
from gpu_acceptance.folder.files import RESULTS, RunFiles, read_results, utc_now
from gpu_acceptance.folder.manifest import MANIFEST, write_manifest
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Row
from gpu_acceptance.record.run_record import Closing, RunEnd, RunPlan, RunRecord
from gpu_acceptance.report.ending import INTERNAL_ERROR, Ending, broken, complete_ending, describe, spoil, where_it_is, write_ending
from gpu_acceptance.report.event_files import write_event_files
from gpu_acceptance.report.exports import JUNIT
from gpu_acceptance.report.summary_text import tell_github
from gpu_acceptance.run.collecting import Collected, read_validations
from gpu_acceptance.run.joining import agree, note_refusal
from gpu_acceptance.run.outputs import empty, write_error_file
from gpu_acceptance.run.own_files import NO_FILES, OwnFiles, own_digest
from gpu_acceptance.run.plan import make_plan
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.run.suite import suite_digest
from gpu_acceptance.run.training_files import are_evidence, folder_of
from gpu_acceptance.supervisor.generations import Validation
from gpu_acceptance.supervisor.leader import Leader, LeaderOptions
from gpu_acceptance.supervisor.standby import Journals, await_listeners, close_journals, elect, find_unconfirmed, rebuild_run, send_journal
from gpu_acceptance.supervisor.supervisor import BYE_S, LEAVE_S, LOST_MESSAGES, LeaderLostError, Supervisor
from gpu_acceptance.supervisor.worker_slot import WorkerConfig
from gpu_acceptance.thresholds.limit import COUNTERS, Limit, Profile, matching_reason, subject_of
from gpu_acceptance.thresholds.profile import runs
from gpu_acceptance.verdict.attempts import bare_row
from gpu_acceptance.verdict.judge import most_risen
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import Unmet, unmet_needs
from gpu_acceptance.verdict.run_record import make_run_record
from gpu_acceptance.worker.messages import RunFacts
from gpu_acceptance.worker.options import Paths

_CLEARING_S, _REMOVING_S = 5.0, 20.0  # torchrun ends a rank 30 s after one of its peers has failed
_MOST_ROUNDS = 4  # of closing the journals: interrupted, a loss, a journal that does not confirm
_HOOKS_S, _HOOKS_OF_LEADER_S = BYE_S - 1, LEAVE_S - 2
BACKSTOP_S = 60.0  # the process group's own timeout lies this far behind the longest deadline: the supervisor's always fires first


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
    begun: set[str] = field(default_factory=set)  # their node ids
    started_at: str = field(default_factory=utc_now)
    plan: RunPlan | None = None  # once agreed, the same on all ranks
    refused: RefusedError | None = None  # instead of a plan
    problem: str | None = None  # what went wrong on this rank beside its validations
    unconfirmed: str | None = None  # rank 0: which journal does not confirm what was concluded, and why
    record: RunRecord | None = None  # of the rank that reports
    journals: Journals = field(default_factory=Journals)  # rank 0, once the workers have ended
    closing: Closing | None = None  # rank 0: what the ranks were last asked to close their journals with
    finished: bool = False
    ending: Ending | None = None
    alive: list[int] | None = None  # after the leading rank was lost: who is left
    stopped: str | None = None  # what had stopped the run before that
    own_files: OwnFiles = NO_FILES
    paths: Paths = field(default_factory=Paths)  # with the run's own folders, once agreed

    # --- what runs -----------------------------------------------------------------------------------------------------------

    def agree(self, collected: Collected, rootdir: Path, ini: Path) -> list[str]:
        """The validations in one order for all ranks. Collective. Raises RefusedError."""
        parameters = self.profile.parameters if self.profile else None
        self.validations, wrong = read_validations(collected.items, self.default_deadline_s, parameters)
        stopped = self.supervisor.stop_signals.reason
        problems = [interrupted(stopped)] if stopped else [*self.obstacles, *collected.problems, *wrong, *self._none_at_level()]

        def answer() -> Agreed:
            plan = self._make_plan(collected)
            longest_s = max((planned.deadline_s for planned in plan.validations), default=self.default_deadline_s)
            return Agreed(plan=plan, group_timeout_s=longest_s + BACKSTOP_S, mark=new_mark())

        agreed = self._agree([item.nodeid for item in collected.items], problems, answer)
        plan = agreed.plan
        assert self.supervisor.journal
        assert self.supervisor.slot
        self.supervisor.journal.append(plan)
        self.validations = {planned.nodeid: self.validations[planned.nodeid] for planned in plan.validations}
        files = sorted({str(item.path) for item in collected.items if item.nodeid in self.validations and item.nodeid != FORMATION})
        settings, parameters, run_id = self.settings, dict(plan.profile.parameters), self.files.folder.name
        checkpoints = folder_of(run_id, settings.paths.checkpoint_dir, settings.report_dir, self.place.num_nodes)
        shared_stem = stem_in(settings.paths.shared_dir, run_id, agreed.mark) if settings.paths.shared_dir else None
        self.paths = replace(settings.paths, checkpoints=checkpoints, shared_stem=shared_stem)
        told = RunFacts(
            parameters=parameters,
            digests={"suite": suite_digest(rootdir), "profile": own_digest(settings, plan.profile.name, self.own_files)},
            declared_nodes=plan.declared_nodes,
            paths=self.paths,
        )
        counters = frozenset(limit.metric for limit in plan.profile.limits.values() if _counts(limit, plan.profile))
        most = most_risen(plan, self.place.local_world_size, self.place.num_nodes)
        self.supervisor.slot.collect_with(WorkerConfig(rootdir, ini, files, told, agreed.group_timeout_s, counters, most))
        self.plan = plan
        return [validation.nodeid for validation in plan.validations]

    def _none_at_level(self) -> list[RefusedError]:
        """Workers without a file to collect would collect all."""
        profile = self.profile
        collected = [nodeid for nodeid in self.validations if nodeid != FORMATION]
        if profile is None or not collected or any(runs(profile, nodeid) for nodeid in collected):
            return []
        subjects = ", ".join(sorted({subject_of(nodeid) for nodeid in collected}))
        return [RefusedError(f"--level={profile.level}: nothing of what was asked for belongs to it: {subjects}")]

    def withdraw(self, problem: RefusedError) -> None:
        """Tells all ranks that one cannot go on before anything was agreed."""
        if self.refused:
            return

        def answer() -> Agreed:
            raise AssertionError(f"a rank cannot go on, and yet all agree: {problem}")

        try:
            self._agree([], [problem], answer)
        except UnmetError:
            self.refused = problem
        except RefusedError:
            return

    def _agree(self, nodeids: list[str], problems: list[RefusedError], answer: Callable[[], Agreed]) -> Agreed:
        try:
            return agree(self.supervisor, nodeids, problems, answer)
        except RefusedError as error:
            self.refused = error
            note_refusal(error, self.supervisor.journal, self.obstacles)
            raise

    def _make_plan(self, collected: Collected) -> RunPlan:
        assert self.profile
        run_id, validations = self.files.folder.name, self.validations.values()
        named = run_id, self.started_at, self.place, self.settings
        is_authentic = self.supervisor.control.session.is_authenticated
        return make_plan(*named, self.profile, collected, validations, self.own_files, has_authentic_messages=is_authentic)

    def lead_with(self, note: Callable[[str], None]) -> None:
        """Rank 0 becomes the leader once the validations are agreed on."""
        assert self.profile is not None
        assert self.job is not None
        settings = self.settings
        options = LeaderOptions(settings.measure_only, settings.confirm, settings.budget)
        self.leader = Leader(self.supervisor, self.profile, self.job, settings.waivers, note, options, self.validations)

    @property
    def unmet(self) -> tuple[Unmet, ...]:
        """What nodes lack of what the agreed validations need. Of rank 0, once these are agreed on."""
        return unmet_needs(self.validations.values(), self.job) if self.job else ()

    def run(self, nodeid: str) -> tuple[Outcome, str, float, Row | None]:
        """One validation on all ranks: outcome, message, duration; on rank 0 also the row. Collective. Raises RefusedError."""
        if nodeid in self.begun:
            raise RefusedError(f"{nodeid} was run already: a plugin or a conftest runs validations again; leave it out")
        self.begun.add(nodeid)
        if self.supervisor.ended:
            row = self.leader.not_run(self.validations[nodeid], self.supervisor.ended) if self.leader else None
            return Outcome.NOT_RUN, self.supervisor.ended, 0.0, row
        try:
            return self._lead(nodeid, self.leader) if self.leader else self._follow(nodeid)
        except LeaderLostError as error:
            self._elect(error)
            return Outcome.INTERRUPTED, str(error), 0.0, None
        except ControlError as error:  # nobody is left to agree with; what was in flight is in this rank's journal at least
            self.supervisor.interrupt(f"a loss: {error}", is_loss=True)
            raise

    def _lead(self, nodeid: str, leader: Leader) -> tuple[Outcome, str, float, Row]:
        row = leader.run(self.validations[nodeid])
        return row.outcome, row.message, row.duration_s, row

    def _follow(self, nodeid: str) -> tuple[Outcome, str, float, None]:
        verdict = self.supervisor.follow()
        if isinstance(verdict, Final):
            return Outcome.NOT_RUN, self.supervisor.ended or "", 0.0, None
        if verdict.nodeid != nodeid:
            raise ControlError(f"rank 0 judged {verdict.nodeid} where this rank was at {nodeid}")
        return verdict.outcome, verdict.message, verdict.duration_s, None

    def _elect(self, error: LeaderLostError) -> None:
        """From here on another rank leads, or this one as a standby."""
        if self.alive is None:
            self.stopped = self._interruption or error.loss.signal or None
        self.alive = elect(self.supervisor, error.loss)
        self.leader = None

    @property
    def _interruption(self) -> str | None:
        """A budget that is spent is none, and what strangers did is told by itself."""
        stopped, budget = self.supervisor.stopping, self.settings.budget
        return None if stopped == LOST_MESSAGES or (budget and stopped == budget.text) else stopped

    # --- the end -------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The leader ends the workers, judges the run, writes its record and tells all how it ended. Collective, once."""
        if self.plan is None or self.finished:
            return
        self.finished = True
        try:
            self._finish_together()
        except ControlError as error:
            self.supervisor.has_lost_control = True
            self._finish_alone(str(error))

    def go_wrong(self, problem: str) -> None:
        """Something beside the validations went wrong on this rank. What the leader wrote before that holds no more."""
        if self.ending is None:
            self.problem = self.problem or problem
        elif self.leader:
            self._finish_alone(problem)

    def exit_code(self, said: int) -> int:
        """That of the run. Never 0 without an ending that says so; of what pytest says itself, only a usage error counts."""
        if self.refused:
            return self.refused.exit_code
        if self.ending is None:
            return USAGE if said == USAGE else INTERNAL_ERROR
        return INTERNAL_ERROR if self.problem else self.ending.exit_code

    @property
    def last_lines(self) -> tuple[str, ...]:
        """For people: the verdict and its reasons, or why there is none."""
        if self.ending:
            return self.ending.lines
        stopped = self.supervisor.stop_signals.reason
        early = interrupted(stopped) if stopped else "pytest ended before the run did"
        return (f"no verdict: {self.refused or self.problem or early}",)

    @property
    def speaks_for_rank_0(self) -> bool:
        """Whether the rank that owns the terminal is gone, or cannot be heard on this node."""
        standby = bool(self.alive) and self.supervisor.is_leader
        return standby or (self.supervisor.is_cut_off and self.place.rank > 0 and self.place.local_rank == 0)

    @property
    def hooks_after_verdict_s(self) -> float:
        """How long hooks may take once the verdict is there: the other ranks await the bye of this one."""
        return _HOOKS_OF_LEADER_S if self.supervisor.is_leader else _HOOKS_S

    def leave(self) -> None:
        """No process left behind, torchrun's error file, and the last handshake: who has said bye writes nothing any more."""
        if self.supervisor.slot:
            self.supervisor.slot.kill_everything()
        if self.ending is None or self.ending.exit_code:
            write_error_file(self.last_lines[0])
        self.files.flush_terminal()
        if self.refused is None:  # a refusal has said bye
            self.supervisor.say_bye(self.alive)
        self._end_silent_launcher()

    def remove_checkpoints(self) -> None:
        """Once they are judged, by the rank that made their folder; last of all, since what they lie on may be slow. A later run removes
        what is left.
        """
        if not (self.leader and self.record and self.plan and self.paths.checkpoints):
            return
        if not are_evidence(self.record.rows, self.plan.profile, self.leader.job):
            remove_within(self.paths.checkpoints, _REMOVING_S)

    def clear_shared_dir(self) -> list[str]:
        """The rank that reports, once no worker is left; returns a line to say where something of killed ones stays."""
        if self.record is None or self.paths.shared_stem is None:
            return []
        stays = ask("shared", str(self.paths.shared_stem), patience_s=_CLEARING_S)
        return [f"--shared-dir: what workers left there when they were killed stays: {self.paths.shared_stem}*: {stays}"] if stays else []

    def write_event_files(self) -> list[str]:
        """The rank that reports, where they were asked for; returns lines to say. It costs nobody a verdict."""
        if not self.settings.tensorboard or self.record is None:
            return []
        try:
            return [write_event_files(self.files.folder, self.record)]
        except Exception as error:  # whatever a package or a disk can come up with
            return [f"tensorboard: no event files in {self.files.folder}: {describe(error)}"]

    def copy_junit(self, path: Path) -> str:
        """The rank that reports, once the verdict is there; returns why it could not be done, or nothing."""
        if self.record is None:
            return ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            empty(path)
            path.write_bytes((self.files.folder / JUNIT).read_bytes())
        except OSError as error:
            return f"--junitxml={path} could not be written: {error.strerror or describe(error)}"
        return ""

    def tell_github(self) -> list[str]:
        """The rank that reports, where GitHub Actions runs it; returns lines to say. It costs nobody a verdict."""
        if self.record is None:
            return []
        try:
            return list(tell_github(self.record, os.environ))
        except Exception as error:  # whatever a disk can come up with
            return [f"github: no summary of the job: {describe(error)}"]

    def write_manifest(self) -> list[str]:
        """The rank that reports, after all else is written; returns the lines that name what it left. It costs nobody a verdict."""
        if self.record is None:
            return []
        problem = []
        try:
            write_manifest(self.files.folder)
        except Exception as error:  # whatever a disk can come up with
            problem = [f"manifest: none of {self.files.folder}: {describe(error)}"]
        return [*where_it_is(self.files.folder), *problem]

    def _end_silent_launcher(self) -> None:
        """One rank of a node that is cut off sees to it."""
        launcher = self.supervisor.stop_signals.launcher
        if self.supervisor.is_cut_off and self.place.local_rank == 0 and self.place.has_agent and launcher:
            end_launcher_later(launcher)

    def _finish_together(self) -> None:
        if self.leader is None and self.problem:
            self.supervisor.tell_leader(StopRequest(reason=f"rank {self.place.rank}: {self.problem}"))
        while self.ending is None:
            try:
                if self.leader:
                    self._end_workers_and_report(self.leader)
                self._follow_to_the_end()
            except LeaderLostError as error:  # a standby can be lost as well
                self._elect(error)

    def _end_workers_and_report(self, leader: Leader) -> None:
        leader.end_workers()
        if leader.has_doubtful_rows:
            self.supervisor.settle()
        self.supervisor.refuse_a_leader_that_was_given_up()  # another rank writes
        self._tell(self._end_as_leader(self._confirmed))

    def _finish_alone(self, problem: str) -> None:
        """The leader, where nobody can be told any more: what it has is written, with exit code 3."""
        self.problem = self.problem or problem
        if self.leader and self.record:
            self.ending = self._kept(spoil(self.files.folder, self.record, problem), self.record)
        elif self.leader:
            self.ending = self._end_as_leader(self._conclude)

    def _follow_to_the_end(self) -> None:
        if self.alive:
            send_journal(self.supervisor)
            if self.supervisor.is_leader:
                self.alive = await_listeners(self.supervisor, self.alive)
                self._tell(self._end_as_standby())
        self.supervisor.leader_writes = True
        final = self._told_before() or self.supervisor.await_cast(Final, silence_s=60 if self.alive is None else 20)
        self.ending = Ending(final.exit_code, final.word, final.lines)

    def _told_before(self) -> Final | None:
        """Of a leader that ended the run before we had elected it."""
        return self.supervisor.mail(Final).get(self.supervisor.leader)

    def _tell(self, ending: Ending) -> None:
        self.supervisor.control.broadcast(Final(exit_code=ending.exit_code, word=ending.word, lines=tuple(ending.lines)))

    def _end_as_standby(self) -> Ending:
        """Writes what the lost leader can no longer write; where it did so at the last moment, that counts."""
        folder = self.files.folder
        try:
            if (folder / RESULTS).exists():
                record = read_results(folder)
                if not (folder / MANIFEST).exists():  # else the lost one has told its digest, and all is written
                    self.record = record
                return complete_ending(folder, record)
            why = self.supervisor.ended or "the leading rank was lost"
            self.record = rebuild_run(self.supervisor, self.files, why, self.stopped)
            assert self.supervisor.journal
            self.supervisor.journal.append(self.record.closing)  # the lost leader may have told another one
            return write_ending(folder, self.record)
        except Exception as error:
            return broken(error)

    def _end_as_leader(self, make_record: Callable[[], RunRecord]) -> Ending:
        """Judges and writes. Whatever breaks here is told to all ranks: no verdict is better than none said."""
        try:
            self.record = make_record()
            return self._kept(write_ending(self.files.folder, self.record), self.record)
        except ControlError:
            raise
        except Exception as error:
            return broken(error)

    def _confirmed(self) -> RunRecord:
        """The record that all ranks could confirm and closed their journals with; else one that says what is against that. Collective."""
        record = self._conclude()
        for number in range(_MOST_ROUNDS):
            self.closing = record.closing
            self.journals = close_journals(self.supervisor, self.files, self.closing, number)
            record = record.model_copy(update={"journals": self.journals.here})
            told = self.supervisor.journal_problem or self.journals.problem
            self.unconfirmed = self.unconfirmed or told or self._find_unconfirmed(record) or None
            if self._ended_as(record):
                return record
            record = self._conclude()
        return record

    def _ended_as(self, record: RunRecord) -> bool:
        """Whether nothing came to light since. What strangers write without end changes no verdict."""
        self.supervisor.heed_signals()
        known, control = record.control, self.supervisor.control_messages()
        return record.end == self._end and known is not None and known.model_copy(update={"dropped": control.dropped}) == control

    @property
    def _end(self) -> RunEnd:
        return RunEnd(
            interrupted=self._interruption,
            control_lost=self.supervisor.has_lost_control,
            internal_error=self.problem,
            unconfirmed=self.unconfirmed,
        )

    def _find_unconfirmed(self, record: RunRecord) -> str:
        may_wait = not self.supervisor.stopping  # else the launcher soon kills what is left
        unlike = find_unconfirmed(self.files.folder, record, self.identity.node, may_wait=may_wait)
        return f"{unlike[0]}{f', and {len(unlike) - 1} more' if len(unlike) > 1 else ''}" if unlike else ""

    def _kept(self, ending: Ending, record: RunRecord) -> Ending:
        """Where the run ended otherwise than its ranks heard, since something failed after that, this rank's journal says so."""
        journal, closing = self.supervisor.journal, record.closing
        if ending.exit_code != closing.exit_code:
            closing = closing.model_copy(update={"verdict": "INCOMPLETE", "exit_code": ending.exit_code})
        if journal and self.closing and closing != self.closing:
            with contextlib.suppress(OSError):  # of a disk that may have refused the report as well
                journal.append(closing)
        return ending

    def _unreached(self, leader: Leader) -> Iterator[Row]:
        """Validations that pytest never came to (-x, --maxfail) are rows too."""
        reached = {row.nodeid for row in leader.rows}
        reason = self.supervisor.ended or self.problem or "the run stopped before it (-x or --maxfail)"
        for nodeid, validation in self.validations.items():
            if nodeid not in reached:
                yield bare_row(nodeid, Outcome.NOT_RUN, reason, validation.deadline_s)

    def _conclude(self) -> RunRecord:
        assert self.leader
        assert self.plan
        return make_run_record(
            self.plan,
            self.leader.job,
            self.leader.finished_rows(self._unreached(self.leader)),
            ended_at=utc_now(),
            end=self._end,
            journals=self.journals.here,
            control=self.supervisor.control_messages(),
        )


def _counts(limit: Limit, profile: Profile) -> bool:
    return limit.subject == COUNTERS and matching_reason(limit.metric, profile.not_applicable) is None
