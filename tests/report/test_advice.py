"""Advice of the report: the names in its commands, its order, and no failure without advice."""

import shlex
from pathlib import Path

import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import FORMING, Attempt, Judgement, Row
from gpu_acceptance.record.run_record import Objection, ObjectionKind, RunEnd
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.problems import problems
from gpu_acceptance.report.remedies import (
    advice_on,
    advice_on_run,
    filled,
    names_of,
    table,
)
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.run_record import conclude_again
from tests.report import sample_rows, samples
from tests.report.pages import parse

EVIDENCE = Path(__file__).parents[2] / "reports" / "evidence"
RECORD = samples.two_nodes()
NODEID = "acceptance/test_gpu_health.py::test_memory"


def missed(metric, ranks, **labels):
    return Judgement(metric=metric, status=Status.MISSED, ranks=ranks, labels=labels)


def row(*judgements, outcome=Outcome.FAILED, message="", ranks=()):
    attempts = (Attempt(number=1, ranks=tuple(ranks)),) if ranks else ()
    return Row(nodeid=NODEID, subject="gpu_health", outcome=outcome, message=message, attempts=attempts, judgements=judgements)


def rank_record(rank, outcome, message="", **more):
    return sample_rows.rank_record(NODEID, rank, outcome, message=message, **more)


def kinds(*found):
    return [one.kind for one in found]


def runs(advice):
    return [command for command, _ in (*advice.checks, *advice.changes)]


def test_commands_have_the_names_of_the_first_culprit_and_the_others_are_named():
    (found,) = advice_on(row(missed("gpu_health.remapping.pending", (9, 11, 12))), RECORD)
    gpu = RECORD.ranks[9].gpu
    assert found.where == f"rank 9 (node-02.example, GPU 1, serial {gpu.serial})"
    assert found.others == "ranks 11-12"
    assert runs(found)[0] == f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.uuid}"
    assert f"sudo nvidia-smi --gpu-reset -i {gpu.uuid}" in runs(found)
    assert 'scontrol update NodeName=node-02.example State=DRAIN Reason="gpu-acceptance"' in runs(found)
    assert "<" not in "".join(runs(found))


def test_a_pci_address_is_written_as_linux_has_it_and_a_network_port_is_that_of_the_figure():
    (found,) = advice_on(row(missed("gpu_health.pcie.width", (1,))), RECORD)
    assert "sudo lspci -vv -s 0000:07:00.0 | grep -E 'LnkCap|LnkSta'" in runs(found)
    (found,) = advice_on(row(missed("infiniband.ports.state", (8,), device="mlx5_3", port=2)), RECORD)
    assert runs(found)[0] == "ibstat mlx5_3 2"


@pytest.mark.parametrize(("phase", "is_told"), [(FORMING, True), ("call", False)])
def test_ranks_that_told_nccl_different_things_come_before_what_crashed_while_the_group_formed(phase, is_told):
    ranks = [rank_record(0, Outcome.DIED, phase=phase, cause=Cause.CRASHED)]
    other = RECORD.ranks[1].model_copy(update={"environment": {**RECORD.ranks[1].environment, "NCCL_IB_HCA": "mlx5_0"}})
    record = RECORD.model_copy(update={"ranks": (RECORD.ranks[0], other, *RECORD.ranks[2:])})
    formation = row(outcome=Outcome.DIED, ranks=ranks).model_copy(update={"nodeid": FORMATION})
    assert ("libraries_differ" in kinds(*advice_on(formation, record))) is is_told


def test_what_nobody_knows_stays_to_be_filled_in():
    (found,) = advice_on(row(missed("infiniband.ports.state", ())), RECORD)
    assert (found.where, found.others) == ("", "")
    assert runs(found)[0] == "ibstat <DEVICE> <PORT>"


def test_what_asks_for_most_comes_first_and_each_kind_once():
    found = advice_on(
        row(
            missed("gpu_health.temperature.margin", (1,)),
            missed("gpu_health.remapping.pending", (1,)),
            missed("gpu_health.remapping.failed", (2,)),
            missed("gpu_health.memory.channel_repair_pending", (3,)),
        ),
        RECORD,
    )
    assert kinds(*found) == ["gpu_memory_worn", "repair_pending", "throttle_heat"]
    assert found[1].others == "rank 3"


def test_a_planted_fault_comes_before_what_it_has_planted():
    found = advice_on(row(missed("memory.fill.wrong", (1,)), missed("memory.planted.words", (1,))), RECORD)
    assert kinds(*found) == ["planted_fault", "wrong_result"]


def test_victims_are_blamed_for_nothing():
    ranks = [
        rank_record(3, Outcome.DIED, "signal SIGBUS"),
        *(rank_record(rank, Outcome.VICTIM, "CUDA out of memory") for rank in (0, 1, 2)),
    ]
    found = advice_on(row(outcome=Outcome.DIED, ranks=[*ranks, *(rank_record(rank, Outcome.VICTIM) for rank in range(4, 16))]), RECORD)
    assert kinds(*found) == ["shm_full"]
    assert found[0].where.startswith("rank 3 ")


