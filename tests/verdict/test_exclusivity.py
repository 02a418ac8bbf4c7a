"""Figures that a foreign process disturbed prove neither a pass nor a miss; a repeat decides, and faults of the hardware stay."""

from dataclasses import replace

import pytest
from judging import METRIC, NODEID, make_attempt, make_job, make_limit, make_plan, make_profile, make_record, shipped_profile

from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, CpuUse, ForeignUse
from gpu_acceptance.record.run_record import WHOLE
from gpu_acceptance.report.remedies import advice_on
from gpu_acceptance.thresholds.limit import Peers, subject_of_metric
from gpu_acceptance.verdict.busy import WAIVERS, foreign_text
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.run_record import conclude_again, make_run_record

USE = ForeignUse(gpu=3, pid=4242, name="python", memory_bytes=int(1.2 * 2**30), from_s=12.3, to_s=40.1)
TEXT = "GPU 3 was used by another process (pid 4242, python, 1.2 GiB) from +12.3 s to +40.1 s"
JOB = make_job(4)
PROFILE = make_profile(make_limit())


def disturbed(attempt, *uses, rank=3):
    """The attempt, with foreign processes on the GPU of one rank."""
    ranks = tuple(one.model_copy(update={"foreign": uses or (USE,)}) if one.rank == rank else one for one in attempt.ranks)
    return attempt.model_copy(update={"ranks": ranks})


def values(slow=50.0, number=1):
    return make_attempt({0: 200.0, 1: 200.0, 2: 200.0, 3: slow}, number=number)


def row(*attempts, profile=PROFILE, waivers=None, nodeid=NODEID, rebuilt=False):
    return make_row(nodeid, attempts, profile, JOB, waivers or {}, 60.0, rebuilt=rebuilt)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (USE, TEXT),
        (USE.model_copy(update={"pid": 0, "name": ""}), TEXT.replace("pid 4242, python", "hidden from this container")),
        (USE.model_copy(update={"name": "", "memory_bytes": None}), TEXT.replace("pid 4242, python, 1.2 GiB", "pid 4242")),
        (USE.model_copy(update={"name": "a\n\x1b[31mb", "memory_bytes": 7 << 20}), TEXT.replace("python, 1.2 GiB", r"a\n\x1b[31mb, 7 MiB")),
    ],
)
def test_it_is_named_in_one_line(use, text):
    assert foreign_text(use) == text


@pytest.mark.parametrize("slow", [50.0, 200.0], ids=["a miss", "a pass"])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_beside_it_neither_a_miss_nor_a_pass_counts(slow, rebuilt):
    found = row(disturbed(values(slow)), rebuilt=rebuilt)
    assert (found.outcome, found.judgements) == (Outcome.DISTURBED, ())
    assert found.message == f"rank 3 (node-00, GPU 3, serial 165390003): {TEXT}"


@pytest.mark.parametrize(("second", "outcome"), [(200.0, Outcome.PASSED), (60.0, Outcome.FAILED)])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_the_repeat_decides_and_the_row_tells_both(second, outcome, rebuilt):
    found = row(disturbed(values()), values(second, number=2), rebuilt=rebuilt)
    assert found.outcome is outcome
    assert [one.value for one in found.judgements] == [min(second, 200.0)]
    assert found.message.splitlines()[-1] == f"rank 3 (node-00, GPU 3, serial 165390003): {TEXT}, during attempt 1"


def test_a_repeat_that_is_disturbed_as_well_leaves_it_open():
    found = row(disturbed(values()), disturbed(values(200.0, number=2)))
    assert (found.outcome, found.judgements) == (Outcome.DISTURBED, ())


@pytest.mark.parametrize("outcome", [Outcome.DIED, Outcome.STUCK, Outcome.FAILED, Outcome.ERROR, Outcome.VICTIM])
def test_how_a_rank_ended_beside_it_is_told_and_rejects_nothing(outcome):
    ranks = (*values().ranks[:2], make_record(2, outcome, phase="call", message="out of memory"), *values().ranks[3:])
    found = row(disturbed(Attempt(number=1, ranks=ranks)))
    assert found.outcome is Outcome.DISTURBED
    assert "out of memory" in found.message or outcome is Outcome.VICTIM
    assert row(disturbed(Attempt(number=1, ranks=ranks)), values(200.0, number=2)).outcome is Outcome.PASSED


