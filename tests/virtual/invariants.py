"""Conditions that hold at the end of any run, whatever happened to it; derived from the faults that fired, not from the verdict."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from virtual.world import Fired, World

from gpu_acceptance.base.text import parse_ranges
from gpu_acceptance.control.heartbeats import BEAT_S, LOST_S
from gpu_acceptance.control.rank import JOIN_S
from gpu_acceptance.folder.files import RESULTS, RunFiles, read_results
from gpu_acceptance.folder.journal import read_journal
from gpu_acceptance.record.row import Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT
from gpu_acceptance.run.joining import COLLECT_S
from gpu_acceptance.supervisor.attempt_state import GRACE_S, LOST_AFTER_S
from gpu_acceptance.verdict.reasons import FORMATION

CODE = 32  # digits before each control message
LAUNCHER_S = 30.0  # from torchrun's SIGTERM to its SIGKILL
_SLACK_S = 3.0  # half a second for each wait of a supervisor, a second for each beat
_BUSY_S = 10.0  # in foreign code; a rank that is cut off as well has no time left for its threads to end
_BYE_S = 20.0  # the handshake, and the threads of the control plane
_REPORT_S = 4 * BEAT_S + 4.0 + 20.0  # the live ranks, their journals, the standby's report
LOSS_S = LOST_S + _REPORT_S + _SLACK_S

REJECTS = {"exit", "signal", "hang", "hang without a stack", "assert", "assert late"}
HARMLESS = {"slow", "late"}
BAD_FOR_HEALTHY = {"died", "stuck", "lost", "failed", "error"}


@dataclass
class Checked:
    """One ended world, and the record that it left."""

    world: World

    def __post_init__(self) -> None:
        world = self.world
        self.ends = world.ends
        self.undisturbed = not (world.killed or world.stopped or world.cut_s or world.store_gone_at)
        self.reached = {rank: end for rank, end in world.ends.items() if rank not in world.cut_s}
        self.record = self._record()

    def _record(self) -> RunRecord | None:
        """Return the record of the first node that has one; of a rank that was cut off only where no other wrote one."""
        folders = [self.world.run_folder(rank) for rank in [*sorted(self.reached), *range(self.world.shape.world_size)]]
        return next((read_results(folder) for folder in folders if (folder / RESULTS).exists()), None)

    @property
    def agreed(self) -> bool:
        return any(map(self.has_plan, self.world.runs))

    def has_plan(self, rank: int) -> bool:
        return rank in self.world.runs and self.world.runs[rank].plan is not None

    @property
    def bad(self) -> list[Fired]:
        return [one for one in self.world.fired if one.kind not in HARMLESS and not (one.kind == "unstable" and one.attempt == 1)]

    def bad_of(self, nodeid: str, attempt: int | None = None) -> list[Fired]:
        return [one for one in self.bad if one.nodeid == nodeid and attempt in {None, one.attempt}]

    def rows(self) -> Iterator[Row]:
        yield from self.record.rows if self.record else ()


def check(world: World) -> None:
    """Raise AssertionError over the first condition that does not hold."""
    checked = Checked(world)
    assert not world.crashes, world.crashes
    it_ended_in_time(checked)
    live_ranks_agree(checked)
    a_report_is_written(checked)
    a_rank_that_met_no_other_leaves_a_refusal(checked)
    accepted_only_if_all_held(checked)
    each_rank_confirmed_what_was_accepted(checked)
    rejecting_faults_reject(checked)
    each_fault_is_named(checked)
    no_healthy_rank_is_blamed(checked)
    later_validations_run(checked)


def it_ended_in_time(checked: Checked) -> None:
    """Each step of the run is within its bound, and the end within the launcher's patience."""
    world = checked.world
    assert not world.live, f"still running: {world.live}"
    impatient = [rank for rank in world.killed_by_launcher if not (rank in world.cut_s and world.busy_s[rank] > _BUSY_S)]
    assert not impatient, f"the launcher lost its patience with {impatient}"
    losses = len(world.killed) + len(world.cut_s) + (world.store_gone_at is not None)
    extra_s = losses * LOSS_S + sum(world.cut_s.values()) + sum(world.busy_s.values())
    steps = [*_steps(world), (max((end.at for end in world.ends.values()), default=world.schedule.now), "end", 0.0)]
    for (begin, what, deadline_s), (end, following, _) in pairwise(steps):
        bound_s = {
            "begin": JOIN_S + 30 if losses else _SLACK_S,
            "welcome": COLLECT_S + 30 if losses else _SLACK_S,
            "go": deadline_s + GRACE_S + LOST_AFTER_S + _SLACK_S,
            "final": _BYE_S,
        }.get(what, _SLACK_S) + extra_s
        assert end - begin <= bound_s, f"{end - begin:.1f} s from {what} to {following}, allowed: {bound_s:.1f}"


