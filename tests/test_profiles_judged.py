"""Each GPU profile by the judge of a run: a slow GPU among its neighbours is named, one or two GPUs and sound boards are accepted."""

from dataclasses import replace

import pytest
from test_shipped_profiles import DEVICES, DIRECTORY

from gpu_acceptance.thresholds.limit import matching_reason
from gpu_acceptance.thresholds.profile import load_profile
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_attempt, make_job, make_plan

pytestmark = pytest.mark.repository


@pytest.mark.parametrize("name", DEVICES)
def test_a_gpu_that_is_7_percent_slower_than_its_seven_neighbours_is_rejected_by_name(name):
    """By `peers` of each memory kernel, whatever its floor is; eight that are alike are accepted."""
    shipped, job = load_profile(name, DIRECTORY), make_job(8, model=DEVICES[name])
    limits = {metric: limit for metric, limit in shipped.limits.items() if limit.subject == "hbm" and limit.peers}
    assert [metric.split(".")[1] for metric in limits] == ["copy", "scale", "add", "triad", "read", "write"]
    profile = replace(shipped, limits=limits, requires=frozenset({"hbm"}))

    def judged(slow):
        values = {metric: dict.fromkeys(range(8), limit.ceiling) | {5: limit.ceiling * slow} for metric, limit in limits.items()}
        attempts = {metric: make_attempt(values[metric], metric=metric, spread=0.1) for metric in limits}
        rows = [make_row(f"acceptance/test_hbm.py::test_{metric}", [one], profile, job, {}, 60.0) for metric, one in attempts.items()]
        return conclude(make_plan(profile), job, rows)

    assert judged(slow=1).verdict == "ACCEPTED"
    conclusion = judged(slow=0.93)
    assert conclusion.verdict == "REJECTED"
    for metric in limits:
        named = [reason for reason in conclusion.reasons if f": {metric} = " in reason and "7 % below its peers' median" in reason]
        assert len(named) == 1, conclusion.reasons
        assert "rank 5 (node-00, GPU 5, serial 16539" in named[0]


UNCLOCKED = ["a10g", "b200", "b300", "gb200", "gb300", "rtx-pro-6000-server", "rtx-pro-6000-workstation"]  # l40s and maxq: no source


@pytest.mark.parametrize("name", UNCLOCKED)
def test_products_15_percent_slower_than_those_of_seven_neighbours_are_rejected_where_no_clock_is_judged(name):
    shipped, job = load_profile(name, DIRECTORY), make_job(8, model=DEVICES[name])
    assert matching_reason("gemm.bf16.cycle_efficiency", shipped.not_applicable)
    limit = shipped.limits["gemm.bf16.sustained"]
    profile = replace(shipped, limits={limit.metric: limit}, requires=frozenset({"gemm"}))

    def verdict(slow):
        values = dict.fromkeys(range(8), 0.95 * limit.ceiling) | {5: 0.95 * limit.ceiling * slow}
        attempt = make_attempt(values, metric=limit.metric, unit=limit.unit, spread=0.1)
        row = make_row("acceptance/test_gemm.py::test_bf16", [attempt], profile, job, {}, 60.0)
        return conclude(make_plan(profile), job, [row]).verdict

    assert [verdict(1), verdict(0.95), verdict(0.85)] == ["ACCEPTED", "ACCEPTED", "REJECTED"]


@pytest.mark.parametrize("name", DEVICES)
def test_one_gpu_or_two_can_be_accepted(name):
    """Three units are needed to name the odd one: a limit of `peers` alone would leave one or two GPUs INCOMPLETE for ever."""
    profile = load_profile(name, DIRECTORY)
    held = [limit for metric, limit in profile.limits.items() if limit.peers and not matching_reason(metric, profile.not_applicable)]
    assert [limit.metric for limit in held if limit.at_least is None] == []


@pytest.mark.parametrize(
    ("name", "gpus", "metric", "reading"),
    [
        ("a100-sxm", 8, "pcie.h2d.bandwidth", 12),  # AWS p4de: Gen3 hosts
        ("a100-sxm-40gb", 8, "pcie.h2d.bandwidth", 12),  # AWS p4d
        ("h100-sxm", 8, "pcie.h2d.bandwidth", 26.3),  # AWS p5: Gen5 GPUs behind Gen4 ports
        ("h100-sxm", 8, "pcie.d2h.bandwidth", 26.3),
        ("a100-sxm", 4, "p2p.unidirectional.out.bandwidth", 90),  # a board of 4 A100: 4 of 12 links join two
        ("a100-sxm-40gb", 4, "p2p.unidirectional.in.bandwidth", 90),
        ("h100-sxm-4gpu", 4, "p2p.bidirectional.out.bandwidth", 130.4),  # NVIDIA/cuda-samples issue 392, 6 of 18 links
    ],
)
def test_a_sound_machine_of_another_build_is_not_rejected(name, gpus, metric, reading):
    limit, job = load_profile(name, DIRECTORY).limits[metric], make_job(gpus, model=load_profile(name, DIRECTORY).device_name)
    profile = replace(load_profile(name, DIRECTORY), limits={metric: limit}, requires=frozenset({limit.subject}))
    attempt = make_attempt(dict.fromkeys(range(gpus), reading), metric=metric, spread=0.1)
    row = make_row(f"acceptance/test_{limit.subject}.py::test_a", [attempt], profile, job, {}, 60.0)
    assert conclude(make_plan(profile), job, [row]).line.startswith("ACCEPTED")


def test_a_reading_of_another_gpu_is_derived_and_not_published():
    for name, board in {"b200": "GB200", "b300": "GB200", "gb300": "GB200"}.items():
        limits = load_profile(name, DIRECTORY).limits.values()
        assert [limit.metric for limit in limits if limit.source.startswith("published") and board in limit.source] == []


@pytest.mark.parametrize("edition", ["workstation", "maxq"])
def test_an_rtx_pro_6000_with_displays_tells_no_mig_mode_and_is_delivered_with_ecc_off(edition):
    """nvidia-smi of both shows MIG `N/A` and ECC `Off`; of the server edition `Disabled` and 0 errors."""
    profile, server = (load_profile(f"rtx-pro-6000-{one}", DIRECTORY) for one in (edition, "server"))
    for metric in ("gpu_health.modes.mig", "gpu_health.modes.mig_after_reset"):
        assert matching_reason(metric, profile.not_applicable)
        assert not matching_reason(metric, server.not_applicable)
    assert profile.limits["gpu_health.ecc.on"].equals is True
    assert "delivered with ECC off" in profile.limits["gpu_health.ecc.on"].remedy
    assert profile.limits["environment.gpu.sm_count"].equals == 188
