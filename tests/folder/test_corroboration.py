"""The journals of a folder confirm the record beside them, or each that does not is named with what differs."""

import json
import os
from dataclasses import replace

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.corroboration import find_unlike_journals
from gpu_acceptance.folder.files import RecordError, read_results, write_results
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.record.job import MOST_RANKS, Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.record.run_record import ControlMessages, DisputedRecord, RunEnd, RunRecord
from gpu_acceptance.verdict.run_record import conclude_again, make_run_record
from tests.journals import BF16, RUN_ID, TRIAD, Told, make_plan, told

ENDED = "2026-11-20T07:21:40+00:00"


def record_of(run: Told, journals=(0, 1, 2, 3), **fields):
    return make_run_record(run.plan, run.job, run.rows(), **{"ended_at": ENDED, "end": RunEnd(), "journals": journals, **fields})


def leave(folder, run, record=None, *left_out, closed_with=None):
    """Leave journals, results and a manifest of a run. `closed_with`: the record that the ranks heard of."""
    run.leave(folder, *left_out, closing=(closed_with or record_of(run)).closing).mkdir(exist_ok=True)
    write_results(folder, record or record_of(run))
    write_manifest(folder)
    return folder


def unlike(folder):
    return [str(one) for one in find_unlike_journals(folder, read_results(folder))]


def journal(rank):
    return f"the journal of rank {rank} (journal/rank-0000{rank}.jsonl)"


def verify(folder, capsys):
    code = main(["report", "verify", str(folder)])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "run",
    [told(), told(triad=(120.0, 120.0, 3.0, 120.0)), told(rank_2=Outcome.DIED, rank_1=Outcome.ERROR), told(rank_0=Outcome.STUCK)],
    ids=["accepted", "missed", "died, and an echo", "stuck"],
)
def test_a_run_as_it_was_left_is_confirmed(tmp_path, run):
    assert unlike(leave(tmp_path / RUN_ID, run)) == []


def with_other_limits(run, change):
    """Return the run with other limits under the name and the digest of the same profile."""
    limits = {metric: changed for metric, limit in run.plan.profile.limits.items() if (changed := change(limit))}
    return Told(run.plan.model_copy(update={"profile": replace(run.plan.profile, limits=limits)}), 4, run.attempts)


@pytest.mark.parametrize(
    "change",
    [
        lambda limit: replace(limit, at_least=1.0) if limit.metric == "hbm.triad.bandwidth" else limit,
        lambda limit: replace(limit, source="policy: as agreed") if limit.metric == "hbm.triad.bandwidth" else limit,
        lambda limit: None if limit.subject == "gemm" else limit,
    ],
    ids=["a looser bound", "another source", "a limit less"],
)
def test_a_record_that_was_judged_by_other_limits_is_not_confirmed_and_with_the_plan_of_its_journals_not_read(tmp_path, change):
    run = told(triad=(120.0, 120.0, 3.0, 120.0))
    record = record_of(with_other_limits(run, change))
    assert unlike(leave(tmp_path / "1" / RUN_ID, run, record)) == [f"{journal(rank)} has a plan with another profile" for rank in range(4)]
    with pytest.raises(RecordError, match="contradicts itself: "):
        read_results(leave(tmp_path / "2" / RUN_ID, run, record.model_copy(update={"plan": run.plan})))


@pytest.mark.parametrize(
    "of_plan", [{"not_collected": ("test_nccl.py: no tests",)}, {"num_deselected": 37}, {"selection": "-k 'not nccl'"}]
)
def test_what_the_plan_says_against_a_verdict_is_in_it_whatever_is_written_there(tmp_path, of_plan, capsys):
    plan = make_plan().model_copy(update=of_plan)
    run, good = told(plan=plan), record_of(told())
    assert good.conclusion.line == "ACCEPTED"
    bare = record_of(run).model_copy(update={"conclusion": good.conclusion})
    folder = leave(tmp_path / RUN_ID, run, bare)
    if "not_collected" in of_plan:
        assert main(["verdict", str(folder)]) == 3
        assert "conclusion.verdict is 'ACCEPTED', and what the record holds gives 'INCOMPLETE'" in capsys.readouterr().err
    else:
        assert main(["verdict", str(folder)]) == 0
        assert capsys.readouterr().out.startswith("ACCEPTED (")