def _steps(world: World) -> Iterator[tuple[float, str, float]]:
    """Yield the steps of the run: the leader's announcements, as the store saw them first."""
    yield world.began, "begin", 0.0
    seen = set()
    for at, _, text in world.store.traffic:
        body = text[CODE:].partition("\n")[0].split(" ", 2)[-1]
        message = json.loads(body) if body.startswith('{"type"') else None
        if message:
            key = message["type"], message.get("seq"), message.get("nodeid")
            if message["type"] in {"welcome", "agreed", "go", "verdict", "final"} and key not in seen:
                seen.add(key)
                yield at, message["type"], message.get("deadline_s", 0.0) if message["type"] == "go" else 0.0


def live_ranks_agree(checked: Checked) -> None:
    """Exit code and verdict line are equal. A rank that was cut off, or any where the store is gone, may have no verdict."""
    said = {rank: (end.exit_code, end.lines[:1]) for rank, end in checked.ends.items()}
    assert all(lines and lines[0] for _, lines in said.values()), said
    may_have_none = checked.ends if checked.world.store_gone_at is not None else checked.world.cut_s
    for rank in may_have_none:
        if rank in said and (said[rank][0] == 3 or not checked.has_plan(rank) or checked.world.cut_s):
            said.pop(rank)
    if not checked.agreed:  # before that a rank may know of the leader's loss by a signal, or by its silence; ranks that never came: 6
        assert {code for code, _ in said.values()} <= {2, 3, 6}, said
        return
    if checked.world.cut_s and checked.world.stopped:
        return  # a rank whose stop the leader did not hear in time takes it for lost, and ends alone
    assert len(set(said.values())) <= 1, said


def a_report_is_written(checked: Checked) -> None:
    world, record = checked.world, checked.record
    if not checked.agreed:
        return
    for rank in checked.ends:
        content = read_journal(RunFiles(world.run_folder(rank), rank).journal)
        assert content.identity, f"no journal of rank {rank}"
        assert content.plan or not world.runs[rank].plan, f"no plan in the journal of rank {rank}"
        assert not content.problems, content.problems
    reporters = [rank for rank in checked.reached if world.store_gone_at is None or rank == 0]
    if reporters and world.runs[min(reporters)].plan:
        assert record, f"no results, though rank {min(reporters)} could write: {checked.ends}"
        assert any((folder / REPORT).exists() for folder in world.run_folders)
    if record and world.store_gone_at is None:
        codes = {checked.ends[rank].exit_code for rank in checked.reached}
        torn = {3} if world.cut_s else set()  # the second reporter in a shared folder does not overwrite, and both fail closed
        assert codes <= {record.conclusion.exit_code, *torn} or record.conclusion.exit_code in torn, (codes, record.conclusion.line)


def a_rank_that_met_no_other_leaves_a_refusal(checked: Checked) -> None:
    """A refusal because of other ranks is in the journal of each rank that heard or made it, and no other refusal is."""
    for rank, end in checked.ends.items():
        unmet = end.exit_code == 6 and not checked.has_plan(rank)
        expected = [end.lines[0].removeprefix("no verdict: ")] if unmet else []
        found = [content for content in map(read_journal, checked.world.journals(rank)) if content.refusal]
        assert [content.refusal.message for content in found] == expected, f"rank {rank}"
        assert [content.identity.run_id for content in found] == [content.path.parents[1].name for content in found]


