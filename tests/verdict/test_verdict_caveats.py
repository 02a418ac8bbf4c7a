"""Caveats of a run in the verdict line and its reasons: not tested, waived, not applicable."""

from dataclasses import replace

import pytest

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.record.run_record import PlannedValidation
from gpu_acceptance.thresholds.limit import Change, FarBound
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row
from tests.judging import (
    make_attempt,
    make_identity,
    make_job,
    make_limit,
    make_profile,
    make_record,
)
from tests.verdict.test_verdict import GEMM, PROFILE, bare_row, of_gemm, row_of, verdict_of, verdict_over


def half_job():
    return Job(tuple(identity.model_copy(update={"world_size": 4, "local_world_size": 4}) for identity in make_job(8).ranks[:4]))


def with_ranks(job, **update):
    return Job(tuple(one.model_copy(update=update) for one in job.ranks))


def of_half_of_each_node():
    ranks = tuple(identity.model_copy(update={"gpus": make_identity(4 * identity.node, 8, 4).gpus}) for identity in make_job(4, 2).ranks)
    return Job(tuple(identity.model_copy(update={"gpu_uuid": identity.gpus[identity.local_rank].uuid}) for identity in ranks))


def of_one_gpu_on_two_nodes():
    first, *others = make_job(4, 2).ranks
    twice = [one.model_copy(update={"gpus": (first.gpus[0], one.gpus[1])}) for one in others[1:]]
    twice[0] = twice[0].model_copy(update={"gpu_uuid": first.gpu_uuid})
    return Job((first, others[0], *twice))


def of_one_node_twice():
    gpus = make_identity(0, 2, 2).gpus
    return Job(tuple(one.model_copy(update={"gpus": gpus, "gpu_uuid": gpus[one.local_rank].uuid}) for one in make_job(4, 2).ranks))


def on_a_board(nvlink_to, job):
    """NVLinks of all GPUs lead there."""
    gpus = [tuple(gpu.model_copy(update={"nvlink_to": nvlink_to}) for gpu in one.gpus) for one in job.ranks]
    return Job(tuple(one.model_copy(update={"gpus": found}) for one, found in zip(job.ranks, gpus, strict=True)))


def bus_shows(num_gpus, job):
    return with_ranks(job, num_gpus_on_bus=num_gpus)


CPU = replace(PROFILE, name="cpu", device_name=None)
WITHOUT_SWITCHES = replace(PROFILE, name="h200-sxm-4gpu", nvlink_to="gpu")
B200 = replace(PROFILE, device_name="NVIDIA B200")
NOTHING_REQUIRED = make_profile(make_limit(), requires=frozenset())


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"job": half_job()}, "INCOMPLETE: no rank opened GPUs 4-7 of node-00 (4 of 8 GPUs)"),
        ({"job": half_job(), "declared_gpus": 4}, "ACCEPTED for 4 of 8 GPUs"),
        ({"job": half_job(), "declared_gpus": 6}, "INCOMPLETE: ranks opened 4 of 6 declared GPUs of node-00 (4 of 8 GPUs)"),
        ({"expected_nodes": 1}, "ACCEPTED"),
        ({"expected_nodes": 3}, "INCOMPLETE: 1 node took part, and --expect-nodes wants 3"),
        ({"job": of_one_gpu_on_two_nodes()}, "INCOMPLETE: node-00 and node-01 opened the same GPU 0"),
        ({"job": of_one_node_twice()}, "INCOMPLETE: node-00 and node-01 opened the same GPUs 0-1"),
        ({"job": bus_shows(10, make_job(4))}, "INCOMPLETE: no rank opened 6 GPUs of node-00, unseen by NVML (4 of 10 GPUs)"),
        ({"job": bus_shows(10, half_job())}, "INCOMPLETE: no rank opened GPUs 4-7 of node-00 and 2 unseen by NVML (4 of 10 GPUs)"),
        ({"job": with_ranks(make_job(4), gpu_uuid="GPU-0-0")}, "INCOMPLETE: no rank opened GPUs 1-3 of node-00 (1 of 4 GPUs)"),
        ({"profile": B200}, "INCOMPLETE: profile h200-sxm is for NVIDIA B200, and there is NVIDIA H200 on ranks 0-3"),
        *(({"profile": WITHOUT_SWITCHES, "job": on_a_board(end, make_job(4))}, "ACCEPTED") for end in ("gpu", "")),
        (
            {"profile": WITHOUT_SWITCHES, "job": on_a_board("switch", make_job(4))},
            "INCOMPLETE: profile h200-sxm-4gpu is for NVIDIA H200 on a board without NVLink switches, and there is NVIDIA H200, with "
            "NVLinks to a switch on ranks 0-3",
        ),
        (
            {"job": make_job(4, has_gpus=False)},
            "INCOMPLETE: profile h200-sxm is for NVIDIA H200, and no rank opened a GPU (h200-sxm profile: no GPU was tested)",
        ),
        ({"profile": CPU}, "INCOMPLETE: profile cpu is for no GPU, and 4 GPUs can be seen"),
        ({"profile": CPU, "job": make_job(4, has_gpus=False)}, "ACCEPTED (cpu profile: no GPU was tested)"),
    ],
)
def test_what_was_not_tested_is_the_reason_and_in_the_line(facts, line):
    conclusion = verdict_of(**facts)
    reasons = (line.removeprefix("INCOMPLETE: ").split(" (")[0],) if line.startswith("INCOMPLETE") else ()
    assert (conclusion.line, conclusion.reasons) == (line, reasons)