@pytest.mark.parametrize("said", [(0, 2, 3), ()], ids=["without the one that says otherwise", "none at all"])
@pytest.mark.parametrize("end", [RunEnd(), RunEnd(interrupted="SIGTERM")], ids=["whole", "interrupted"])
def test_a_record_cannot_say_that_journals_of_its_node_lie_elsewhere(tmp_path, said, end):
    left_out = {0, 1, 2, 3} - {*said}
    folder = leave(tmp_path / RUN_ID, told(triad=(120.0, 3.0, 120.0, 120.0)), record_of(told(), said, end=end), *left_out)
    assert unlike(folder)[0] == f"{journal(min(left_out))} is gone"
    assert main(["verdict", str(folder)]) == (2 if end.interrupted else 3)


def test_a_record_whose_bad_row_was_cut_out_is_not_confirmed(tmp_path, capsys):
    bad = told(triad=(120.0, 120.0, 3.0, 120.0))
    good = Told(make_plan(nodeids=[one.nodeid for one in bad.plan.validations if one.nodeid != TRIAD]), 4, bad.attempts)
    folder = leave(tmp_path / RUN_ID, bad, record_of(good))
    assert unlike(folder) == [f"{journal(rank)} has a plan with another validations" for rank in range(4)]
    code, lines = verify(folder, capsys)
    assert code == 1
    assert lines[0] == ("UNLIKE journal/rank-00000.jsonl: rank 0: it has a plan with another validations")
    assert lines[-1].startswith("CHANGED: 4 unlike the results | ")


@pytest.mark.parametrize(
    ("left", "rank", "text"),
    [
        (told(triad=(120.0, 120.0, 3.0, 120.0)), 2, "hbm.triad.bandwidth is 3.0 there and 120.0 in results.json"),
        (told(rank_3=Outcome.ERROR), 3, "error there and passed in results.json"),
    ],
    ids=["a figure", "an outcome"],
)
def test_what_was_mended_in_the_record_alone_is_named_with_both_values(tmp_path, left, rank, text):
    folder = leave(tmp_path / RUN_ID, left, record_of(told()))
    assert unlike(folder) == [f"{journal(rank)} tells otherwise than results.json: test_hbm.py::test_triad: {text}"]


def test_an_attempt_that_the_record_lacks(tmp_path):
    run = told()
    again = Attempt(number=2, ranks=tuple(one.model_copy(update={"attempt": 2}) for one in run.attempts[BF16][0].ranks))
    twice = Told(run.plan, 4, {**run.attempts, BF16: [*run.attempts[BF16], again]})
    folder = leave(tmp_path / RUN_ID, twice, record_of(run))
    assert unlike(folder)[0] == f"{journal(0)} tells of what results.json lacks: test_gemm.py::test_gemm[bf16] (attempt 2)"
    folder = leave(tmp_path / "other", run, record_of(twice))
    assert unlike(folder)[0] == f"{journal(0)} lacks what results.json tells of it: test_gemm.py::test_gemm[bf16] (attempt 2)"


def gone(path):
    path.unlink()


def truncated(path):
    os.truncate(path, path.stat().st_size - 20)


def begun_anew(path):
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")


def of_another_rank(path):
    path.write_bytes(path.with_name("rank-00000.jsonl").read_bytes())


def of_another_run(path):
    path.write_text(path.read_text().replace(RUN_ID, "20261120-080000-cd34"))


