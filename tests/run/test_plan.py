"""`--plan`: validations, limits, time, and the lines of a contract."""

from datetime import UTC, datetime

import pytest

from gpu_acceptance.control.rank import Rank
from gpu_acceptance.run.plan import JobShape, contract_lines, plan_lines, planned_shape
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.thresholds.contract import Contract, ContractLine
from gpu_acceptance.thresholds.limit import Change, Limit, Profile
from tests.judging import make_limit, make_profile

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def limit_of(metric: str, **bounds) -> Limit:
    return Limit(metric, "GB/s", "rank", "policy: for a test", "x.yaml", **bounds)


def plan(limits: list[Limit], *, ranks: int = 8, waivers: dict | None = None, **profile) -> list[str]:
    by_metric = {limit.metric: limit for limit in limits}
    made = Profile("x", "A GPU", frozenset({"hbm"}), by_metric, {}, 60.0, expected_s={"hbm": 5}, **profile)
    names = {"acceptance/test_hbm.py::test_a": 60.0, "acceptance/test_p2p.py::test_b": 90.5}
    validations = [Validation(nodeid=nodeid, deadline_s=deadline_s) for nodeid, deadline_s in names.items()]
    return list(plan_lines(made, JobShape(ranks, 1), validations, waivers or {}, NOW))


def test_the_job_the_validations_and_the_end():
    lines = plan([])
    assert lines == [
        "profile x (A GPU), level full, 8 ranks on each of 1 node",
        "  acceptance/test_hbm.py::test_a: 5 s expected, deadline 60 s",
        "  acceptance/test_p2p.py::test_b: duration not known, deadline 90.5 s",
        "expected: 5 s of validations, end about 12:00:05 UTC if started now; 1 validation of unknown duration not counted",
    ]


def test_a_limit_by_size_shows_the_bound_of_this_job():
    (line,) = plan([limit_of("hbm.copy.bandwidth", at_least={4: 1, 8: 2.5}, at_most=9)])[3:-1]
    assert line == "  hbm.copy.bandwidth: >= 2.5, <= 9 GB/s (rank) [x.yaml: policy: for a test]"


@pytest.mark.parametrize(
    ("limit", "shapes"),
    [
        ({"at_least": {4: 1, 8: 2}}, "GPUs per node: 4, 8; nodes: any"),
        (
            {"at_least": 1, "min_ranks": 4, "min_ranks_per_node": 3},
            "GPUs per node: any; nodes: any; ranks: 4 or more; ranks per node: 3 or more",
        ),
    ],
)
def test_a_limit_that_does_not_apply_names_its_jobs(limit, shapes):
    (line,) = plan([limit_of("hbm.copy.bandwidth", **limit)], ranks=2)[3:-1]
    assert line == f"  hbm.copy.bandwidth: does not apply to this job ({shapes})"


def test_waived_and_not_applicable_limits_say_why():
    limits = [limit_of("hbm.copy.bandwidth", at_least=1), limit_of("p2p.copy.bandwidth", uniform=True)]
    lines = plan(limits, waivers={"hbm.*": "agreed"}, not_applicable={"p2p.*": "one GPU"})[3:-1]
    assert lines == ["  hbm.copy.bandwidth: waived (agreed)", "  p2p.copy.bandwidth: not applicable (one GPU)"]


def test_a_limit_that_is_not_required_says_so():
    (line,) = plan([limit_of("p2p.copy.bandwidth", uniform=True)])[3:-1]
    assert line == "  p2p.copy.bandwidth: equal on all GB/s (rank, not required) [x.yaml: policy: for a test]"


@pytest.mark.parametrize(
    ("place", "num_gpus", "declared", "shape"),
    [
        (Rank(), 8, None, JobShape(8, 1, "one for each GPU")),
        (Rank(), 8, 4, JobShape(4, 1, "as --gpus declares")),
        (Rank(), 0, None, JobShape(2, 1, "as `gpu-acceptance run` starts where there is no GPU")),
        (Rank(world_size=6, local_world_size=3, num_nodes=2, store_port=29400), 8, None, JobShape(3, 2)),
    ],
)
def test_the_job_that_is_planned(place, num_gpus, declared, shape):
    assert planned_shape(place, num_gpus, declared) == shape


def test_training_data_and_the_reason_for_the_size_are_said():
    made = Profile("cpu", None, frozenset(), {}, {}, 60.0)
    shape = planned_shape(Rank(), 0, None)
    first, trained, tuned, _ = plan_lines(made, shape, [], {}, NOW, "gpt2: tokens.npy", "a model: on calls.jsonl")
    assert first == "profile cpu (no GPU), level full, 2 ranks on each of 1 node, as `gpu-acceptance run` starts where there is no GPU"
    assert (trained, tuned) == ("training data: gpt2: tokens.npy", "fine-tuning: a model: on calls.jsonl")


def test_subjects_outside_the_level_are_not_tested():
    levels = {"quick": {"hbm": 5.0}, "full": {"hbm": 5.0, "p2p": 5.0}}
    lines = plan([limit_of("hbm.copy.bandwidth", at_least=1), limit_of("p2p.copy.bandwidth", at_least=1)], levels=levels, level="quick")
    assert "  p2p.copy.bandwidth: not tested: not part of level quick" in lines


def test_bounds_that_an_overlay_dropped_or_loosened_stand_at_the_top_those_dropped_first():
    keys = {"loosened": "hbm.add.bandwidth at_least", "tightened": "hbm.read.bandwidth at_least", "dropped": "hbm.copy.bandwidth at_least"}
    changes = tuple(Change(kind, key, "5", "0", "mine.yaml", "0") for kind, key in keys.items())
    lines = plan([limit_of("hbm.copy.bandwidth", at_least=0)], changes=changes)
    assert lines[1:3] == [
        "  dropped by mine.yaml: hbm.copy.bandwidth at_least, 5 -> 0",
        "  loosened by mine.yaml: hbm.add.bandwidth at_least, 5 -> 0",
    ]
    assert not any("tightened" in line for line in lines)


SHORT_PROFILE = make_profile(
    make_limit("hbm.triad.bandwidth"),
    make_limit("nccl.all_reduce.busbw", nodes="several", scope="job"),
    make_limit("train.gpt2.loss", at_most=2),
    requires=frozenset({"hbm", "nccl"}),
)
LINES = (
    ContractLine(number="1", text="memory", metrics=("hbm.*",), at_least=120, unit="GB/s"),
    ContractLine(number="2", text="network", metrics=("nccl.*",)),
    ContractLine(number="3", text="training", metrics=("train.*",)),
    ContractLine(number="4", text="service", not_tested="no matter of a test"),
)


def planned_contract(num_nodes, waivers=None):
    contract = Contract(file="c.yaml", sha256="ab" * 32, lines=LINES)
    return list(contract_lines(contract, SHORT_PROFILE, JobShape(8, num_nodes), waivers or {}))


def test_lines_of_a_contract_are_answered_or_say_why_not():
    assert planned_contract(1) == [
        "contract c.yaml: 4 lines",
        "  1: hbm.*, >= 120 GB/s",
        "  2: will not be tested: nccl.* is not part of this run",
        "  3: will not be tested: train.* is not part of this run",
        "  4: will not be tested: no matter of a test",
    ]


def test_more_nodes_answer_more_lines_and_a_waiver_fewer():
    assert planned_contract(2, {"hbm.*": "agreed"})[1:3] == [
        "  1: will not be tested: waived (agreed): hbm.triad.bandwidth: never measured",
        "  2: nccl.*",
    ]