@pytest.mark.parametrize(
    ("facts", "line", "reasons"),
    [
        ({"measure_only": True}, "measured only, not judged", ["measured only: no figure was judged"]),
        ({"profile": NOTHING_REQUIRED}, "no limit held", ["no limit of profile h200-sxm held: nothing was proved"]),
        (
            {"job": of_half_of_each_node()},
            "no rank opened 4 GPUs of 2 nodes (4 of 8 GPUs)",
            ["no rank opened GPUs 2-3 of node-00", "no rank opened GPUs 2-3 of node-01"],
        ),
    ],
)
def test_the_line_is_shorter_than_the_reasons(facts, line, reasons):
    conclusion = verdict_of(**facts)
    assert (conclusion.line, [*conclusion.reasons]) == (f"INCOMPLETE: {line}", reasons)


def test_gpus_without_a_uuid_are_not_taken_for_one():
    job = of_one_node_twice()
    nameless = tuple(gpu.model_copy(update={"uuid": ""}) for gpu in job.ranks[0].gpus)
    assert "opened the same" not in verdict_of(job=with_ranks(job, gpus=nameless)).line


def without_worker(*ranks):
    """A job of four GPUs in which these ranks never got as far as to open theirs."""
    return Job(tuple(one.model_copy(update={"gpu_uuid": ""}) if one.rank in ranks else one for one in make_job(4).ranks))


def test_a_gpu_that_its_rank_never_opened_was_not_tested():
    formation = make_row(FORMATION, [Attempt(number=1, ranks=(make_record(1, Outcome.FAILED),))], PROFILE, without_worker(1), {}, 60.0)
    conclusion = verdict_over([formation, row_of()], job=without_worker(1))
    assert conclusion.line == "REJECTED: world formation failed (3 of 4 GPUs)"
    assert conclusion.coverage.gpus_tested == 3
    assert "no rank opened GPU 1 of node-00" in conclusion.reasons


def test_without_a_worker_no_gpu_was_tested():
    conclusion = verdict_over([bare_row(Outcome.FAILED, FORMATION), bare_row(Outcome.NOT_RUN)], job=without_worker(0, 1, 2, 3))
    assert conclusion.line == "REJECTED: world formation failed (0 of 4 GPUs, h200-sxm profile: no GPU was tested)"


def test_a_silent_rank_is_named():
    conclusion = verdict_of(make_attempt({0: 120.0, 1: 120.0, 2: 120.0}), job=make_job(4, silent=[3]))
    assert conclusion.verdict == "INCOMPLETE"
    assert "no answer from rank 3" in conclusion.reasons
    assert "no rank opened GPU 3 of node-00" in conclusion.reasons


def test_a_limit_that_the_forming_of_the_world_held_alone_accepts_nothing():
    """Counters are read round it as well."""
    conclusion = verdict_over([row_of().model_copy(update={"nodeid": "world_formation"})], job=make_job())
    assert conclusion.coverage.limits_held == conclusion.coverage.limits_expected > 0
    assert (conclusion.line, conclusion.exit_code) == ("INCOMPLETE: nothing ran", 5)


