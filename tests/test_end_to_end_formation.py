"""A worker that cannot start, and a process group that cannot be formed: the rank and its step are named, and the rest still runs."""

from concurrent.futures import ThreadPoolExecutor

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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Conftest -> the end of a run with it, once it is there: one of them waits for two deadlines, and the others go on beside it."""

    def run(conftest):
        suite = make_suite(tmp_path_factory.mktemp("formation"), "passes", "runs_without_group", conftest=conftest)
        (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: {DEADLINE_S}\n")
        return torchrun(suite)

    with ThreadPoolExecutor(max_workers=2) as pool:
        ended = {conftest: pool.submit(run, conftest) for conftest in FAULTS}
        yield lambda conftest: ended[conftest].result()


@pytest.fixture(params=[WRONG_INTERFACE, DIES, HANGS], ids=["wrong_interface", "dies", "hangs"])
def broken(request, runs):
    return FAULTS[request.param], runs(request.param)


def test_the_rank_and_the_step_are_named_and_what_needs_no_group_still_runs(broken, seen):
    """Its peer is a victim, the rest does not run, and the run is rejected."""
    one, ended = broken
    seen.row(one, ended, attempt=0)
    for attempt in (0, 1):
        assert ended.outcomes_by_rank(FORMATION, attempt) == {0: "victim", 1: one.ends_in}
    assert ended.outcomes() == {"test_value": "not run", "test_alone": "passed"}
    assert ended.row("test_value").message == f"no process group: 2 formations in a row failed (see {FORMATION})"
    assert ended.outcomes_by_rank(FORMATION) == {0: "passed", 1: "passed"}
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
    assert invisible.verdict_line.startswith("REJECTED: world formation failed")
    assert invisible.rank_exit_codes == {0: 1, 1: 1}


def test_what_needs_no_group_is_measured_on_the_others_and_what_gathers_from_it_says_so(invisible):
    assert invisible.outcomes_by_rank("test_alone") == {0: "passed", 1: "not run"}
    assert [figure.value for record in invisible.row("test_alone").attempts[0].ranks for figure in record.figures] == [5.0]
    assert invisible.row("test_alone").outcome == "not measured"
    assert "rank 1" in invisible.row("test_alone").message
    assert "no worker: none could be started (see world_formation)" in invisible.row("test_alone").message
    row = invisible.row("test_gathers_alone")
    assert row.outcome == "error"
    assert "RuntimeError: gather of 'rank': rank 1 without a worker, see world_formation" in row.message


LACKS_A_LIBRARY = """
import os

if os.environ.get("RANK") == "1" and "GPU_ACCEPTANCE_SUPERVISOR" in os.environ:
    raise ImportError("libexample.so.1: cannot open shared object file")
"""
HAS_NO_PYTHON = """
import os, sys


def pytest_collection_finish():
    if os.environ.get("RANK") == "1" and "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
        sys.executable = "/nowhere/python"
"""
NOT_EVEN_THE_FIRST = """
import os, sys

if os.environ.get("RANK") == "1" and "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
    sys.executable = "/nowhere/python"
"""
WITHOUT_PIDFD = """
import os, signal

del os.pidfd_open, signal.pidfd_send_signal
"""


@pytest.mark.parametrize(
    ("conftest", "text"),
    [
        (
            LACKS_A_LIBRARY,
            "the worker ended with exit code 4 before it opened a device: E   ImportError: libexample.so.1: cannot open shared object file",
        ),
        (HAS_NO_PYTHON, "the worker could not be started: no process could be started: No such file or directory"),
    ],
    ids=["import", "no process"],
)
def test_a_worker_that_cannot_start_says_nothing_about_a_gpu(tmp_path, conftest, text):
    ended = torchrun(make_suite(tmp_path, "passes", conftest=conftest))
    assert ended.rank_exit_codes == {0: 5, 1: 5}, ended.output  # nothing ran
    assert ended.verdict_line.startswith("INCOMPLETE: world formation in error")
    assert f"error in starting the worker of attempt 1: {text}" in ended.row(FORMATION).message, ended.row(FORMATION).message
    assert ended.outcomes_by_rank(FORMATION, 0) == {0: "victim", 1: "error"}


def test_a_rank_that_can_start_no_process_at_all_keeps_all_from_running(tmp_path):
    ended = torchrun(make_suite(tmp_path, "passes", conftest=NOT_EVEN_THE_FIRST))
    assert set(ended.rank_exit_codes.values()) <= {6, -15}, ended.output
    assert (
        "rank 1 cannot take part: no temporary folder could be made, or no process started: [Errno 2] No such file or directory: '/nowhere/"
        in ended.output
    )
    assert not ended.has_results


READS_BY_A_WORKER = """
import os
from gpu_acceptance.measure.train import loader


def test_value(ranks, check):
    found = loader.measure_epochs(16, num_workers=1, drop_last=False, device=ranks.device, num_epochs=1)
    check("passes.value", float(found.workers[0].num_started and not found.workers[0].fault), "GB/s")
"""


def test_a_run_with_brackets_in_its_path_and_a_long_tmpdir_works_and_its_loader_starts_workers(tmp_path):
    suite = make_suite(tmp_path / "feature x [a]::b", "passes")
    (suite / "acceptance" / "test_passes.py").write_text(READS_BY_A_WORKER)
    long = tmp_path / ("x" * 100)
    long.mkdir()
    ended = torchrun(suite, env={"TMPDIR": str(long)})
    assert ended.returncode == 0, ended.output
    assert ended.outcomes() == {"test_value": "passed"}


def test_a_run_without_pidfd_open_works_all_the_same(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PIDFD)
    ended = torchrun(make_suite(tmp_path / "suite", "passes"), env={"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == 0, ended.output
    assert ended.outcomes() == {"test_value": "passed"}
