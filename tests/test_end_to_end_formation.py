"""A process group that cannot be formed: the rank to blame and its step are named, and what needs no group still runs."""

import pytest
from faults import Fault
from suite import make_suite, torchrun

from gpu_acceptance.verdict import FORMATION

pytestmark = pytest.mark.launcher

DEADLINE_S = 25
# How rank 1 of 2 is broken by its conftest, in its supervisor (whose environment the worker gets) or in its worker.
HANGS = """
import os, signal
import torch.distributed as dist

if os.environ["RANK"] == "1" and "GPU_ACCEPTANCE_SUPERVISOR" in os.environ:
    dist.init_process_group = lambda **arguments: signal.pause()
"""
WRONG_INTERFACE = """
import os

if os.environ["RANK"] == "1":
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
"""
DIES = """
import os
import torch.distributed as dist

if os.environ["RANK"] == "1" and "GPU_ACCEPTANCE_SUPERVISOR" in os.environ:
    dist.init_process_group = lambda **arguments: os._exit(7)
"""


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
    suite = make_suite(tmp_path_factory.mktemp("formation"), "passes", "runs_without_group")
    (suite / "acceptance" / "conftest.py").write_text(request.param)
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