def test_no_rank_at_all():
    conclusion = verdict_over([], job=Job(()))
    assert (conclusion.verdict, conclusion.exit_code) == ("INCOMPLETE", 5)
    assert "no rank registered with the run" in conclusion.reasons


def test_nodes_of_different_size():
    ranks = (*make_job(4).ranks[:3], make_identity(3, 4, 3))
    assert "nodes differ in their number of ranks: 3, 4" in verdict_of(job=Job(ranks)).reasons


# Declared aside

TWO = make_profile(make_limit(), make_limit("gemm.bf16.rate"))


@pytest.mark.parametrize(
    ("facts", "line", "message"),
    [
        ({"waivers": {"gemm.*": "later"}}, "ACCEPTED (1 waived)", "waived (later): gemm.bf16.rate: never measured"),
        ({"waivers": {"*": "all"}}, "INCOMPLETE: no limit held (2 waived)", "waived (all): gemm.bf16.rate: never measured"),
        ({"profile": replace(TWO, not_applicable={"gemm.*": "none here"})}, "ACCEPTED", "gemm.bf16.rate: not applicable: none here"),
    ],
)
def test_a_limit_that_is_declared_aside(facts, line, message):
    conclusion = verdict_of(**{"profile": TWO, **facts})
    assert (conclusion.line, conclusion.limits[0].message) == (line, message)
    assert conclusion.coverage.limits_expected == (0 if line.startswith("INCOMPLETE") else 1)


def test_a_waived_miss_is_shown():
    waivers = {"gemm.*": "later"}
    missed = of_gemm(1.0, TWO, waivers=waivers, nodeid=GEMM)
    conclusion = verdict_over([row_of(profile=TWO), missed], TWO, waivers=waivers, selection="quick")
    assert conclusion.line == "ACCEPTED (1 waived, quick)"
    assert conclusion.limits[0].message.startswith("waived (later): gemm.bf16.rate = 1 GB/s")


def test_a_waiver_excuses_no_skip():
    waivers = {"gemm.*": "later"}
    skipped = Attempt(number=1, ranks=tuple(make_record(rank, Outcome.SKIPPED) for rank in range(4)))
    rows = [row_of(profile=TWO), row_of(skipped, profile=TWO, waivers=waivers, nodeid=GEMM)]
    line = "INCOMPLETE: 1 of 2 validations skipped without declaration (1 waived)"
    assert verdict_over(rows, TWO, waivers=waivers).line == line


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dropped", "1 limit dropped by overlay site-a.yaml: x"),
        ("loosened", "1 limit loosened by overlay site-a.yaml"),
        ("tightened", "1 limit tightened by overlay site-a.yaml"),
        ("added", "1 limit added by overlay site-a.yaml"),
        ("changed", "1 limit changed by overlay site-a.yaml"),
        ("not applicable", "1 limit declared not applicable by overlay site-a.yaml"),
    ],
)
def test_overlays_are_shown(kind, said):
    profile = replace(PROFILE, changes=(Change(kind, "x", "1", "2", "site-a.yaml", "0"),))
    assert verdict_of(profile=profile).line == f"ACCEPTED ({said})"


def test_weaker_limits_are_counted_apart_among_the_changes_of_overlays():
    kinds = ("added", "loosened", "tightened", "dropped", "loosened", "not applicable")
    changes = tuple(Change(kind, f"x{number}", "1", "2", "site-a.yaml", "0") for number, kind in enumerate(kinds))
    less = "2 of them loosened, 1 of them declared not applicable, 1 of them dropped: x3"
    assert verdict_of(profile=replace(PROFILE, changes=changes)).line == f"ACCEPTED (6 limits changed by overlay site-a.yaml, {less})"


