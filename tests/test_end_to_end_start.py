"""Obstacles to the start of our own worker: the run works all the same, or is INCOMPLETE and says why."""

import pytest
from suite import make_suite, torchrun

from gpu_acceptance.verdict.reasons import FORMATION

pytestmark = pytest.mark.launcher

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
from gpu_acceptance.measure.train import sampler


def test_value(ranks, check):
    found = sampler.measure(16, num_workers=1, drop_last=False, device=ranks.device, num_epochs=1)
    check("passes.value", float(found.workers[0].num_started and not found.workers[0].fault), "GB/s")
"""


def test_workers_of_a_loader_start_in_a_long_tmpdir(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    (suite / "acceptance" / "test_passes.py").write_text(READS_BY_A_WORKER)
    long = tmp_path / ("x" * 100)
    long.mkdir()
    ended = torchrun(suite, env={"TMPDIR": str(long)})
    assert ended.returncode == 0, ended.output
    assert ended.outcomes() == {"test_value": "passed"}


@pytest.mark.parametrize("without_pidfd", [False, True], ids=["brackets in its path", "no pidfd_open in its Python"])
def test_a_run_that_works_all_the_same(tmp_path, without_pidfd):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PIDFD)
    ended = torchrun(
        make_suite(tmp_path / ("suite" if without_pidfd else "feature x [a]::b"), "passes"),
        env={"PYTHONPATH": str(tmp_path)} if without_pidfd else {},
    )
    assert ended.returncode == 0, ended.output
    assert ended.outcomes() == {"test_value": "passed"}
