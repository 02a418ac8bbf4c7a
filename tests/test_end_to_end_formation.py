"""A process group that cannot be formed: the rank to blame and its step are named, and what needs no group still runs."""

import pytest
from faults import Fault
from suite import make_suite, torchrun

from gpu_acceptance.verdict.reasons import FORMATION

pytestmark = pytest.mark.launcher

DEADLINE_S = 60  # of a worker that starts as well: that took more than 20 s where four runs shared two cores
# How rank 1 of 2 is broken by its conftest, in its supervisor (whose environment the worker gets) or in its worker.
# A worker refuses what an import has replaced, so the fault comes with a hook after that.
_AFTER_COLLECTING = """
import os, signal

import pytest
import torch

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop():
    if os.environ["RANK"] == "1" and "GPU_ACCEPTANCE_SUPERVISOR" in os.environ:
        {fault}
    return (yield)
"""
HANGS = _AFTER_COLLECTING.format(fault="torch.distributed.init_process_group = lambda **arguments: signal.pause()")
WRONG_INTERFACE = """
import os

if os.environ["RANK"] == "1":
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
"""
DIES = _AFTER_COLLECTING.format(fault="torch.distributed.init_process_group = lambda **arguments: os._exit(7)")
SEES_ONE_GPU = _AFTER_COLLECTING.format(fault="torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1")


def fault(name, ends_in, says):
    says = rf"rank 1 \(.*\): {ends_in} in forming the group of attempt 1: {says}"
    return Fault(name, ends_in, FORMATION, says, (1,), "test_alone")


FAULTS = {
    HANGS: fault(
        "one rank hangs where the group forms", "stuck", rf"deadline of {DEADLINE_S} s passed.*; inside conftest\.py:\d+ in <lambda>"
    ),
    WRONG_INTERFACE: fault("one rank takes an interface that is not there", "failed", r"RuntimeError: .*nowhere0"),
    DIES: fault("one rank dies where the group forms", "died", r"the worker ended with exit code 7"),
}


@pytest.fixture(scope="module", params=FAULTS, ids=["hangs", "wrong_interface", "dies"])
def broken(request, tmp_path_factory):
    suite = make_suite(tmp_path_factory.mktemp("formation"), "passes", "runs_without_group", conftest=request.param)
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: {DEADLINE_S}\n")
    return FAULTS[request.param], torchrun(suite)


def test_the_rank_and_the_step_are_named_and_its_peer_is_a_victim(broken, seen):
    one, ended = broken
    seen.row(one, ended, attempt=0)
    for attempt in (0, 1):
        assert ended.outcomes_by_rank(FORMATION, attempt) == {0: "victim", 1: one.ends_in}


def test_what_needs_no_group_still_runs_and_the_rest_does_not(broken):
    _, ended = broken
    assert ended.outcomes() == {"test_value": "not run", "test_alone": "passed"}
    assert ended.row("test_value").message == f"no process group: 2 formations in a row failed (see {FORMATION})"
    assert ended.outcomes_by_rank(FORMATION) == {0: "passed", 1: "passed"}


def test_the_run_is_rejected(broken):
    _, ended = broken
    assert ended.rank_exit_codes == {0: 1, 1: 1}, ended.output
    assert ended.verdict_line.startswith("REJECTED: ")


INVISIBLE = Fault(
    "one GPU invisible to its rank",
    "failed",
    FORMATION,
    r"rank 1 \(.*\): failed in opening the device of attempt 1: RuntimeError: local rank 1 has no GPU: torch sees 1 on this node",
    (1,),
)


@pytest.fixture(scope="module")
def invisible(tmp_path_factory):
    suite = make_suite(tmp_path_factory.mktemp("invisible"), "passes", "runs_without_group", "gathers_alone", conftest=SEES_ONE_GPU)
    return torchrun(suite)


def test_a_rank_without_its_gpu_is_named_and_its_peers_are_victims(invisible, seen):
    seen.row(INVISIBLE, invisible, attempt=0)
    assert [invisible.outcomes_by_rank(FORMATION, attempt) for attempt in range(3)] == [
        {0: "victim", 1: "failed"},
        {0: "victim", 1: "failed"},
        {0: "passed", 1: "failed"},
    ]


def test_what_needs_no_group_is_measured_on_the_others(invisible):
    assert invisible.outcomes_by_rank("test_alone") == {0: "passed", 1: "not run"}
    assert [figure.value for record in invisible.row("test_alone").attempts[0].ranks for figure in record.figures] == [5.0]
    assert invisible.row("test_alone").outcome == "not measured"
    assert "rank 1" in invisible.row("test_alone").message
    assert "no worker: none could be started (see world_formation)" in invisible.row("test_alone").message


def test_what_gathers_from_a_rank_without_a_worker_says_so(invisible):
    row = invisible.row("test_gathers_alone")
    assert row.outcome == "error"
    assert "RuntimeError: gather of 'rank': rank 1 without a worker, see world_formation" in row.message


def test_a_run_with_a_rank_without_its_gpu_is_rejected(invisible):
    assert invisible.verdict_line.startswith("REJECTED: world formation failed")
    assert invisible.rank_exit_codes == {0: 1, 1: 1}