def test_bounds_that_an_overlay_moved_far_are_named_the_furthest_first():
    change = Change("loosened", "x", "1", "2", "site-a.yaml", "0")
    far = (FarBound("hbm.copy.spread", "tightened", 0.01), FarBound("hbm.triad.bandwidth", "loosened", 2.333 / 4153))
    named = "hbm.triad.bandwidth loosened to 0.0562 % of its bound: a slip of the unit?"
    others = "hbm.copy.spread tightened to 1 % of its bound: a slip of the unit?"
    line = verdict_of(profile=replace(PROFILE, changes=(change,), far_bounds=far)).line
    assert line == f"ACCEPTED (1 limit loosened by overlay site-a.yaml, {named}, {others})"
    more = (*far, FarBound("gemm.bf16.error", "loosened", 20.0), FarBound("hbm.add.spread", "loosened", 1000.0))
    line = verdict_of(profile=replace(PROFILE, changes=(change,), far_bounds=more)).line
    more = "hbm.add.spread loosened to 1000 times its bound: a slip of the unit?, 2 more bounds beyond a factor of 10"
    assert line == f"ACCEPTED (1 limit loosened by overlay site-a.yaml, {named}, {more})"


def test_several_overlays_and_a_waiver():
    changes = (Change("loosened", "x", "1", "2", "site-b.yaml", "0"), Change("loosened", "y", "1", "2", "site-a.yaml", "0"))
    conclusion = verdict_of(profile=replace(TWO, changes=changes), waivers={"gemm.*": "later"})
    assert conclusion.line == "ACCEPTED (1 waived, 2 limits loosened by overlays site-a.yaml, site-b.yaml)"


# Required subjects without a limit


def subject_profile(*limits, **more):
    return make_profile(make_limit(), *limits, requires=frozenset({"hbm", "nccl"}), **more)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ([], "no limit of nccl in profile h200-sxm"),
        (
            [make_limit("nccl.a.rate", at_least={2: 1, 8: 2}), make_limit("nccl.b.rate", world=(6,))],
            "no limit of nccl at 4 GPUs per node; listed: 2, 6, 8",
        ),
        (
            [make_limit("nccl.a.rate", nodes="several")],
            "no limit of nccl on 1 node of 4 GPUs: no limit on 1 node; h200-sxm.yaml has one for several nodes",
        ),
    ],
)
def test_a_required_subject_without_a_limit(limits, text):
    conclusion = verdict_of(profile=subject_profile(*limits))
    assert (conclusion.line, conclusion.reasons) == (f"INCOMPLETE: {text}", (text,))


def test_a_required_subject_without_a_limit_may_be_declared_aside():
    limit = make_limit("nccl.a.rate", world=(8,))
    assert verdict_of(profile=subject_profile(limit, not_applicable={"nccl.*": "no fabric"})).verdict == "ACCEPTED"
    assert verdict_of(profile=subject_profile(), waivers={"nccl.*": "later"}).verdict == "ACCEPTED"


SMALL = "acceptance/test_nccl.py::test_a"


def of_a_larger_job(ranks):
    return (PlannedValidation(nodeid=SMALL, deadline_s=60, min_ranks=ranks),)


def test_a_subject_that_needs_a_larger_job_is_shown():
    profile = subject_profile(make_limit("nccl.a.rate", world=(8,)))
    aside, ran = bare_row(Outcome.NOT_APPLICABLE, SMALL), bare_row(Outcome.PASSED, "acceptance/test_nccl.py::test_b")
    good, validations = row_of(profile=profile), of_a_larger_job(8)
    conclusion = verdict_over([good, aside], profile, validations=validations)
    assert conclusion.line == "ACCEPTED (nccl not applicable: needs at least 8 ranks)"
    assert verdict_over([good, aside, ran], profile, validations=validations).verdict == "INCOMPLETE"
    assert verdict_over([good], profile, validations=validations).verdict == "INCOMPLETE"
    assert verdict_over([good, aside], profile, validations=of_a_larger_job(4)).verdict == "INCOMPLETE"


def test_a_test_that_asks_for_a_larger_job_outranks_no_limit_that_applies():
    profile = subject_profile(make_limit("nccl.a.rate", world=(4,)))
    rows = [row_of(profile=profile), bare_row(Outcome.NOT_APPLICABLE, SMALL)]
    conclusion = verdict_over(rows, profile, validations=of_a_larger_job(16))
    assert conclusion.line == "INCOMPLETE: 1 limit never measured (nccl not applicable: needs at least 16 ranks)"
    assert conclusion.reasons == ("never measured: nccl.a.rate",)
    assert (conclusion.coverage.limits_expected, conclusion.coverage.limits_held) == (2, 1)


# What must hold for every run
