"""The kind of failure that a record shows: in the words that runs really end in, and for each reason of a verdict."""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.xids import labels_of, meaning_of
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, LastCollective, RankRecord
from gpu_acceptance.record.run_record import Objection, ObjectionKind
from gpu_acceptance.report.remedies import advice_on_run, kinds_of_judgement, kinds_of_rank
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES
from gpu_acceptance.verdict.judge import judge
from tests.judging import make_job, make_limit, make_profile
from tests.report import samples

PROFILE, JOB = make_profile(make_limit("hbm.copy.bandwidth")), make_job(1)


def judgement(metric, message="", status=Status.MISSED, **more):
    return Judgement(metric=metric, status=status, message=message, **more)


def record(message="", outcome=Outcome.DIED, **more):
    return RankRecord(
        nodeid="acceptance/test_nccl.py::test_large", attempt=1, generation=0, rank=0, outcome=outcome, message=message, **more
    )


BY_METRIC = {
    "gpu_health.remapping.pending": "repair_pending",
    "gpu_health.nvlink.active": "nvlink_down",
    "nccl.transport.internode": "sockets",
    "nccl.all_reduce.busbw": "nccl_slow",
    "counters.throttle.hw_power_brake": "throttle_power",
    "soak.hbm.drift": "slows_down",
    "environment.node.kernel": "nodes_differ",
    "ddp.gpt2.unexplained": "training_overlap",
    "corruption.repeats.mismatches": "wrong_result",
    "mine.own.figure": "limit_missed",
}
XIDS = [([79], {"xid_reboot"}), ([63, 31], {"xid_reset", "xid_application"}), ([4711], {"xid_vendor"}), ([], {"xid_vendor"})]


@pytest.mark.parametrize(
    ("judged", "kinds"),
    [
        *((judgement(metric, "nothing on a log: CUDA out of memory"), {kind}) for metric, kind in BY_METRIC.items()),
        *((judgement("counters.xids", labels=labels_of(map(meaning_of, numbers))), kinds) for numbers, kinds in XIDS),
        (judgement("hbm.copy.bandwidth", "hbm.copy.bandwidth = nan", Status.INVALID), {"invalid"}),
        (judgement("hbm.copy.bandwidth", "gemm.bf16.burst with a spread of 9 %", Status.UNSTABLE), {"unstable"}),
        (judgement("hbm.copy.bandwidth", "no limit at 3 GPUs per node", Status.NO_LIMIT), {"no_limit"}),
        (judgement("hbm.copy.bandwidth", "hbm.copy.bandwidth: no figure", Status.NOT_MEASURED), {"not_measured"}),
    ],
)
def test_a_limit_is_of_the_kind_of_its_metric_its_xids_or_its_state(judged, kinds):
    assert set(kinds_of_judgement(judged)) == kinds


@pytest.mark.parametrize(
    ("metric", "value", "unit", "kind"),
    [
        ("hbm.copy.bandwidth", Missing(Why.NOT_PERMITTED, "/dev/x"), "GB/s", "not_permitted"),
        ("hbm.copy.bandwidth", Missing(Why.NOT_SUPPORTED, "/dev/x"), "GB/s", "not_supported"),
        ("hbm.copy.bandwidth", Missing(Why.NOT_THERE, "/dev/x"), "GB/s", "not_supported"),
        ("hbm.copy.bandwidth", Missing(Why.UNREADABLE, "/dev/x"), "GB/s", "invalid"),
        ("hbm.copy.bandwidth", 3.0, "TB/s", "wrong_check"),  # a mistake of its validation
        ("disk.read.bandwidth", 3.0, "GB/s", "wrong_check"),
    ],
)
def test_a_figure_that_cannot_be_judged_is_of_the_kind_of_its_reason(metric, value, unit, kind):
    figure = make_figure(metric, value, unit, judged=True)
    (found,) = judge([Attempt(number=1, ranks=(record(outcome=Outcome.PASSED, figures=(figure,)),))], PROFILE, JOB, {}, "hbm")
    assert kinds_of_judgement(found) == (kind,)


STACK = '  File "/venv/torch/distributed/distributed_c10d.py", line 3107 in all_reduce\n  File "/srv/test_nccl.py", line 9 in test_large\n'
UNFINISHED = LastCollective(group="default_pg", number=7, operation="gloo:all_reduce [[4]] Float", finished=False)


