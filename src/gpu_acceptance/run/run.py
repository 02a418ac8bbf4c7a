"""One acceptance run on one rank, from the agreement on the plan to the last bye. The pytest hooks are in plugin.py."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_acceptance.base.guard import end_launcher_later, new_mark, stem_in
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.messages import Agreed, Final, StopRequest
from gpu_acceptance.control.rank import USAGE, JoinError, Rank, RefusedError, interrupted
from gpu_acceptance.folder.files import RESULTS, RunFiles, read_results, utc_now
from gpu_acceptance.folder.manifest import MANIFEST
from gpu_acceptance.inventory import fabric_reader
from gpu_acceptance.inventory.infiniband import globs_of_job
from gpu_acceptance.inventory.needs import imported_for
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Row
from gpu_acceptance.record.run_record import Closing, RunEnd, RunPlan, RunRecord
from gpu_acceptance.report.ending import INTERNAL_ERROR, Ending, broken, complete_ending, spoil, write_ending
from gpu_acceptance.run.collecting import Collected, read_validations, under_drill
from gpu_acceptance.run.joining import agree, note_refusal
from gpu_acceptance.run.outputs import write_error_file
from gpu_acceptance.run.own_files import NO_FILES, OwnFiles, own_digest
from gpu_acceptance.run.plan import make_plan
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.run.suite import suite_digest
from gpu_acceptance.run.training_files import folder_of
from gpu_acceptance.supervisor.leader import Leader, Validation
from gpu_acceptance.supervisor.standby import (
    Journals,
    await_listeners,
    close_journals,
    control_messages,
    elect,
    find_unconfirmed,
    rebuild_run,
    send_journal,
)
from gpu_acceptance.supervisor.supervisor import LOST_MESSAGES, LeaderLostError, Supervisor
from gpu_acceptance.supervisor.worker_slot import WorkerConfig
from gpu_acceptance.thresholds.levels import runs
from gpu_acceptance.thresholds.limit import COUNTERS, RDMA_DEVICES, Profile, matching_reason, subject_of
from gpu_acceptance.verdict.attempts import bare_row
from gpu_acceptance.verdict.judge import floors, most_risen
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import Unmet, unmet_needs
from gpu_acceptance.verdict.run_record import make_run_record
from gpu_acceptance.worker.messages import RunFacts
from gpu_acceptance.worker.options import Paths

_MOST_ROUNDS = 4  # of closing the journals: interrupted, a loss, a journal that does not confirm
BACKSTOP_S = 60.0  # the process group's own timeout lies this far behind the longest deadline: the supervisor's always fires first


@dataclass
class Run:
    """State of the run on this rank. Rank 0 has a leader, which holds the rows; all ranks have the plan."""

    settings: Settings
    place: Rank
    supervisor: Supervisor
    identity: RankIdentity
    files: RunFiles
    default_deadline_s: float
    profile: Profile | None  # on rank 0; the other ranks get it with the plan
    obstacles: list[RefusedError]  # why this rank cannot take part
    leader: Leader | None = None  # rank 0, once the validations are agreed on
    job: Job | None = None
    validations: dict[str, Validation] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)  # node ids
    started_at: str = field(default_factory=utc_now)
    plan: RunPlan | None = None  # once agreed; the same on all ranks
    refused: RefusedError | None = None  # instead of a plan
    problem: str | None = None  # went wrong on this rank, outside its validations
    unconfirmed: str | None = None  # rank 0: which journal does not confirm the verdict, and why
    record: RunRecord | None = None  # on the rank that reports
    journals: Journals = field(default_factory=Journals)  # rank 0, once the workers have ended
    closing: Closing | None = None  # rank 0: last line that the ranks were asked to close their journals with
    finished: bool = False
    ending: Ending | None = None
    alive: list[int] | None = None  # ranks that are left, once the leading rank was lost
    stopped: str | None = None  # reason that had stopped the run before that loss
    own_files: OwnFiles = NO_FILES
    paths: Paths = field(default_factory=Paths)  # with the run's own folders, once agreed

    # --- what runs -----------------------------------------------------------------------------------------------------------

    def agree(self, collected: Collected, rootdir: Path, ini: Path) -> list[str]:
        """Agree on the plan, and return the validations in one order for all ranks. Collective. Raises RefusedError."""
        parameters = self.profile.parameters if self.profile else None
        self.validations, wrong = read_validations(collected.items, self.default_deadline_s, parameters)
        nodeids = [item.nodeid for item in collected.items if item.nodeid in self.validations]  # of all phases: only rank 0 knows them
        if self.profile:  # the others follow rank 0
            collected = collected.of_run(self.profile, self.settings.phases)
            self.validations = {item.nodeid: self.validations[item.nodeid] for item in collected.items if item.nodeid in self.validations}
        self.validations = under_drill(self.validations, self.place.world_size) if self.settings.drill else self.validations
        stopped = self.supervisor.stop_signals.reason
        problems = [interrupted(stopped)] if stopped else [*self.obstacles, *collected.problems, *wrong]
        measured = [nodeid for nodeid in self.validations if nodeid != FORMATION]
        if self.profile and measured and not stopped and not any(runs(self.profile, nodeid) for nodeid in measured):
            # Workers without a file to collect would collect all.
            subjects = ", ".join(sorted({subject_of(nodeid) for nodeid in measured}))
            problems.append(RefusedError(f"--level={self.profile.level}: nothing of what was asked for belongs to it: {subjects}"))

        def answer() -> Agreed:
            assert self.profile
            plan = make_plan(self, self.profile, collected)
            longest_s = max((planned.deadline_s for planned in plan.validations), default=self.default_deadline_s)
            return Agreed(plan=plan, group_timeout_s=longest_s + BACKSTOP_S, mark=new_mark())

        agreed = self._agree(nodeids, problems, answer)
        assert self.supervisor.records.journal
        self.supervisor.records.journal.append(agreed.plan)
        self.validations = {planned.nodeid: self.validations[planned.nodeid] for planned in agreed.plan.validations}
        self._configure_workers(agreed, collected, rootdir, ini)
        self.plan = agreed.plan
        return list(self.validations)

    def _configure_workers(self, agreed: Agreed, collected: Collected, rootdir: Path, ini: Path) -> None:
        assert self.supervisor.slot
        plan, settings, run_id = agreed.plan, self.settings, self.files.folder.name
        tests = {one.item for one in self.validations.values()}
        files = sorted({str(item.path) for item in collected.items if item.nodeid in tests and item.nodeid != FORMATION})
        checkpoints = folder_of(run_id, settings.paths.checkpoint_dir, settings.report_dir, self.place.num_nodes)
        shared_stem = stem_in(settings.paths.shared_dir, run_id, agreed.mark) if settings.paths.shared_dir else None
        self.paths = replace(settings.paths, checkpoints=checkpoints, shared_stem=shared_stem)
        wanted, near = str(plan.profile.parameters.get(RDMA_DEVICES, "*")), fabric_reader.read(self.identity.gpus)
        shape = plan, self.place.local_world_size, self.place.num_nodes
        facts = RunFacts(
            parameters={**plan.profile.parameters, RDMA_DEVICES: globs_of_job(wanted, near.devices)},
            floors=floors(*shape),
            digests={"suite": suite_digest(rootdir), "profile": own_digest(settings, plan.profile, self.own_files)},
            declared_nodes=plan.declared_nodes,
            paths=self.paths,
        )
        judged = [limit.metric for limit in plan.profile.limits.values() if limit.subject == COUNTERS]
        counters = frozenset(metric for metric in judged if matching_reason(metric, plan.profile.not_applicable) is None)
        ahead = imported_for(need for planned in plan.validations for need in planned.needs)
        most = most_risen(*shape)
        timeout_s = agreed.group_timeout_s
        self.supervisor.slot.config = WorkerConfig(rootdir, ini, files, facts, timeout_s, counters, most, ahead, plan.allow_busy)

    def withdraw(self, problem: RefusedError) -> None:
        """Tell all ranks that this one cannot go on before anything was agreed."""
        if self.refused:
            return

        def answer() -> Agreed:
            raise AssertionError(f"a rank cannot go on, and yet all agree: {problem}")

        try:
            self._agree([], [problem], answer)
        except JoinError:
            self.refused = problem
        except RefusedError:
            return

    def _agree(self, nodeids: list[str], problems: list[RefusedError], answer: Callable[[], Agreed]) -> Agreed:
        try:
            return agree(self.supervisor, nodeids, problems, answer)
        except RefusedError as error:
            self.refused = error
            note_refusal(error, self.supervisor.records.journal, self.obstacles)
            raise

    def lead_with(self, note: Callable[[str], None]) -> None:
        """Make rank 0 the leader, once the validations are agreed on."""
        assert self.profile is not None
        assert self.job is not None
        settings = self.settings
        options = settings.measure_only, settings.confirm, settings.budget
        self.leader = Leader(self.supervisor, self.profile, self.job, settings.waivers, note, self.validations, *options)

    @property
    def unmet(self) -> tuple[Unmet, ...]:
        """Needs of the agreed validations that nodes lack. On rank 0, once the validations are agreed on."""
        return unmet_needs(self.validations.values(), self.job) if self.job else ()

    def run(self, nodeid: str) -> tuple[Outcome, str, float, Row | None]:
        """Run a validation on all ranks: return outcome, message, duration, and on rank 0 the row. Collective. Raises RefusedError."""
        if nodeid in self.begun:
            raise RefusedError(f"{nodeid} was run already: a plugin or a conftest runs validations again; leave it out")
        self.begun.add(nodeid)
        if self.supervisor.ended:
            row = self.leader.not_run(self.validations[nodeid], self.supervisor.ended) if self.leader else None
            return Outcome.NOT_RUN, self.supervisor.ended, 0.0, row
        try:
            if self.leader is None:
                return self._follow(nodeid)
            row = self.leader.run(self.validations[nodeid])
            return row.outcome, row.message, row.duration_s, row
        except LeaderLostError as error:
            self._elect(error)
            return Outcome.INTERRUPTED, str(error), 0.0, None
        except ControlError as error:  # no rank can be reached; the attempt in progress is in this rank's journal at least
            self.supervisor.interrupt(f"a loss: {error}", is_loss=True)
            raise

    def _follow(self, nodeid: str) -> tuple[Outcome, str, float, None]:
        verdict = self.supervisor.follow()
        if isinstance(verdict, Final):
            return Outcome.NOT_RUN, self.supervisor.ended or "", 0.0, None
        if verdict.nodeid != nodeid:
            raise ControlError(f"rank 0 judged {verdict.nodeid} where this rank was at {nodeid}")
        return verdict.outcome, verdict.message, verdict.duration_s, None

    def _elect(self, error: LeaderLostError) -> None:
        """Let another rank lead from here on, or this one as a standby."""
        if self.alive is None:
            self.stopped = self._interruption or error.loss.signal or None
        self.alive = elect(self.supervisor, error.loss)
        self.leader = None

    @property
    def _interruption(self) -> str | None:
        """Reason of an interruption. A spent budget does not count, and lost control messages are reported as such."""
        stopped, budget = self.supervisor.stopping, self.settings.budget
        return None if stopped == LOST_MESSAGES or (budget and stopped == budget.text) else stopped

    # --- the end -------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the run: the leader ends the workers, judges, writes the record and tells all ranks. Collective, once."""
        if self.plan is None or self.finished:
            return
        self.finished = True
        try:
            self._finish_together()
        except ControlError as error:
            self.supervisor.has_lost_control = True
            self._finish_alone(str(error))

    def go_wrong(self, problem: str) -> None:
        """Note a problem of this rank outside its validations. On the leader it replaces a verdict that was written before."""
        if self.ending is None:
            self.problem = self.problem or problem
        elif self.leader:
            self._finish_alone(problem)

    def exit_code(self, pytests: int) -> int:
        """Return the run's exit code. It is 0 only by an ending that says so; of `pytests` own code only a usage error counts."""
        if self.refused:
            return self.refused.exit_code
        if self.ending is None:
            return USAGE if pytests == USAGE else INTERNAL_ERROR
        return INTERNAL_ERROR if self.problem else self.ending.exit_code

    @property
    def last_lines(self) -> tuple[str, ...]:
        """Lines for people: the verdict with its reasons, or the reason for its absence."""
        if self.ending:
            return self.ending.lines
        stopped = self.supervisor.stop_signals.reason
        early = interrupted(stopped) if stopped else "pytest ended before the run did"
        return (f"no verdict: {self.refused or self.problem or early}",)

    @property
    def speaks_for_rank_0(self) -> bool:
        """True where rank 0, which owns the terminal, is gone, or cannot be heard on this node."""
        standby = bool(self.alive) and self.supervisor.is_leader
        return standby or (self.supervisor.is_cut_off and self.place.rank > 0 and self.place.local_rank == 0)

    def leave(self) -> None:
        """Kill all workers, write torchrun's error file, and say bye. After its bye a rank writes no file that rank 0 counts."""
        if self.supervisor.slot:
            self.supervisor.slot.kill_everything()
        if self.ending is None or self.ending.exit_code:
            write_error_file(self.last_lines[0])
        self.files.flush_terminal()
        if self.refused is None:  # a refused rank has said bye already
            self.supervisor.say_bye(self.alive)
        launcher = self.supervisor.stop_signals.launcher
        if self.supervisor.is_cut_off and self.place.local_rank == 0 and self.place.has_agent and launcher:  # one rank of its node
            end_launcher_later(launcher)

    def _finish_together(self) -> None:
        if self.leader is None and self.problem:
            self.supervisor.tell_leader(StopRequest(reason=f"rank {self.place.rank}: {self.problem}"))
        while self.ending is None:
            try:
                if self.leader:
                    self.leader.end_workers()
                    if self.leader.has_doubtful_rows:
                        self.supervisor.settle()
                    self.supervisor.refuse_a_leader_that_was_given_up()  # in that case another rank writes
                    self._tell(self._end_as_leader(self._confirmed))
                self._follow_to_the_end()
            except LeaderLostError as error:  # a standby can be lost, too
                self._elect(error)

    def _finish_alone(self, problem: str) -> None:
        """Write what the leader has, with exit code 3, where no rank can be told any more."""
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
        early = self.supervisor.mail(Final).get(self.supervisor.leader)  # of a leader that ended the run before it was elected here
        final: Final = early or self.supervisor.await_broadcast(Final, silence_s=60 if self.alive is None else 20)
        self.ending = Ending(final.exit_code, final.word, final.lines)

    def _tell(self, ending: Ending) -> None:
        self.supervisor.control.broadcast(Final(exit_code=ending.exit_code, word=ending.word, lines=tuple(ending.lines)))

    def _end_as_standby(self) -> Ending:
        """Write the ending in place of the lost leader; a record that it wrote at the last moment counts."""
        folder = self.files.folder
        try:
            if (folder / RESULTS).exists():
                record = read_results(folder)
                if not (folder / MANIFEST).exists():  # else the lost leader has written all files and told the digest
                    self.record = record
                return complete_ending(folder, record)
            why = self.supervisor.ended or "the leading rank was lost"
            self.record = rebuild_run(self.supervisor, self.files, why, self.stopped)
            assert self.supervisor.records.journal
            self.supervisor.records.journal.append(self.record.closing)  # the lost leader may have asked for another one
            return write_ending(folder, self.record)
        except Exception as error:
            return broken(error)

    def _end_as_leader(self, make_record: Callable[[], RunRecord]) -> Ending:
        """Judge the run and write its ending. An exception here becomes an ending without a verdict, which all ranks hear."""
        try:
            self.record = make_record()
            return self._kept(write_ending(self.files.folder, self.record), self.record)
        except ControlError:
            raise
        except Exception as error:
            return broken(error)

    def _confirmed(self) -> RunRecord:
        """Return a record that all ranks confirmed in their journals, or one that says why they did not. Collective."""
        record = self._conclude()
        for number in range(_MOST_ROUNDS):
            self.closing = record.closing
            self.journals = close_journals(self.supervisor, self.files, self.closing, number)
            record = record.model_copy(update={"journals": self.journals.here})
            problem = self.supervisor.records.problem or self.journals.problem
            self.unconfirmed = self.unconfirmed or problem or self._find_unconfirmed(record) or None
            if self._ended_as(record):
                return record
            record = self._conclude()
        return record

    def _ended_as(self, record: RunRecord) -> bool:
        """Return True where nothing came to light since. Messages of strangers, which may never end, do not count."""
        self.supervisor.heed_signals()
        known, control = record.control, control_messages(self.supervisor)
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
        may_wait = not self.supervisor.stopping  # else the launcher kills the remaining ranks soon
        unlike = find_unconfirmed(self.files.folder, record, self.identity.node, may_wait=may_wait)
        return f"{unlike[0]}{f', and {len(unlike) - 1} more' if len(unlike) > 1 else ''}" if unlike else ""

    def _kept(self, ending: Ending, record: RunRecord) -> Ending:
        """Note in this rank's journal an ending that differs from the one that the ranks heard, because something failed later."""
        journal, closing = self.supervisor.records.journal, record.closing
        if ending.exit_code != closing.exit_code:
            closing = closing.model_copy(update={"verdict": "INCOMPLETE", "exit_code": ending.exit_code})
        if journal and self.closing and closing != self.closing:
            with contextlib.suppress(OSError):  # the disk may have refused the report, too
                journal.append(closing)
        return ending

    def _conclude(self) -> RunRecord:
        assert self.leader
        assert self.plan
        reached = {row.nodeid for row in self.leader.rows}  # with -x or --maxfail pytest does not reach all validations
        why = self.supervisor.ended or self.problem or "the run stopped before it (-x or --maxfail)"
        missed = [one for nodeid, one in self.validations.items() if nodeid not in reached]
        return make_run_record(
            self.plan,
            self.leader.job,
            self.leader.finished_rows(bare_row(one.nodeid, Outcome.NOT_RUN, why, one.deadline_s) for one in missed),
            ended_at=utc_now(),
            end=self._end,
            journals=self.journals.here,
            control=control_messages(self.supervisor),
        )
