"""The launcher of a job in which one rank dies ends all others within seconds, names it, and leaves no process.

A small job of its own under torchrun, over all GPUs and nodes of this one: its last rank dies while all others wait in a collective.
"""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.measure.failure import blame

pytestmark = [pytest.mark.no_group, pytest.mark.deadline(150)]  # 60 s to start, 40 s until it is killed, and time to kill


@pytest.fixture
def judge(ranks, failing_job, check):
    """Checks the end of the job on this node."""

    def judge_way(way):
        found = failing_job(way)
        missing = Missing(Why.NOT_THERE, found.problem) if found.end_s is None else None
        is_wrong = found.blamed != blame(ranks.world_size - 1, way)
        check(f"failure_propagation.{way}.end_s", missing or found.end_s, "s", detail=found.problem)
        check(f"failure_propagation.{way}.processes_left", missing or found.num_left, "count")
        check(f"failure_propagation.{way}.misnamed", missing or int(is_wrong), "count", detail=found.blamed or "no rank named")

    return judge_way


@pytest.fixture
def asked(parameter):
    """Skips the second way to die if one is enough, which the profile has declared."""
    if not parameter("failure_propagation.exits"):
        pytest.skip("the parameter failure_propagation.exits is false")


@pytest.mark.usefixtures("asked")
def test_exit(judge):
    """A rank that exits with a code ends all others, and is named with its code."""
    judge("exit")


def test_kill(judge):
    """A rank that SIGKILL ends, as the kernel sends it when memory is short, ends all others, and is named with the signal."""
    judge("kill")
