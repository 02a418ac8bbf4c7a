"""The markers of a validation and the conditions of its limits agree about the size of a job."""

import ast
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.thresholds.profile import profile_names, shipped_dir
from gpu_acceptance.verdict.attempts import too_small
from tests.judging import make_job, shipped_profile

pytestmark = pytest.mark.repository

ACCEPTANCE = sorted((Path(__file__).parents[1] / "acceptance").glob("test_*.py"))
SHAPES = [(size, num_nodes) for size in range(1, 17) for num_nodes in (1, 2, 3)]
INSIDE = {  # figures that a validation has in larger jobs alone: ranks of the job, and of a node
    "checkpoint.*.fewer.*": (2, 1),
    "soak.nccl.*": (2, 1),
    "nccl.transport.intranode": (2, 2),
    "nic.loopback.*": (2, 2),
    "localise.inside.*": (2, 2),
    "localise.rail.deficit": (2, 2),
    "p2p.*.path": (3, 3),
}
BY_PHYSICS = {"nccl.all_reduce.algorithm"}  # NCCL reduces in the switch from some size on


def marked(*nodes):
    """A validation with the markers of its size that are written in these parts of its file."""
    calls = [node for one in nodes for node in ast.walk(one) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    least = {call.func.attr: ast.literal_eval(call.args[0]) for call in calls if call.func.attr.startswith("min_")}
    return Validation(nodeid="", deadline_s=60.0, **least)


@cache
def validations():
    """Subject -> the validations of its file."""
    found = {}
    for path in ACCEPTANCE:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        of_all = [node.value for node in body if isinstance(node, ast.Assign) and node.targets[0].id == "pytestmark"]
        tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        found[subject_of(path.name)] = [marked(*of_all, *test.decorator_list) for test in tests]
    return found


@cache
def subjects_in(size, num_nodes):
    """Those of which something runs."""
    job = make_job(size * num_nodes, size)
    return {subject for subject, rows in validations().items() if not all(too_small(row, job) for row in rows)}


def is_taken(metric, size, num_nodes):
    least = next((least for glob, least in INSIDE.items() if fnmatchcase(metric, glob)), (1, 1))
    return size * num_nodes >= least[0] and size >= least[1]


def test_all_markers_are_found():
    assert {subject for subject, rows in validations().items() if not rows} == set()
    assert {subject for subject in validations() if subject not in subjects_in(1, 3)} == {"p2p"}
    assert {"ddp_scaling", "fsdp", "nccl"} < validations().keys() - subjects_in(1, 1)
    assert validations().keys() - subjects_in(8, 1) == {"connectivity", "nccl_scaling"}


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_a_limit_applies_where_its_validation_has_the_figure(name):
    shipped = shipped_profile(name).limits
    assert {
        metric for metric, limit in shipped.items() if limit.world
    } <= BY_PHYSICS  # none lists sizes to say that there must be a second GPU
    limits = [limit for limit in shipped.values() if limit.subject in validations()]
    for size, num_nodes in SHAPES:
        for limit in limits:
            runs = limit.subject in subjects_in(size, num_nodes) and is_taken(limit.metric, size, num_nodes)
            asked = limit.covers(size, num_nodes) and limit.nodes in ("any", "one" if num_nodes == 1 else "several")
            assert limit.applies(size, num_nodes) == (runs and asked), (limit.metric, size, num_nodes)


def test_each_exception_is_of_something():
    metrics = {metric for name in profile_names(shipped_dir()) for metric in shipped_profile(name).limits}
    assert [glob for glob in INSIDE if not any(fnmatchcase(metric, glob) for metric in metrics)] == []
