"""The exit code of a rank, what torchrun is told, and what becomes of a run whose control plane is gone."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from journals import concluded, told
from report import samples
from tensorboard_runs import with_curves

from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.messages import Final, JournalState, StopRequest
from gpu_acceptance.control.rank import TORCHRUN, Rank, RefusedError
from gpu_acceptance.folder.files import RunFiles, read_results
from gpu_acceptance.report.ending import Ending, write_ending
from gpu_acceptance.run import epilogues
from gpu_acceptance.run.run import Run
from gpu_acceptance.worker.options import Paths


def make_run(folder, rank=0, **state):
    mail = {JournalState: {0: JournalState(problem="", shared=True, records=None, round=0)}}
    supervisor = Mock(ended=None, is_cut_off=False, mail=lambda kind: mail.get(kind, {}), place=Rank(rank=rank), judged={})
    supervisor.heartbeats.lost.return_value = []
    run = Run(Mock(budget=None), Rank(rank=rank), supervisor, Mock(), RunFiles(folder, rank), 60.0, None, [])
    for name, value in state.items():
        setattr(run, name, value)
    return run


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [
        ({}, 0, 3),
        ({}, 1, 3),
        ({}, 5, 3),
        ({}, 4, 4),
        ({"refused": RefusedError("no")}, 0, 4),
        ({"refused": RefusedError("no", 3)}, 4, 3),
        ({"ending": Ending(0, "ACCEPTED")}, 1, 0),
        ({"ending": Ending(1, "REJECTED")}, 0, 1),
        ({"ending": Ending(0, "ACCEPTED"), "problem": "a hook failed"}, 0, 3),
    ],
)
def test_the_exit_code_is_that_of_the_run_and_never_0_without_an_ending(tmp_path, state, said, code):
    assert make_run(tmp_path, **state).exit_code(said) == code


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "no verdict: pytest ended before the run did"),
        ({"problem": "rank 0 lost: no heartbeat for 15 s"}, "no verdict: rank 0 lost: no heartbeat for 15 s"),
        ({"refused": RefusedError("ranks differ")}, "no verdict: ranks differ"),
        ({"ending": Ending(1, "REJECTED", ("REJECTED", "why"))}, "REJECTED"),
    ],
)
def test_torchrun_gets_the_verdict_or_the_reason_for_its_absence(tmp_path, monkeypatch, state, text):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    run = make_run(tmp_path, 1, **state)
    run.supervisor.stop_signals.reason = None
    run.leave()
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == text
    assert run.supervisor.say_bye.called == ("refused" not in state)
    assert run.supervisor.slot.kill_everything.called


@pytest.mark.parametrize(
    ("place", "cut_off", "told"),
    [
        (Rank(rank=8, store_port=29400, launcher=TORCHRUN), True, [17]),
        (Rank(rank=8, store_port=29400, launcher=TORCHRUN), False, []),
        (Rank(rank=9, local_rank=1, store_port=29400, launcher=TORCHRUN), True, []),
        (Rank(), True, []),  # its parent is a shell
    ],
)
def test_only_a_torchrun_whose_node_is_cut_off_is_told_to_end_and_once(tmp_path, monkeypatch, place, cut_off, told):
    ended = []
    monkeypatch.setattr("gpu_acceptance.run.run.end_launcher_later", ended.append)
    run = make_run(tmp_path, place=place)
    run.supervisor.is_cut_off = cut_off
    run.supervisor.stop_signals.launcher = 17
    run.leave()
    assert ended == told


def test_a_written_verdict_is_taken_back_when_it_could_not_be_sent(tmp_path):
    run = make_run(tmp_path, plan=Mock(), leader=Mock(rows=[]))
    run._confirmed = lambda: concluded(told())
    run.supervisor.await_broadcast.side_effect = ControlError("the control store is gone: it is")
    run.finish()
    assert (run.exit_code(0), read_results(tmp_path).conclusion.exit_code) == (3, 3)
    assert run.last_lines[0] == "INCOMPLETE: the control store is gone: it is"


def test_a_follower_without_a_control_plane_has_no_verdict(tmp_path):
    run = make_run(tmp_path, 1, plan=Mock())
    run.supervisor.await_broadcast.side_effect = ControlError("the control store is gone: it is")
    run.finish()
    assert (run.exit_code(0), run.last_lines) == (3, ("no verdict: the control store is gone: it is",))
    assert not list(tmp_path.iterdir())


def test_a_record_of_a_lost_leader_counts(tmp_path):
    written = write_ending(tmp_path, samples.rejected())
    run = make_run(tmp_path, 1, plan=Mock())
    assert run._end_as_standby() == written


def test_a_rank_that_goes_wrong_before_the_end_asks_the_leader_to_stop(tmp_path):
    run = make_run(tmp_path, 1, plan=Mock())
    run.supervisor.await_broadcast.return_value = Final(exit_code=2, word="INCOMPLETE", lines=())
    run.go_wrong("KeyError: 'a bug in a hook'")
    run.finish()
    run.supervisor.tell_leader.assert_called_once_with(StopRequest(reason="rank 1: KeyError: 'a bug in a hook'"))
    assert run.exit_code(0) == 3


def test_a_problem_of_a_follower_after_the_end_changes_nothing(tmp_path):
    run = make_run(tmp_path, 1, plan=Mock(), ending=Ending(0, "ACCEPTED", ("ACCEPTED",)), finished=True)
    run.go_wrong("its terminal is closed")
    assert (run.exit_code(0), run.last_lines) == (0, ("ACCEPTED",))


def test_the_end_comes_once(tmp_path):
    run = make_run(tmp_path, 1, plan=SimpleNamespace(), finished=True)
    run.finish()
    assert not run.supervisor.await_broadcast.called


@pytest.mark.parametrize(("asked", "record"), [(False, samples.accepted()), (True, None)])
def test_event_files_are_for_the_rank_that_reports_where_they_were_asked_for(tmp_path, asked, record):
    run = make_run(tmp_path, record=record)
    run.settings.tensorboard = asked
    assert epilogues.noted(epilogues.leave_event_files, run) == []


def test_event_files_that_cannot_be_written_are_reported_and_change_nothing(tmp_path):
    record = with_curves(samples.accepted())
    record = record.model_copy(update={"plan": record.plan.model_copy(update={"started_at": "yesterday"})})
    run = make_run(tmp_path, record=record, ending=Ending(0, "ACCEPTED", ("ACCEPTED",)))
    said = "RecordError: started_at is 'yesterday', not an ISO 8601 time with a zone"
    assert epilogues.noted(epilogues.leave_event_files, run) == [f"tensorboard: no event files in {tmp_path}: {said}"]
    assert (run.exit_code(0), run.last_lines) == (0, ("ACCEPTED",))
    assert not list(tmp_path.iterdir())


def test_an_error_while_a_shared_folder_is_cleared_is_reported_and_changes_nothing(tmp_path, monkeypatch):
    run = make_run(tmp_path, record=samples.accepted(), ending=Ending(0, "ACCEPTED", ("ACCEPTED",)))
    run.paths = Paths(shared_stem=tmp_path / "stem")
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))  # as where no process can be started any more
    (said,) = epilogues.noted(epilogues.clear_shared_dir, run)
    assert said.startswith("--shared-dir: not cleared: FileNotFoundError: ")
    assert (run.exit_code(0), run.last_lines) == (0, ("ACCEPTED",))


def test_a_manifest_is_for_the_rank_that_reports(tmp_path):
    assert epilogues.noted(epilogues.leave_manifest, make_run(tmp_path)) == []
    assert not list(tmp_path.iterdir())


def test_a_manifest_that_cannot_be_written_is_reported_and_changes_nothing(tmp_path):
    (tmp_path / "SHA256SUMS").mkdir()
    run = make_run(tmp_path, record=samples.accepted(), ending=Ending(0, "ACCEPTED", ("ACCEPTED",)))
    (said,) = epilogues.noted(epilogues.leave_manifest, run)
    assert said.startswith(f"manifest: none of {tmp_path}: IsADirectoryError: ")
    assert (run.exit_code(0), run.last_lines) == (0, ("ACCEPTED",))