@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("out_of_host_memory", record(cause=Cause.OUT_OF_MEMORY)),
        ("shm_full", record(cause=Cause.BUS_ERROR)),
        ("shm_full", record(log_tail="NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)")),
        ("out_of_gpu_memory", record("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Outcome.ERROR)),
        ("gpu_error", record("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Outcome.ERROR)),
        ("gpu_off_bus", record(log_tail="Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.")),
        ("fabric_not_ready", record("CUDA error: system not yet initialized", Outcome.ERROR)),
        ("import_clash", record("ImportError: libcudart.so.12: cannot open shared object file: No such file", Outcome.ERROR)),
        ("import_clash", record("libtorch_cuda.so: undefined symbol: ncclCommRegister")),
        ("wrong_interface", record(log_tail="NCCL WARN Bootstrap : no socket interface found")),
        ("wrong_interface", record("", Outcome.FAILED, cause=Cause.NO_CONTACT)),
        ("crashed_in_c", record(cause=Cause.CRASHED, log_tail="CUDA out of memory")),
        ("disk_full", record("OSError: [Errno 28] No space left on device: 'x'", Outcome.ERROR)),
        ("hang_in_collective", record("", Outcome.STUCK, collectives=(UNFINISHED,))),
        ("hang_in_collective", record("deadline of 4 s passed", Outcome.STUCK, stack=STACK)),
        ("hang_in_kernel", record("", Outcome.STUCK, cause=Cause.IN_THE_KERNEL)),
        ("process_stopped", record("", Outcome.STUCK, cause=Cause.STOPPED)),
        ("stuck", record("deadline of 4 s passed", Outcome.STUCK)),
        ("died", record("the worker ended with exit code 3", stack=STACK)),
        ("failed", record("assert 1 == 2", Outcome.FAILED)),
        ("error", record("KeyError: 'x'", Outcome.ERROR)),
        ("gpu_in_use", record("", Outcome.ERROR, cause=Cause.GPU_MEMORY_HELD)),
        ("control_lost", record("", Outcome.LOST, cause=Cause.NO_HEARTBEAT)),
        ("interrupted", record("interrupted by SIGTERM", Outcome.INTERRUPTED)),
        ("skipped", record("needs two of them", Outcome.SKIPPED)),
    ],
)
def test_a_rank_is_of_the_kind_that_its_facts_or_its_words_say(kind, rank):
    assert kinds_of_rank(rank)[0] == kind


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - HARMLESS_OUTCOMES))
@pytest.mark.parametrize("text", ["", "no word of it is known", "\x00\ud800 <b>"])
def test_whatever_it_says_no_outcome_is_without_a_kind(outcome, text):
    assert kinds_of_rank(record(text.encode("utf-8", "replace").decode(), outcome))


@pytest.mark.parametrize("status", sorted(set(Status) - HARMLESS_STATUSES))
def test_whatever_its_metric_no_judgement_is_without_a_kind(status):
    assert kinds_of_judgement(judgement("mine.own.figure", "", status))


def test_a_log_that_tells_of_everything_tells_of_three_things_at_most():
    everything = "SIGBUS, SIGSEGV, CUDA out of memory, Connection refused, undefined symbol, no heartbeat for 15 s, RendezvousTimeoutError"
    assert len(kinds_of_rank(record(everything))) == 3


def test_of_a_log_the_end_says_why():
    assert kinds_of_rank(record(log_tail=f"signal SIGBUS {'.' * 5_000} Segmentation fault")) == ("crashed_in_c",)


# --- objections to a run as a whole ---------------------------------------------------------------------------------------------

OF_A_VALIDATION = {ObjectionKind.VALIDATION, ObjectionKind.LIMIT_MISSED}
BY_ITSELF = {ObjectionKind.CONTRACT}  # what is to be done stands at each figure


def kinds_of_objection(kind, text="in words that are not known"):
    record = samples.accepted()
    conclusion = record.conclusion.model_copy(update={"objections": (Objection(kind=kind, text=text),)})
    return [one.kind for one in advice_on_run(record.model_copy(update={"conclusion": conclusion}))]


@pytest.mark.parametrize("kind", sorted(set(ObjectionKind) - OF_A_VALIDATION - BY_ITSELF))
def test_each_objection_to_the_run_as_a_whole_has_a_remedy(kind):
    assert kinds_of_objection(kind)


NOT_WRITTEN = "the report could not be written to /runs/a:"


@pytest.mark.parametrize(
    ("kind", "text", "remedy"),
    [
        (ObjectionKind.UNCONFIRMED, "the journal of rank 1 (/runs/a/journal/rank-00001.jsonl) is gone", "report_files_harmed"),
        (ObjectionKind.NOT_WRITTEN, f"{NOT_WRITTEN} FileNotFoundError: [Errno 2] No such file or directory", "report_files_harmed"),
        (ObjectionKind.NOT_WRITTEN, f"{NOT_WRITTEN} OSError: [Errno 116] Stale file handle", "report_files_harmed"),
        (ObjectionKind.NOT_WRITTEN, f"{NOT_WRITTEN} OSError: [Errno 28] No space left on device", "disk_full"),
    ],
)
def test_a_report_folder_that_was_removed_is_no_full_disk_and_a_full_disk_is_one(kind, text, remedy):
    kinds = kinds_of_objection(kind, text)
    assert kinds[0] == remedy
    assert ("disk_full" in kinds) is (remedy == "disk_full")