def linked(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def of_other_limits(path):
    first, plan, *more = path.read_text().split("\n")
    changed = json.loads(plan)
    changed["profile"]["digest"] = "0" * 64
    path.write_text("\n".join([first, json.dumps(changed, separators=(",", ":")), *more]))


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (gone, "is gone"),
        (truncated, "cannot be used: line 7: cut off: the writer ended in the middle of it"),
        (begun_anew, "has no plan: it was cut off, or begun anew"),
        (of_another_rank, "gives its rank another rank, local_rank, gpu_uuid"),
        (of_other_limits, "has a plan with another profile"),
        (of_another_run, "is of run 20261120-080000-cd34"),
        (linked, "is a link"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_journal_that_is_no_witness(tmp_path, harm, text, capsys):
    folder = leave(tmp_path / RUN_ID, told())
    assert (main(["verdict", str(folder)]), verify(folder, capsys)[0]) == (0, 0)
    harm(folder / "journal" / "rank-00001.jsonl")
    if harm is not linked:  # no manifest could vouch for a link
        write_manifest(folder)
    assert unlike(folder) == [f"{journal(1)} {text}"]
    assert main(["verdict", str(folder)]) == 3
    if harm not in {of_another_run, linked}:  # of which reading says so already
        assert f"{folder}: {journal(1)} {text}, beside a results.json that says ACCEPTED" in capsys.readouterr().err
    assert verify(folder, capsys)[0] != 0


def test_journals_of_nodes_that_have_a_folder_of_their_own_are_not_missed(tmp_path):
    run = replace(told(), ranks_of_node=2)
    assert unlike(leave(tmp_path / RUN_ID, run, record_of(run, (0, 1)), 2, 3)) == []


@pytest.mark.parametrize("field", [{"gpu_uuid": "GPU-of-another"}, {"versions": {"torch": "9.9"}}], ids=["gpu_uuid", "versions"])
def test_what_a_rank_told_of_the_device_that_it_opened_is_compared(tmp_path, field):
    run = told()
    record = record_of(run)
    ranks = [one.model_copy(update=field) if one.rank == 1 else one for one in record.ranks]
    forged = make_run_record(run.plan, Job(tuple(ranks)), run.rows(), ended_at=ENDED, end=RunEnd(), journals=(0, 1, 2, 3))
    assert unlike(leave(tmp_path / RUN_ID, run, forged)) == [f"{journal(1)} gives its rank another {next(iter(field))}"]


def test_a_journal_of_nobody(tmp_path):
    folder = leave(tmp_path / RUN_ID, told())
    (folder / "journal" / "rank-00004.jsonl").write_bytes((folder / "journal" / "rank-00003.jsonl").read_bytes())
    assert unlike(folder) == [f"{journal(4)} is of no rank of this run"]


def test_what_the_reporter_never_heard_of_a_lost_rank_is_no_contradiction(tmp_path):
    record = record_of(told(rank_2=Outcome.LOST))
    assert unlike(leave(tmp_path / RUN_ID, told(), record, closed_with=record)) == []


DISPUTED = DisputedRecord(rank=1, nodeid=TRIAD, attempt=1, told="failed (0123456789abcdef)", judged="passed (fedcba9876543210)")


@pytest.mark.parametrize(
    ("how", "fields"),
    [
        ({"end": RunEnd(interrupted="SIGTERM")}, "verdict, exit_code, end"),
        ({"end": RunEnd(internal_error="the journal of rank 1 is gone")}, "verdict, exit_code, end"),
        ({"control": ControlMessages(is_authenticated=True, lost={"published": 1})}, "verdict, exit_code, control"),
        ({"control": ControlMessages(is_authenticated=True, disputed=(DISPUTED,))}, "verdict, exit_code, control"),
        ({"control": ControlMessages(is_authenticated=True, dropped={"published": 1})}, "control"),
        ({"ended_at": "2026-11-20T07:00:01+00:00"}, "ended_at"),
    ],
    ids=["interrupted", "an internal error", "messages lost", "a rank that objects", "strangers", "the time"],
)
def test_how_the_run_ended_is_what_its_ranks_heard(tmp_path, how, fields, capsys):
    run = told()
    folder = leave(tmp_path / RUN_ID, run, closed_with=record_of(run, **how))
    assert unlike(folder) == [f"{journal(rank)} was closed with another {fields} of the run" for rank in range(4)]
    assert (main(["verdict", str(folder)]), verify(folder, capsys)[0]) == (3, 1)


def test_nothing_is_accepted_that_a_rank_did_not_confirm(tmp_path, capsys):
    folder = leave(tmp_path / RUN_ID, told())
    path = folder / "journal" / "rank-00002.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    write_manifest(folder)
    assert unlike(folder) == [f"{journal(2)} does not say how the run ended"]
    assert (main(["verdict", str(folder)]), verify(folder, capsys)[0]) == (3, 1)


def test_what_broke_a_run_off_may_have_come_too_late_for_its_journals_but_not_for_that_of_its_reporter(tmp_path):
    run = told()
    record = record_of(run, end=RunEnd(interrupted="SIGTERM"))
    folder = leave(tmp_path / RUN_ID, run, record)
    assert unlike(folder) == [f"{journal(0)} was closed with another verdict, exit_code, end of the run"]
    for closing, faults in ((record.closing, 0), (record.closing.model_copy(update={"ended_at": "2026-11-20T07:00:00+00:00"}), 1)):
        with (folder / "journal" / "rank-00000.jsonl").open("a") as file:
            file.write(f"{encode(closing)}\n")
        assert len(unlike(folder)) == faults


def test_that_a_report_could_not_be_written_comes_after_all_journals(tmp_path):
    run = told()
    folder = leave(tmp_path / RUN_ID, run, record_of(run, end=RunEnd(not_written="no space")))
    with (folder / "journal" / "rank-00000.jsonl").open("a") as file:
        file.write(f"{encode(record_of(run).closing.model_copy(update={'verdict': 'INCOMPLETE', 'exit_code': 3}))}\n")
    assert unlike(folder) == []


def test_a_closed_journal_tells_all_that_was_judged_of_its_rank(tmp_path):
    """A run that was broken off may lack attempts of a rank, but not of one that heard how it ended."""
    run = told()
    cut = {"attempts": (), "judgements": (), "outcome": Outcome.NOT_RUN}
    rows = [row.model_copy(update=cut) if row.nodeid == TRIAD else row for row in run.rows()]
    record = make_run_record(run.plan, run.job, rows, ended_at=ENDED, end=RunEnd(interrupted="SIGTERM"), journals=range(4))
    assert len(unlike(leave(tmp_path / RUN_ID, run, record, closed_with=record))) == 4


def test_no_version_is_made_up_for_a_rank_of_a_run_that_was_broken_off(tmp_path):
    run, end = told(), RunEnd(interrupted="SIGTERM")
    first, second, *others = run.job.ranks
    for versions, faults in (({}, 0), ({"torch": "2.99.0"}, 1)):
        job = Job((first, second.model_copy(update={"versions": versions}), *others))
        record = make_run_record(run.plan, job, run.rows(), ended_at=ENDED, end=end, journals=range(4))
        assert len(unlike(leave(tmp_path / f"{faults}" / RUN_ID, run, record, closed_with=record))) == faults


def test_the_field_of_a_figure_that_differs_is_named(tmp_path):
    run = told()
    data = json.loads(record_of(run).model_dump_json())
    data["rows"][1]["attempts"][0]["ranks"][2]["figures"][0]["labels"] = {"kernel": "copy"}
    folder = leave(tmp_path / RUN_ID, run, conclude_again(RunRecord.model_validate_json(json.dumps(data))))
    (said,) = unlike(folder)
    assert said.endswith("labels of hbm.triad.bandwidth is None there and {'kernel': 'copy'} in results.json")


@pytest.mark.parametrize("how", [{"interrupted": "SIGTERM"}, {"internal_error": "it is"}, {"not_concluded": ("no reporter saw it",)}])
def test_nothing_that_broke_a_run_off_takes_a_rejection_back(tmp_path, how):
    """The row that rejects is cut down to one that did not run, or to ranks that were lost."""
    bad, lost = told(triad=(120.0, 120.0, 3.0, 120.0)), told(rank_2=Outcome.LOST)
    cut = {"attempts": (), "judgements": (), "outcome": Outcome.NOT_RUN}
    rows = [row.model_copy(update=cut) if row.nodeid == TRIAD else row for row in bad.rows()]
    for number, forged in enumerate((rows, lost.rows())):
        record = make_run_record(bad.plan, bad.job, forged, ended_at=ENDED, end=RunEnd(**how), journals=range(4))
        assert record.conclusion.verdict == "INCOMPLETE"
        assert unlike(leave(tmp_path / f"{number}" / RUN_ID, bad, record))


@pytest.mark.parametrize("size", [-1, MOST_RANKS + 1, 10**18])
def test_a_size_that_no_job_has_is_not_counted_up_to(tmp_path, size):
    record = record_of(told())
    first, *others = record.ranks
    ranks = (first.model_copy(update={"world_size": size}), *others)
    write_results(tmp_path, record.model_copy(update={"ranks": ranks}))
    bound = "greater than or equal to 0" if size < 0 else "less than or equal to 1000000"
    with pytest.raises(RecordError, match=rf"results\.json: .*world_size.*{bound}"):
        read_results(tmp_path)