@pytest.mark.parametrize(("stack", "kind"), [("its stack", "hang_in_collective"), ("", "stuck")])
def test_one_that_is_stuck_nobody_knows_where_is_awaited_by_those_that_said_where_they_wait(stack, kind):
    ranks = [rank_record(0, Outcome.STUCK), rank_record(1, Outcome.VICTIM, stack=stack)]
    found = advice_on(row(outcome=Outcome.STUCK, ranks=[*ranks, *(rank_record(rank, Outcome.VICTIM) for rank in range(2, 16))]), RECORD)
    assert kinds(*found) == [kind]


@pytest.mark.parametrize("outcome", [Outcome.DIED, Outcome.NOT_MEASURED])
def test_who_died_before_it_measured_is_not_told_to_measure(outcome):
    unmeasured = missed("gpu_health.memory.free", (3,)).model_copy(update={"status": Status.NOT_MEASURED})
    died = [rank_record(3, Outcome.DIED, "the worker ended with signal SIGSEGV")] if outcome is Outcome.DIED else []
    found = advice_on(row(unmeasured, outcome=outcome, ranks=died), RECORD)
    assert ("not_measured" in kinds(*found)) is (outcome is Outcome.NOT_MEASURED)
    assert found


def test_a_rank_that_did_not_answer_is_lost():
    found = advice_on(row(outcome=Outcome.LOST, ranks=[rank_record(rank, Outcome.PASSED) for rank in range(15)]), RECORD)
    assert kinds(*found) == ["rank_lost"]
    assert runs(found[0])[0] == "ping -c 3 node-02.example; ssh node-02.example uptime"


def test_a_rank_that_missed_a_limit_alone_has_the_kind_of_that_limit_alone():
    ranks = [rank_record(rank, Outcome.FAILED if rank == 2 else Outcome.PASSED) for rank in range(16)]
    assert kinds(*advice_on(row(missed("hbm.copy.bandwidth", (2,)), ranks=ranks), RECORD)) == ["memory_slow"]


@pytest.mark.parametrize("host", ["$(reboot)", "a; rm -rf /", "it's", "\x1b[31mred", "node\nreboot"])
def test_a_name_from_a_machine_is_one_word_for_a_shell(host):
    identity = RECORD.ranks[0].model_copy(update={"host": host})
    assert shlex.split(filled("ssh <HOST> uptime", names_of(identity, "run", {}))) == ["ssh", host, "uptime"]


@pytest.mark.parametrize("host", ["h" * 1_000_000, "-oProxyCommand=reboot", ""])
def test_what_cannot_be_a_name_is_left_out(host):
    identity = RECORD.ranks[0].model_copy(update={"host": host})
    assert filled("ping -c 3 <HOST>", names_of(identity, "run", {})) == "ping -c 3 <HOST>"


def test_the_run_as_a_whole_has_what_no_validation_tells():
    record = samples.rejected()
    objections = (
        Objection(kind=ObjectionKind.VALIDATION, nodeid=record.rows[0].nodeid, text="test_hbm.py::test_triad: SIGBUS"),
        Objection(kind=ObjectionKind.GPUS_UNTESTED, text="no rank opened GPUs 1-7 of node-01"),
        Objection(kind=ObjectionKind.NEVER_MEASURED, text="never measured: hbm.copy.bandwidth"),
    )
    record = samples.concluded(record, objections=objections)
    assert kinds(*advice_on_run(record)) == ["gpu_untested", "not_measured"]
    assert advice_on_run(samples.accepted()) == ()


@pytest.mark.parametrize(("control_lost", "kind"), [(True, "control_lost"), (False, "interrupted")])
def test_a_run_whose_ranks_lost_each_other_was_not_stopped_by_somebody(control_lost, kind):
    record = samples.accepted()
    record = conclude_again(record, RunEnd(interrupted="a word that nobody knows", control_lost=control_lost))
    assert kinds(*advice_on_run(record)) == [kind]


@pytest.mark.parametrize("make", samples.ALL.values(), ids=samples.ALL)
def test_no_problem_of_a_page_is_without_advice(make):
    record = make()
    assert [problem.row.nodeid for problem in problems(record) if not problem.advice] == []


@pytest.mark.parametrize("folder", ["h200-health/odd-board", "h200-lora/x2-fast", "h200-compute/x4-drill", "h200-compute/x4-competitor"])
def test_no_problem_of_a_real_run_is_without_advice(folder):
    found = problems(read_results(EVIDENCE / folder))
    assert found
    assert [problem.row.nodeid for problem in found if not problem.advice] == []


def test_the_page_has_the_decision_in_the_open_and_the_checks_folded():
    page = parse(build_page(samples.rejected()))
    remedy = table().remedies["memory_slow"]
    (open_text,) = [one.text for one in page.all("p") if remedy.do in one.text and "article" in one.path and "details" not in one.path]
    assert open_text.strip() == f"watch {remedy.title.replace('a GPU', 'A GPU', 1)}. {remedy.do}"
    folded = [one.text.strip() for one in page.all("pre") if "details" in one.path]
    assert "nvidia-smi --query-gpu=index,clocks.mem,clocks.max.memory,temperature.memory --format=csv" in folded


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
