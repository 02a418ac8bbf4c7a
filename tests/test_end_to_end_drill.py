"""`gpu-acceptance drill` in real processes of two ranks: what is planted is found and laid on its rank, and the run accepts nothing."""

import pytest
from faults import assert_nothing_left
from suite import PYTHON, run, shipped_suite

from gpu_acceptance.verdict.drills import State, planted_faults

pytestmark = pytest.mark.launcher

PROGRAM = [PYTHON, "-m", "gpu_acceptance"]
UNFOUND = '''
"""Proves nothing about the fault that its drill plants."""

import pytest


@pytest.mark.drill("memory of which nothing is read", "memory.fill.wrong", parameters={"memory.planted_words": 1})
def test_blind(check):
    """One rate is there."""
    check("memory.fill.wrong", 0, "words")
'''


@pytest.fixture(scope="module")
def drilled(tmp_path_factory):
    suite = shipped_suite(tmp_path_factory.mktemp("drill"), "memory", "nccl_exact", "gemm", "ddp_short", "environment")
    return run([*PROGRAM, "drill", "--ranks=2"], suite)


def test_every_fault_is_found_and_laid_on_its_rank(drilled):
    assert drilled.returncode == 0, drilled.output
    found = planted_faults(drilled.record.plan, drilled.record.rows)
    assert {(one.state, one.accused) for one in found} == {(State.FOUND, ())}, [(one.nodeid, one.ending) for one in found]
    assert {one.plant.rank for one in found} == {0, 1, None}
    assert {one.plant.plant for one in found} == {"", "products", "weights", "no reduction"}
    assert "a word changes while it is held, rank 1: found by memory.fill.wrong (" in drilled.output
    assert "To do:" not in drilled.output
    assert_nothing_left(drilled.suite)


def test_its_record_accepts_nothing(drilled):
    conclusion = drilled.record.conclusion
    assert (conclusion.verdict, conclusion.exit_code) == ("INCOMPLETE", 6)
    num = len(drilled.record.plan.validations) - 1  # without the formation
    assert drilled.verdict_line.startswith(f"INCOMPLETE: a drill accepts nothing: {num} of {num} planted faults found")
    again = run([*PROGRAM, "verdict", str(drilled.folder)], drilled.suite)
    assert (again.returncode, "a drill accepts nothing" in again.output) == (6, True)


def test_a_validation_that_is_blind_to_its_fault_is_told(tmp_path):
    suite = shipped_suite(tmp_path, "environment")
    (suite / "acceptance" / "test_memory.py").write_text(UNFOUND)
    blind = run([*PROGRAM, "drill", "--ranks=2", "--minutes=5"], suite)
    assert blind.returncode == 1, blind.output
    told = "memory of which nothing is read, rank 1: not found: no limit of memory.fill.wrong was missed"
    assert told in blind.output


def test_the_plan_of_a_drill_lists_its_faults(tmp_path):
    suite = shipped_suite(tmp_path, "memory", "environment")
    planned = run([*PROGRAM, "drill", "--plan"], suite)
    assert planned.returncode == 0, planned.output
    assert "test_patterns[a word changes while it is held, rank 1]" in planned.output
    assert "test_versions" not in planned.output
