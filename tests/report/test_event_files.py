"""Event files have the points of the record, in folders that no text from a machine leads out of; whole or not at all."""

import math
import sys

import pytest
from tensorboard_runs import events_of, read_runs

from gpu_acceptance.folder.files import RecordError
from gpu_acceptance.record.figure import curve_of
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.report.event_files import find_missing, write_event_files
from tests.report import samples
from tests.report.sample_rows import rank_record, with_ranks

GPT2 = "acceptance/test_ddp.py::test_train[gpt2]"
LOSS = curve_of("ddp.gpt2.loss", [3.0, math.nan, 0.1], "nats")


def of_name(name):
    return curve_of(name, [2.0], "nats")


def record_of(*rows, ranks=2, **of_plan):
    """A run of these validations: node id -> the curves of each rank in each attempt."""
    made = []
    for nodeid, attempts in rows:
        tried = []
        for number, curves_of_ranks in enumerate(attempts, 1):
            told = (rank_record(nodeid, rank, attempt=number, curves=curves) for rank, curves in enumerate(curves_of_ranks))
            tried.append(Attempt(number=number, ranks=tuple(told)))
        made.append(Row(nodeid=nodeid, subject="ddp", outcome=Outcome.PASSED, attempts=tuple(tried)))
    record = samples.of_ranks(samples.accepted(), map(samples.identity, range(ranks)))
    return samples.with_rows(record.model_copy(update={"plan": record.plan.model_copy(update=of_plan)}), *made)


def on_host(host):
    record = record_of((GPT2, [[(LOSS,)]]), ranks=1)
    return samples.of_ranks(record, [record.ranks[0].model_copy(update={"host": host})])


def test_each_rank_is_a_run_and_each_curve_a_tag(tmp_path):
    step_s = curve_of("ddp.gpt2.step_s", [0.25] * 480, "s")
    line = write_event_files(tmp_path, record_of((GPT2, [[(LOSS, step_s), (), (LOSS,)]]), ranks=3))
    assert line == f"tensorboard: 3 curves; to look at them: tensorboard --logdir={tmp_path}/tensorboard"
    runs = read_runs(tmp_path / "tensorboard")
    assert list(runs) == ["node-01.example/rank-00000", "node-01.example/rank-00002"]
    assert list(runs["node-01.example/rank-00000"]) == ["ddp.gpt2/loss", "ddp.gpt2/step_s"]
    assert runs["node-01.example/rank-00000"]["ddp.gpt2/step_s"] == [(2 * number, 0.25) for number in range(240)]
    (first, second, third) = runs["node-01.example/rank-00002"]["ddp.gpt2/loss"]
    assert (first, third) == ((0, 3.0), (2, pytest.approx(0.1, rel=1e-7)))
    assert second[0] == 1
    assert math.isnan(second[1])


def test_all_points_have_the_time_at_which_the_run_began(tmp_path):
    write_event_files(tmp_path, record_of((GPT2, [[(LOSS,)]]), started_at="2026-11-20T07:00:00+01:00"))
    (path,) = (tmp_path / "tensorboard").rglob("events.out.tfevents.1795154400")
    assert {event.wall_time for event in events_of(path)} == {1795154400.0}


def test_a_repeat_is_a_run_of_its_own(tmp_path):
    again = curve_of("ddp.gpt2.loss", [7.0], "nats")
    write_event_files(tmp_path, record_of((GPT2, [[(LOSS,)], [(again,)]])))
    runs = read_runs(tmp_path / "tensorboard")
    assert list(runs) == ["node-01.example/rank-00000", "node-01.example/rank-00000/attempt-2"]
    assert runs["node-01.example/rank-00000/attempt-2"] == {"ddp.gpt2/loss": [(0, 7.0)]}


def test_curves_that_would_share_a_tag_name_their_validation(tmp_path):
    other = "acceptance/test_ddp.py::test_train[\x1b]"
    curves = (LOSS, of_name("loss"), of_name("gpt2.rate"), of_name("gpt2/rate"))
    write_event_files(tmp_path, record_of((GPT2, [[curves]]), (other, [[(LOSS,)]])))
    (run,) = read_runs(tmp_path / "tensorboard").values()
    assert {tag: len(points) for tag, points in run.items()} == {
        f"ddp.gpt2.loss ({GPT2})": 3,
        r"ddp.gpt2.loss (acceptance/test_ddp.py::test_train[\x1b])": 3,
        "loss": 1,
        f"gpt2.rate ({GPT2})": 1,
        f"gpt2/rate ({GPT2})": 1,
    }


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("../../up", "_.._up"),
        ("..", "unknown"),
        ("", "unknown"),
        ("/etc", "_etc"),
        ("a/../../b", "a_.._.._b"),
        ("\x00\x1b[2J\u202e\ud800", "___2J__"),
        ("x" * 300, "x" * 100),
    ],
)
def test_no_host_leads_out_of_the_folder(tmp_path, host, name):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_event_files(run_dir, on_host(host))
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.parent == run_dir / "tensorboard" / name / "rank-00000"


def test_a_run_without_curves_leaves_no_folder_and_says_so(tmp_path):
    line = write_event_files(tmp_path, samples.accepted())
    assert line == "tensorboard: nothing to write, no validation of this run kept a curve"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_link", [False, True])
def test_an_existing_folder_is_left_alone(tmp_path, is_link):
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_dir.mkdir()
    (run_dir / "tensorboard").symlink_to(elsewhere) if is_link else (run_dir / "tensorboard").mkdir()
    with pytest.raises(RecordError, match=r"/run/tensorboard is there already; move it away to write it anew$"):
        write_event_files(run_dir, on_host("node-01"))
    assert [path.name for path in run_dir.iterdir()] == ["tensorboard"]
    assert not elsewhere.exists()


def test_a_failure_in_the_middle_leaves_nothing(tmp_path):
    record = record_of((GPT2, [[(LOSS,), (LOSS,)]]))
    spoiled = samples.with_rows(record, with_ranks(record.rows[0], {1: {"rank": 10**300}}))  # as a name of a folder too long
    with pytest.raises(OSError, match="File name too long"):
        write_event_files(tmp_path, spoiled)
    assert not list(tmp_path.iterdir())


def test_a_record_without_a_begin_is_an_error(tmp_path):
    with pytest.raises(RecordError, match=r"^started_at is 'yesterday', not an ISO 8601 time with a zone$"):
        write_event_files(tmp_path, record_of((GPT2, [[(LOSS,)]]), started_at="yesterday"))
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named_with_what_installs_it(monkeypatch):
    assert find_missing() is None
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert find_missing() == (
        f"--tensorboard writes with tensorboardX, which is not installed: {sys.executable} -m pip install tensorboardX, or leave it out"
    )
