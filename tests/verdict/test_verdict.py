"""The verdict of a run: what ACCEPTED needs, and every way in which it is not given."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import WHOLE, PlannedValidation, RunEnd
from gpu_acceptance.thresholds.limit import Change, FarBound, Peers, subject_of
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import NODES_ELSEWHERE, UNTESTED_NODES, conclude
from tests.judging import (
    METRIC,
    NODEID,
    all_equal,
    make_attempt,
    make_identity,
    make_job,
    make_limit,
    make_plan,
    make_profile,
    make_record,
    with_record,
)

PROFILE = make_profile(make_limit())
OF_THE_JOB = make_profile(make_limit(scope="job"))
GOOD = make_attempt(all_equal(120.0))
WORSE = {"ACCEPTED": 2, "INCOMPLETE": 1, "REJECTED": 0}


GEMM = "acceptance/test_gemm.py::test_gemm"


def row_of(*attempts, profile=PROFILE, job=None, waivers=None, nodeid=NODEID):
    return make_row(nodeid, attempts or (GOOD,), profile, job or make_job(4), waivers or {}, 60.0)


def verdict_of(*attempts, profile=PROFILE, job=None, waivers=None, **more):
    return verdict_over([row_of(*attempts, profile=profile, job=job, waivers=waivers)], profile, job, waivers, **more)


def verdict_over(rows, profile=PROFILE, job=None, waivers=None, end=WHOLE, control=None, **planned):
    return conclude(make_plan(profile, waivers=waivers or {}, **planned), job or make_job(4), rows, end, control)


def bare_row(outcome, nodeid=NODEID, message=""):
    return Row(nodeid=nodeid, subject=subject_of(nodeid), outcome=outcome, message=message)


def test_accepted():
    conclusion = verdict_of()
    assert (conclusion.verdict, conclusion.line, conclusion.exit_code, conclusion.reasons) == ("ACCEPTED", "ACCEPTED", 0, ())
    coverage = conclusion.coverage
    assert (coverage.nodes, coverage.ranks, coverage.gpus_existing, coverage.gpus_tested) == (1, 4, 4, 4)
    assert (coverage.limits_expected, coverage.limits_judged, coverage.limits_held) == (1, 1, 1)
    assert [limit.status for limit in conclusion.limits] == [Status.HELD]


@pytest.mark.parametrize(
    ("metric", "which"),
    [
        (UNTESTED_NODES, "of the partition drained or down: not tested"),
        (NODES_ELSEWHERE, "of the cluster without a pod of this run: not tested"),
    ],
)
@pytest.mark.parametrize(("number", "said"), [(0, ""), (1, "1 node"), (3, "3 nodes"), (None, "an unknown number of nodes")])
def test_nodes_that_were_not_tested_are_in_the_line(metric, which, number, said):
    untested = make_figure(metric, number, "count", judged=False)
    attempt = Attempt(number=1, ranks=(make_record(0, figures=(untested,)), make_record(1)))
    subject = metric.split(".")[0]
    row = Row(nodeid=f"acceptance/test_{subject}.py::test_nodes", subject=subject, outcome=Outcome.PASSED, attempts=(attempt,))
    conclusion = verdict_over([row_of(), row])
    assert (conclusion.line, conclusion.exit_code) == (f"ACCEPTED ({said} {which})" if said else "ACCEPTED", 0)


def test_a_missed_limit_rejects():
    conclusion = verdict_of(make_attempt({**all_equal(120.0), 2: 50.0}))
    assert (conclusion.verdict, conclusion.exit_code) == ("REJECTED", 1)
    assert conclusion.line == "REJECTED: 1 limit missed in 1 of 1 validation"
    source = "[h200-sxm.yaml: measured 2026-11-20]"
    where = "on rank 2 (node-00, GPU 2, serial 165390002)"
    assert conclusion.reasons == (f"test_hbm.py::test_triad: {METRIC} = 50 GB/s, need >= 100 GB/s {source} {where}",)


def test_a_limit_never_measured_is_named():
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"), make_limit("gemm.fp8.rate", at_least=1, at_most=2))
    conclusion = verdict_of(profile=profile)
    assert (conclusion.verdict, conclusion.exit_code) == ("INCOMPLETE", 6)
    assert conclusion.line == "INCOMPLETE: 3 limits never measured"
    assert conclusion.reasons == ("never measured: gemm.bf16.rate, gemm.fp8.rate",)
    assert (conclusion.coverage.limits_expected, conclusion.coverage.limits_held) == (4, 1)
    assert [limit.message for limit in conclusion.limits][:2] == ["gemm.bf16.rate: never measured", "gemm.fp8.rate: never measured"]


def of_gemm(value, profile, **more):
    return row_of(make_attempt(all_equal(value), metric="gemm.bf16.rate"), profile=profile, **more)


def test_a_limit_that_is_not_required_may_be_absent_but_not_missed():
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"), requires=frozenset({"hbm"}))
    assert verdict_of(profile=profile).verdict == "ACCEPTED"
    assert verdict_over([row_of(profile=profile), of_gemm(1.0, profile, nodeid=GEMM)], profile).verdict == "REJECTED"


def test_a_limit_that_only_another_subject_checked_was_never_measured():
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"))
    conclusion = verdict_over([row_of(profile=profile), of_gemm(120.0, profile)], profile)
    assert conclusion.line == "INCOMPLETE: 1 of 2 validations in error, 1 limit never measured"
    fault = "gemm.bf16.rate checked by subject hbm: a metric belongs to acceptance/test_gemm.py"
    assert conclusion.reasons == (f"test_hbm.py::test_triad: {fault}", "never measured: gemm.bf16.rate")


def test_held_in_one_row_and_missed_in_another_rejects():
    rows = [row_of(), row_of(make_attempt(all_equal(50.0)), nodeid="acceptance/test_hbm.py::test_copy[a/b]")]
    conclusion = verdict_over(rows)
    assert conclusion.line == "REJECTED: 1 limit missed in 1 of 2 validations"
    assert conclusion.reasons[0].startswith("test_hbm.py::test_copy[a/b]: hbm.triad.bandwidth = 50 GB/s")
    assert [limit.status for limit in conclusion.limits] == [Status.MISSED]


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome.DIED, "REJECTED: 1 of 2 validations died"),
        (Outcome.STUCK, "REJECTED: 1 of 2 validations stuck"),
        (Outcome.FAILED, "REJECTED: 1 of 2 validations failed"),
        (Outcome.LOST, "INCOMPLETE: 1 of 2 validations lost"),
        (Outcome.INTERRUPTED, "INCOMPLETE: 1 of 2 validations interrupted"),
        (Outcome.ERROR, "INCOMPLETE: 1 of 2 validations in error"),
        (Outcome.UNSTABLE, "INCOMPLETE: 1 of 2 validations unstable"),
        (Outcome.NO_LIMIT, "INCOMPLETE: 1 of 2 validations without a limit"),
        (Outcome.NOT_MEASURED, "INCOMPLETE: 1 of 2 validations not measured on every member"),
        (Outcome.SKIPPED, "INCOMPLETE: 1 of 2 validations skipped without declaration"),
        (Outcome.NOT_RUN, "INCOMPLETE: 1 of 2 validations not run"),
        (Outcome.VICTIM, "INCOMPLETE: 1 of 2 validations victim of a peer"),
        (Outcome.NOT_APPLICABLE, "ACCEPTED"),
    ],
)
def test_the_line_by_outcome(outcome, line):
    conclusion = verdict_over([row_of(), bare_row(outcome, message="why\nand more")])
    assert conclusion.line == line
    assert conclusion.reasons == (() if line == "ACCEPTED" else ("test_hbm.py::test_triad: why",))


@pytest.mark.parametrize(
    ("outcome", "name", "line", "code"),
    [
        (Outcome.STUCK, "world_formation", "REJECTED: world formation stuck", 1),
        (Outcome.ERROR, "worker_end", "INCOMPLETE: worker end in error", 6),
        (Outcome.DIED, "worker_end", "REJECTED: worker end died", 1),
        (Outcome.STUCK, "worker_end", "REJECTED: worker end stuck", 1),
    ],
)
def test_rows_of_the_suite_itself_are_no_validations_but_count(outcome, name, line, code):
    conclusion = verdict_over([row_of(), bare_row(outcome, name, "rank 3: why")])
    assert (conclusion.line, conclusion.exit_code, conclusion.reasons) == (line, code, (f"{name}: rank 3: why",))


def test_a_file_of_the_name_of_a_row_of_the_suite_is_a_validation():
    conclusion = verdict_over([bare_row(Outcome.ERROR, "acceptance/test_world_formation.py::test_a"), row_of()])
    assert conclusion.line == "INCOMPLETE: 1 of 2 validations in error"


def test_files_that_were_not_collected_leave_the_run_incomplete():
    sentences = ("test_ib.py: skipped at import: no driver", "test_p2p.py: not collected")
    conclusion = verdict_of(not_collected=sentences)
    assert (conclusion.line, conclusion.exit_code) == ("INCOMPLETE: 2 files not collected", 6)
    assert conclusion.reasons == tuple(sentences)
    assert verdict_of(not_collected=sentences[:1]).line == "INCOMPLETE: 1 file not collected"
    rejected = verdict_of(make_attempt(all_equal(50.0)), not_collected=sentences)
    assert (rejected.verdict, rejected.reasons[1:]) == ("REJECTED", tuple(sentences))


def test_a_failed_assertion_is_named_beside_a_missed_limit():
    failed = make_record(1, Outcome.FAILED, message="boom", figures=(make_figure(METRIC, 50.0, "GB/s", judged=True),))
    conclusion = verdict_of(with_record(GOOD, failed))
    assert conclusion.line == "REJECTED: 1 of 1 validation failed, 1 limit missed in 1 of 1 validation"
    assert conclusion.reasons[0].endswith(": boom")
    assert METRIC in conclusion.reasons[1]


def test_many_parts_are_counted():
    outcomes = [Outcome.LOST, Outcome.INTERRUPTED, Outcome.ERROR, Outcome.UNSTABLE, Outcome.SKIPPED, Outcome.NOT_RUN]
    conclusion = verdict_over([row_of(), *map(bare_row, outcomes)])
    assert conclusion.line.endswith(", 1 of 7 validations unstable, 2 more reasons")


# Exit codes


@pytest.mark.parametrize(
    ("rows", "more", "code"),
    [
        ([row_of()], {}, 0),
        ([row_of()], {"end": RunEnd(internal_error="disk full", interrupted="SIGTERM")}, 3),
        ([row_of()], {"end": RunEnd(interrupted="SIGTERM")}, 2),
        ([bare_row(Outcome.DIED)], {"end": RunEnd(interrupted="SIGTERM")}, 2),
        ([bare_row(Outcome.DIED)], {}, 1),
        ([bare_row(Outcome.STUCK, "world_formation"), bare_row(Outcome.NOT_RUN)], {}, 1),
        ([], {}, 5),
        ([bare_row(Outcome.PASSED, "world_formation")], {}, 5),
        ([bare_row(Outcome.PASSED, "world_formation"), bare_row(Outcome.ERROR, "worker_end")], {}, 5),
        ([bare_row(Outcome.DIED, "worker_end")], {}, 1),
        ([bare_row(Outcome.NOT_RUN), bare_row(Outcome.NOT_RUN)], {}, 5),
        ([bare_row(Outcome.NOT_RUN), row_of()], {}, 6),
        ([row_of()], {"measure_only": True}, 6),
        ([row_of(with_record(GOOD, make_record(1, Outcome.NOT_RUN)), profile=OF_THE_JOB)], {}, 6),  # the other ranks ran
        ([row_of(Attempt(number=1, ranks=tuple(make_record(rank, Outcome.NOT_RUN) for rank in range(4))))], {}, 5),
    ],
)
def test_exit_code_is_the_first_that_applies(rows, more, code):
    conclusion = verdict_over(rows, **more)
    assert conclusion.exit_code == code
    assert (conclusion.verdict == "ACCEPTED") == (code == 0)


def test_why_a_run_was_broken_off():
    conclusion = verdict_of(end=RunEnd(interrupted="SIGTERM", internal_error="disk full"))
    assert conclusion.line == "INCOMPLETE: internal error, interrupted"
    assert conclusion.reasons == ("internal error: disk full", "interrupted: SIGTERM")
    rejected = verdict_of(make_attempt(all_equal(50.0)), end=RunEnd(interrupted="SIGTERM"))
    assert rejected.line == "REJECTED: 1 limit missed in 1 of 1 validation, interrupted"


# GPUs and ranks


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


def bus_shows(num_gpus, job):
    return with_ranks(job, num_gpus_on_bus=num_gpus)


CPU = replace(PROFILE, name="cpu", device_name=None)
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

values = st.sampled_from([120.0, 121.0, 100.0, 99.0, 500.0, float("nan"), None, "x"])
bad_outcomes = st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.PASSED])
LIMIT = make_limit(at_least=100, at_most=450, peers=Peers(0.2, 0.0))
WIDE = make_profile(LIMIT)


@st.composite
def some_attempts(draw):
    attempt = make_attempt({rank: draw(values) for rank in range(4)})
    for rank in draw(st.sets(st.integers(0, 3), max_size=2)):
        attempt = with_record(attempt, make_record(rank, draw(bad_outcomes)))
    return attempt


@given(some_attempts(), st.randoms(use_true_random=False))
def test_order_changes_nothing(attempt, rng: random.Random):
    job = make_job(4)
    shuffled = Attempt(number=1, ranks=tuple(rng.sample(attempt.ranks, 4)))
    other_job = Job(tuple(rng.sample(job.ranks, 4)))
    assert verdict_of(attempt, profile=WIDE, job=job) == verdict_of(shuffled, profile=WIDE, job=other_job)


@given(some_attempts(), st.integers(0, 3))
def test_a_missing_rank_is_never_accepted(attempt, missing):
    kept = Attempt(number=1, ranks=tuple(record for record in attempt.ranks if record.rank != missing))
    assert verdict_of(kept, profile=WIDE).verdict != "ACCEPTED"


@settings(max_examples=200)
@given(some_attempts(), bad_outcomes, st.integers(0, 4), st.integers(1, 2), values)
def test_one_more_bad_record_never_improves_the_verdict(attempt, outcome, rank, number, value):
    record = make_record(rank, outcome, (make_figure(METRIC, value, "GB/s", judged=True),), number)
    before = verdict_of(attempt, profile=WIDE)
    more = [Attempt(number=1, ranks=(*attempt.ranks, record))] if number == 1 else [attempt, Attempt(number=2, ranks=(record,))]
    assert WORSE[verdict_of(*more, profile=WIDE).verdict] <= WORSE[before.verdict]


@given(some_attempts(), bad_outcomes)
def test_one_more_bad_row_never_improves_the_verdict(attempt, outcome):
    row = row_of(attempt, profile=WIDE)
    before = verdict_over([row], WIDE)
    assert WORSE[verdict_over([row, bare_row(outcome)], WIDE).verdict] <= WORSE[before.verdict]


@given(st.sets(st.integers(0, 3), min_size=1))
def test_victims_alone_neither_pass_nor_reject(victims):
    attempt = GOOD
    for rank in victims:
        attempt = with_record(attempt, make_record(rank, Outcome.VICTIM))
    assert verdict_of(attempt).verdict == "INCOMPLETE"


@given(st.integers(0, 3), st.sampled_from([float("nan"), float("inf"), -float("inf"), None, [], "120"]))
def test_no_value_is_never_accepted(rank, value):
    assert verdict_of(make_attempt({**all_equal(120.0), rank: value})).verdict == "INCOMPLETE"


@given(some_attempts(), st.none() | st.just("SIGTERM"), st.none() | st.just("bug"))
def test_the_exit_code_follows_from_the_verdict(attempt, interrupted, internal_error):
    conclusion = verdict_of(attempt, profile=WIDE, end=RunEnd(interrupted=interrupted, internal_error=internal_error))
    expected = {"ACCEPTED": {0}, "REJECTED": {1}, "INCOMPLETE": {5, 6}}[conclusion.verdict]
    assert conclusion.exit_code in ({3} if internal_error else {2} if interrupted else expected)
    assert (conclusion.verdict == "ACCEPTED") == (not conclusion.reasons)