def test_a_rank_that_was_lost_beside_it_stays_lost():
    ranks = (*values().ranks[:2], make_record(2, Outcome.LOST, message="no heartbeat"), *values().ranks[3:])
    assert "rank 2 (node-00, GPU 2, serial 165390002): lost: no heartbeat" in row(disturbed(Attempt(number=1, ranks=ranks))).message


WRONG = make_limit("hbm.copy.wrong", at_most=0, unit="elements")
UNCORRECTED = make_limit("counters.ecc.uncorrected", at_most=0, unit="count")
XIDS = make_limit("counters.xids", at_most=0, unit="count")


@pytest.mark.parametrize(
    ("limit", "outcome"), [(WRONG, Outcome.FAILED), (UNCORRECTED, Outcome.FAILED), (XIDS, Outcome.PASSED)], ids=lambda one: str(one)[:40]
)
def test_faults_that_no_other_process_explains_reject_also_where_the_repeat_shows_none(limit, outcome):
    """XIDs may be of the other process."""
    figures = [tuple(make_figure(limit.metric, value, limit.unit, judged=True) for value in (value,)) for value in (3, 0)]
    speed = make_figure(METRIC, 200.0, "GB/s", judged=True)
    first, second = (
        Attempt(number=number, ranks=tuple(make_record(rank, figures=(*found, speed), attempt=number) for rank in range(4)))
        for number, found in enumerate(figures, start=1)
    )
    profile = make_profile(make_limit(), limit)
    assert row(disturbed(first), second, profile=profile).outcome is outcome


EXACT = {
    "pcie.h2d.wrong": 4096,
    "hbm.copy.wrong": 3,
    "corruption.inputs.changed": 3,
    "corruption.peers.hash": "another",
    "ddp.gpt2.weights": "another",
    "gemm.bf16.error": 1e30,
    "lora_convergence.base_changed": True,
    "checkpoint.ddp.tensors.changed": 2,
    "parity.fp32.loss_ratio": 1e6,
    "counters.ecc.uncorrected": 1,
    "nccl.transport.intranode": "SHM",
}
ITS_DOING = {"counters.xids": 1, "counters.throttle.hw_thermal": 2.0, "hbm.copy.bandwidth": 1.0, "launch.kernels.time": 900.0}


def shipped_attempts(metric, wrong, outcome):
    """Beside a foreign process rank 2 has this value; in the repeat it has that of all others."""
    limit = shipped_profile("h200-sxm").limits[metric]
    least = limit.at_least if isinstance(limit.at_least, (int, float)) else 5000.0
    sound = limit.equals if limit.equals is not None else "same" if limit.uniform else limit.at_most if limit.at_most is not None else least
    for number, value in enumerate((wrong, sound), start=1):
        spread = Spread(0.1) if limit.spread_at_most is not None else None
        ranks = [make_figure(metric, value if rank == 2 else sound, limit.unit, judged=True, spread=spread) for rank in range(4)]
        ends = [outcome if rank == 2 and number == 1 else Outcome.PASSED for rank in range(4)]
        yield Attempt(
            number=number, ranks=tuple(make_record(rank, ends[rank], (figure,), attempt=number) for rank, figure in enumerate(ranks))
        )


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.DIED, Outcome.ERROR])
@pytest.mark.parametrize(("metric", "wrong"), {**EXACT, **ITS_DOING}.items())
def test_what_no_other_process_explains_rejects_whatever_became_of_the_rank(metric, wrong, outcome):
    first, second = shipped_attempts(metric, wrong, outcome)
    nodeid = (
        "acceptance/test_hbm.py::test_copy" if metric.startswith("counters.") else f"acceptance/test_{subject_of_metric(metric)}.py::test"
    )
    found = make_row(nodeid, (disturbed(first), second), shipped_profile("h200-sxm"), JOB, {}, 60.0)
    missed = {one.metric for one in found.judgements if one.status is Status.MISSED}
    assert missed == ({metric} if metric in EXACT else set()), found.message
    assert (found.outcome is Outcome.FAILED) == (metric in EXACT)


def test_a_fault_that_could_not_be_read_beside_it_decides_nothing():
    figure = make_figure("hbm.copy.wrong", None, "elements", judged=True)
    first = Attempt(number=1, ranks=tuple(make_record(rank, figures=(figure,)) for rank in range(4)))
    assert row(disturbed(first), profile=make_profile(WRONG)).judgements == ()


def test_where_other_programs_are_allowed_all_is_judged_and_it_is_told():
    found = row(disturbed(values()), waivers=WAIVERS)
    assert (found.outcome, [one.status for one in found.judgements]) == (Outcome.FAILED, [Status.MISSED])
    assert found.message.endswith(f"{TEXT}, during attempt 1")
    assert row(disturbed(values(200.0)), waivers=WAIVERS).outcome is Outcome.PASSED