def accepted_only_if_all_held(checked: Checked, *, disturbed: bool = False) -> None:
    """A run is accepted only where nothing is wrong. `disturbed`: something unknown happened, so it need not be accepted."""
    world = checked.world
    expected = {one.nodeid for one in world.shape.validations if one.min_ranks <= world.shape.world_size}
    ranks = range(world.shape.world_size)
    missing = {(rank, nodeid) for rank in ranks for nodeid in {FORMATION, *expected}} - world.done
    nothing_wrong = bool(expected) and not checked.bad and not missing
    for rank, end in checked.ends.items():
        assert end.exit_code != 0 or nothing_wrong, f"rank {rank} accepts, in spite of {checked.bad or missing}"
    if checked.record and checked.record.conclusion.verdict == "ACCEPTED":
        assert nothing_wrong, f"ACCEPTED, in spite of {checked.bad or missing}"
    if checked.undisturbed and not checked.bad and expected and not disturbed:
        assert {end.exit_code for end in checked.ends.values()} == {0}, checked.ends


def each_rank_confirmed_what_was_accepted(checked: Checked) -> None:
    """Each journal ends with the end of the run."""
    record = checked.record
    if record and record.conclusion.verdict == "ACCEPTED":
        closings = [read_journal(path).closing for rank in checked.world.runs for path in checked.world.journals(rank)]
        assert closings == [record.closing] * checked.world.shape.world_size, closings


def rejecting_faults_reject(checked: Checked) -> None:
    """Deaths, hangs and assertions alone make a row reject, unless a worker never sent a message; a hang only by its own deadline."""
    if not checked.undisturbed:
        return
    own_s = {one.nodeid: one.deadline_s for one in checked.world.shape.validations}
    for row in checked.rows():
        bad = checked.bad_of(row.nodeid)
        if bad and {one.kind for one in bad} <= REJECTS and all(one.phase != "start" for one in bad):
            is_hurried = row.deadline_s < own_s.get(row.nodeid, 0.0)
            assert row.outcome in {"died", "stuck", "failed", *(["not measured"] if is_hurried else [])}, (
                row.nodeid,
                row.outcome,
                row.message,
                bad,
            )
            assert checked.record
            assert checked.record.conclusion.verdict == "REJECTED"


def each_fault_is_named(checked: Checked) -> None:
    if not checked.undisturbed:
        return
    rows = {row.nodeid: row for row in checked.rows()}
    for one in checked.bad:
        row = rows.get(one.nodeid)
        assert row, f"no row for {one}"
        assert row.outcome != "passed", f"passed in spite of {one}"
        named = [other for other in checked.bad_of(one.nodeid) if _names(row.message, other.rank)]
        assert named, f"{one} is not named in {row.message!r}"


def _names(message: str, rank: int) -> bool:
    return any(rank in parse_ranges(ranks) for ranks in re.findall(r"\branks? (\d+(?:[,-]\d+)*)", message))


def no_healthy_rank_is_blamed(checked: Checked) -> None:
    world = checked.world
    suspects = {*world.killed, *world.cut_s}
    if world.cut_s or world.store_gone_at is not None:
        return  # a link that is down can make any rank wait without an end
    if not checked.record:
        return
    for row in checked.rows():
        for attempt in row.attempts:
            faulty = {one.rank for one in checked.bad_of(row.nodeid, attempt.number)}
            for record in attempt.ranks:
                # A collective that a hang ended with an error at the deadline lets healthy ranks go on to somewhere else.
                late = record.outcome == "stuck" and world.shape.collectives_tell and faulty
                told = not (checked.record.rebuilt and record.outcome == "lost")  # it may have had nothing to report
                if record.rank not in faulty | suspects and told and not late:
                    said = f"{row.nodeid}, attempt {attempt.number}: rank {record.rank} {record.outcome}: {record.message}"
                    assert record.outcome not in BAD_FOR_HEALTHY, f"{said}; faulty: {faulty}"


def later_validations_run(checked: Checked) -> None:
    """In a run that was not ended early, each validation without a fault passed, however many others had one: each is a subject."""
    if not checked.undisturbed or checked.bad_of(FORMATION):
        return
    if checked.world.shape.collectives_tell and any(one.kind.startswith("hang") for one in checked.bad):
        return  # as above: at the deadline a healthy rank may be counted as one that spoils generations
    size = checked.world.shape.world_size
    sizes = {one.nodeid: one.min_ranks for one in checked.world.shape.validations}
    for row in checked.rows():
        if not checked.bad_of(row.nodeid):
            expected = "not applicable" if sizes.get(row.nodeid, 1) > size else "passed"
            assert row.outcome == expected, (row.nodeid, row.outcome, row.message)
