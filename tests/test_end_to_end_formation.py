"""A process group that cannot be formed: the rank to blame and its step are named, and what needs no group still runs."""

import re

import pytest
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
# fault -> outcome of rank 1 and of the formation; what is said of it
FAULTS = {
    HANGS: ("stuck", rf"stuck in forming the group of attempt 1: deadline of {DEADLINE_S} s passed.*; inside conftest\.py:\d+ in <lambda>"),
    WRONG_INTERFACE: ("failed", r"failed in forming the group of attempt 1: RuntimeError: .*nowhere0"),
    DIES: ("died", r"died in forming the group of attempt 1: the worker ended with exit code 7"),
}
NAMES = ["hangs", "wrong_interface", "dies"]


@pytest.fixture(scope="module", params=FAULTS, ids=NAMES)
def broken(request, tmp_path_factory):
    suite = make_suite(tmp_path_factory.mktemp("formation"), "passes", "runs_without_group")
    (suite / "acceptance" / "conftest.py").write_text(request.param)
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: {DEADLINE_S}\n")
    return FAULTS[request.param], torchrun(suite)


def test_the_rank_and_the_step_are_named_and_its_peer_is_a_victim(broken):
    (outcome, said), ended = broken
    row = ended.row(FORMATION)
    assert row.outcome == outcome
    assert re.match(rf"rank 1 \(.*\): {said}", row.message, re.DOTALL), row.message
    for attempt in (0, 1):
        assert ended.outcomes_by_rank(FORMATION, attempt) == {0: "victim", 1: outcome}


def test_what_needs_no_group_still_runs_and_the_rest_does_not(broken):
    _, ended = broken
    assert ended.outcomes() == {"test_value": "not run", "test_alone": "passed"}
    assert ended.row("test_value").message == f"no process group: 2 formations in a row failed (see {FORMATION})"
    assert ended.outcomes_by_rank(FORMATION) == {0: "passed", 1: "passed"}


def test_the_run_is_rejected(broken):
    _, ended = broken
    assert ended.rank_exit_codes == {0: 1, 1: 1}, ended.output
    assert ended.verdict_line.startswith("REJECTED: ")