def test_a_miss_against_peers_is_not_confirmed_by_a_repeat_that_was_disturbed():
    limit = make_limit(at_least=None, peers=Peers(deficit_at_most=0.03, sigma=0.005))
    found = row(values(), disturbed(values(number=2)), profile=make_profile(limit))
    assert [one.status for one in found.judgements] == [Status.UNSTABLE]
    assert found.outcome is Outcome.DISTURBED
    assert found.judgements[0].message.startswith("not confirmed, because the last attempt was disturbed: ")


def test_workers_that_formed_beside_it_have_formed():
    formed = disturbed(Attempt(number=1, ranks=tuple(make_record(rank, nodeid=FORMATION) for rank in range(4))))
    assert row(formed, nodeid=FORMATION).outcome is Outcome.PASSED
    failed = tuple(make_record(rank, Outcome.FAILED, nodeid=FORMATION, phase="opening the device") for rank in range(4))
    assert row(disturbed(Attempt(number=1, ranks=failed)), nodeid=FORMATION).outcome is Outcome.DISTURBED


def unread(attempt):
    watched = attempt.ranks[1].model_copy(update={"unwatched": "nothing told in time who uses GPU 1"})
    return attempt.model_copy(update={"ranks": (attempt.ranks[0], watched, *attempt.ranks[2:])})


@pytest.mark.parametrize("slow", [50.0, 200.0], ids=["a miss", "a pass"])
def test_where_nobody_knows_who_used_the_gpus_nothing_is_proved(slow):
    found = row(unread(values(slow)))
    assert (found.outcome, found.judgements) == (Outcome.NOT_MEASURED, ())
    assert "rank 1 (node-00, GPU 1, serial 165390001): nothing told in time who uses GPU 1" in found.message


def test_a_repeat_that_was_watched_decides():
    found = row(unread(values()), values(200.0, number=2))
    assert found.outcome is Outcome.PASSED
    assert found.message.endswith("nothing told in time who uses GPU 1, during attempt 1")


def test_the_run_is_incomplete_from_its_record_too_and_the_advice_names_the_gpu():
    plan = make_plan(replace(PROFILE, requires=frozenset({"hbm"})))
    found = row(disturbed(values(200.0)))
    record = make_run_record(plan, JOB, [found], ended_at="2026-11-20T00:01:00+00:00", end=WHOLE, journals=(0,))
    assert (record.conclusion.verdict, record.conclusion.exit_code) == ("INCOMPLETE", 6)
    assert "1 of 1 validation disturbed by another process" in record.conclusion.line
    assert conclude_again(record) == record
    (advice,) = advice_on(found, record)
    assert (advice.kind, advice.ranks) == ("gpu_in_use", (3,))


def loaded(busy_s, own_s, nodeid="acceptance/test_launch.py::test_kernels", num_cpus=64):
    """A row of four ranks of one node, in 10 s."""
    cpu = CpuUse(length_s=10.0, busy_s=busy_s, own_s=own_s, num_cpus=num_cpus)
    ranks = tuple(one.model_copy(update={"cpu": cpu}) for one in values(200.0).ranks)
    return row(Attempt(number=1, ranks=ranks), nodeid=nodeid).message


@pytest.mark.parametrize(
    ("busy_s", "own_s", "told"),
    [
        (163.0, 10.0, "node-00: other programs used 12.3 of 64 CPUs meanwhile"),
        (103.0, 10.0, ""),
        (40.0, 10.0, ""),
        (20.0, 10.0, ""),
    ],
)
def test_what_others_take_of_the_processors_is_told_from_a_tenth_on(busy_s, own_s, told):
    assert loaded(busy_s, own_s).endswith(told)
    assert ("other programs used" in loaded(busy_s, own_s)) == bool(told)


def test_it_is_told_where_the_host_limits_a_figure_and_all_its_ranks_have_told():
    assert "other programs" not in loaded(600.0, 1.0, nodeid=NODEID)
    cpu = CpuUse(length_s=10.0, busy_s=600.0, own_s=1.0, num_cpus=64)
    ranks = (values().ranks[0].model_copy(update={"cpu": cpu}), *values().ranks[1:])
    assert "other programs" not in row(Attempt(number=1, ranks=ranks), nodeid="acceptance/test_launch.py::test_kernels").message
