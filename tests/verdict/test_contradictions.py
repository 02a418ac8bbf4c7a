"""Whoever edits a verdict has to edit everything that speaks against it: each single edit is found, and named on one line."""

import copy
import json

import pytest

from gpu_acceptance.record.identity import MOST_RANKS
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.run_record import RunEnd, RunRecord
from gpu_acceptance.thresholds.contract import ContractLine
from gpu_acceptance.verdict.contract import judge_contract
from gpu_acceptance.verdict.contradictions import find_contradiction
from gpu_acceptance.verdict.run_record import make_run_record
from tests.journals import told
from tests.report import samples


def contradiction_of(sample, change):
    """What is found in a sample after `change` had its way with its JSON."""
    data = json.loads(sample().model_dump_json())
    change(data)
    return find_contradiction(RunRecord.model_validate_json(json.dumps(data)))


def concluded(coverage=None, **changes):
    def change(data):
        data["conclusion"]["coverage"].update(coverage or {})
        data["conclusion"].update(changes)

    return change


def in_row(number, **changes):
    return lambda data: data["rows"][number].update(changes)


def on_rank(number, place, **changes):
    return lambda data: data["rows"][number]["attempts"][0]["ranks"][place].update(changes)


def judged(number, **changes):
    """In the row and in the limits of the conclusion: a consistent edit of one judgement."""

    def change(data):
        judgement = data["rows"][number]["judgements"][0]
        limits = [one for one in data["conclusion"]["limits"] if (one["metric"], one["bound"]) == (judgement["metric"], judgement["bound"])]
        for one in (judgement, *limits):
            one.update(changes)

    return change


def measured(number, place, **changes):
    """The first figure of one rank."""
    return lambda data: data["rows"][number]["attempts"][0]["ranks"][place]["figures"][0].update(changes)


def without_figures(number, place):
    return lambda data: data["rows"][number]["attempts"][0]["ranks"][place].update(figures=[])


def twice(*path):
    """The last entry of a list is there once more."""

    def change(data):
        for key in path:
            data = data[key]
        data.append(data[-1])

    return change


def without_limit(data):
    """A limit is gone from what the run concludes, and the coverage knows nothing of it."""
    del data["conclusion"]["limits"][2]
    for name in ("limits_expected", "limits_judged", "limits_held"):
        data["conclusion"]["coverage"][name] -= 1


def with_an_untested_node(data):
    row = copy.deepcopy(data["rows"][1])
    row.update(nodeid="acceptance/test_slurm.py::test_partition", subject="slurm", judgements=[])
    for rank in row["attempts"][-1]["ranks"]:
        rank.update(nodeid=row["nodeid"], figures=[])
    untested = {"metric": "slurm.partition.untested", "value": 1, "unit": "count", "judged": False}
    row["attempts"][-1]["ranks"][0]["figures"].append(untested)
    data["rows"].append(row)


def at_level(data):
    data["header"]["level"] = "quick"


def with_overlay(data):
    data["changes"] = [{"kind": "loosened", "key": "limits", "old": "1", "new": "2", "file": "site.yaml", "sha256": "0" * 64}]


def with_a_far_bound(data):
    with_overlay_in("ACCEPTED (1 loosened, overlay site.yaml)")(data)
    data["far_bounds"] = [{"metric": "hbm.triad.bandwidth", "kind": "loosened", "ratio": 0.001}]


def at_level_with(line):
    def change(data):
        at_level(data)
        data["conclusion"]["line"] = line

    return change


def with_overlay_in(line):
    def change(data):
        with_overlay(data)
        data["conclusion"]["line"] = line

    return change


def in_attempt(place, **changes):
    return lambda data: data["rows"][place]["attempts"][0].update(changes)


def in_limits(**changes):
    return lambda data: data["conclusion"]["limits"][0].update(changes)


def without_hbm(data):
    del data["rows"][1]
    data["conclusion"]["limits"] = [one for one in data["conclusion"]["limits"] if not one["metric"].startswith("hbm")]
    for name in ("limits_expected", "limits_judged", "limits_held"):
        data["conclusion"]["coverage"][name] -= 1


def without_hbm_beside_declarations(data):
    """As every shipped profile has some: they are of other subjects."""
    without_hbm(data)
    data["not_applicable"] = {"infiniband.*": "one node", "gpu_health.retired*": "not on these"}
    data["waivers"] = {"h200.*": "another subject whose name begins alike"}


def without_ranks(*ranks):
    def change(data):
        data["header"]["ranks"] = [one for one in data["header"]["ranks"] if one["rank"] not in ranks]

    return change


def smaller_job(data):
    """Ranks 4 to 7 never existed, and nobody declared that."""
    data["header"]["ranks"] = [{**one, "world_size": 4, "local_world_size": 4} for one in data["header"]["ranks"][:4]]


def gpus_twice(data):
    for one in data["header"]["ranks"]:
        one["num_gpus_on_bus"] = 16


HBM = "test_hbm.py::test_hbm_triad"
FULL = f"acceptance/{HBM}"
TRIAD = "hbm.triad.bandwidth"
REDUCED = "acceptance/test_nccl.py::test_nccl_large[all_reduce]"


@pytest.mark.parametrize("sample", samples.ALL)
def test_samples_do_not_contradict_themselves(sample):
    assert find_contradiction(samples.ALL[sample]()) == ""


@pytest.mark.parametrize(
    "run", [told(), told(triad=(50.0,) * 4), told(rank_2=Outcome.DIED), told(rank_1=Outcome.SKIPPED), told(triad=(-1.0,) * 4)]
)
def test_what_a_run_concludes_does_not_contradict_itself(run):
    record = make_run_record(run.plan, run.job, run.rows(), ended_at="2026-11-20T07:21:40+00:00", end=RunEnd())
    assert find_contradiction(record) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (concluded(exit_code=1), "ACCEPTED with exit code 1; allowed: 0"),
        (concluded(verdict="INCOMPLETE", line="INCOMPLETE"), "INCOMPLETE with exit code 0; allowed: 2, 3, 5, 6"),
        (concluded(verdict="REJECTED", line="REJECTED"), "REJECTED with exit code 0; allowed: 1, 2, 3"),
        (concluded(line="REJECTED"), "ACCEPTED with the verdict line 'REJECTED'"),
        (concluded(line="ACCEPTEDish"), "ACCEPTED with the verdict line 'ACCEPTEDish'"),
        (concluded({"limits_held": 3}), "ACCEPTED, and 3 of 5 limits held"),
        (concluded({"limits_held": 0, "limits_expected": 0}), "ACCEPTED, and 0 of 0 limits held"),
        (concluded({"limits_held": 4, "limits_expected": 4}), "coverage says limits_expected 4, and ranks and limits give 5"),
        (concluded({"gpus_tested": 4, "gpus_existing": 4}), "coverage says gpus_existing 4, and ranks and limits give 8"),
        (concluded({"nodes": 2}), "coverage says nodes 2, and ranks and limits give 1"),
        (
            concluded(verdict="REJECTED", line="REJECTED", exit_code=1),
            "REJECTED, and no validation failed, died, was stuck or missed a limit, and no contract line was missed",
        ),
        (in_row(1, outcome="died", message="signal 9"), f"ACCEPTED, and {HBM}: signal 9"),
        (in_row(1, outcome="error", message="a\nb"), f"ACCEPTED, and {HBM}: a"),
        (in_row(1, outcome="not run"), f"ACCEPTED, and {HBM}: not run"),
        (in_row(1, attempts=[]), f"ACCEPTED, and {FULL} passed without an attempt"),
        (in_row(1, judgements=[]), "ACCEPTED, and hbm.triad.bandwidth held, judged in no validation"),
        (in_row(1, subject="smoke"), f"ACCEPTED, and {FULL} is told to be of subject smoke"),
        (judged(1, metric="gemm.triad"), "ACCEPTED, and gemm.triad held by subject hbm"),
        (on_rank(1, 5, outcome="stuck"), f"ACCEPTED, and {FULL} on rank 5: stuck"),
        (on_rank(1, 5, outcome="skipped"), f"ACCEPTED, and {FULL} passed, skipped on rank 5"),
        (on_rank(1, 5, rank=4), f"ACCEPTED, and attempt 1 of {FULL} is not of 8 ranks"),
        (judged(1, status="missed"), f"ACCEPTED, and {HBM}: "),
        (judged(1, status="invalid"), "ACCEPTED, and hbm.triad.bandwidth: invalid"),
        (judged(1, status="unstable"), "ACCEPTED, and hbm.triad.bandwidth: unstable"),
        (judged(1, status="waived"), "ACCEPTED, and hbm.triad.bandwidth waived by no waiver"),
        (judged(1, margin=-0.2), "ACCEPTED, and hbm.triad.bandwidth held with a margin of -0.2"),
        (in_limits(status="not measured"), "ACCEPTED, and gemm.bf16.tflops: not measured"),
        (in_limits(status="missed"), "ACCEPTED, and gemm.bf16.tflops: missed"),
        (in_limits(metric="gemm.fp8.tflops"), "ACCEPTED, and gemm.fp8.tflops held, judged in no validation"),
        (without_hbm, "ACCEPTED, and nothing is known of required subject hbm"),
        (without_hbm_beside_declarations, "ACCEPTED, and nothing is known of required subject hbm"),
        (without_ranks(5), "ACCEPTED, and 7 of 8 ranks said who they are"),
        (without_ranks(*range(8)), "ACCEPTED, and no rank said who it is"),
        (smaller_job, "ACCEPTED, and no rank opened GPUs 4-7 of node-01.example"),
        (gpus_twice, "ACCEPTED, and no rank opened 8 GPUs of node-01.example, unseen by NVML"),
        (concluded(reasons=["rank 3 died"]), "ACCEPTED, and a reason against it: rank 3 died"),
        (in_limits(value=800.0), "ACCEPTED, and gemm.bf16.tflops held, judged otherwise in its validations"),
        (in_limits(need=">= 1"), "ACCEPTED, and gemm.bf16.tflops held, judged otherwise in its validations"),
        (judged(1, value=4400.0), f"ACCEPTED, and {TRIAD} held in {FULL}, with 4400, which is no figure of it"),
        (judged(1, value=4333.0), f"ACCEPTED, and {TRIAD} held in {FULL}, with 4333, and rank 0 has 4330"),
        (judged(1, value=None), f"ACCEPTED, and {TRIAD} held in {FULL}, with no value, which is no figure of it"),
        (judged(1, need=">= 4500"), f"ACCEPTED, and {TRIAD} held in {FULL}, with 4312, need >= 4500"),
        (judged(1, need="much"), f"ACCEPTED, and {TRIAD} held in {FULL}, with 4312, need much"),
        (measured(1, 2, value=3000.0), f"ACCEPTED, and {TRIAD} held in {FULL}, with 4312, and rank 2 has 3000"),
        (measured(1, 2, value=None, anomaly="nan"), f"ACCEPTED, and {TRIAD} held in {FULL}, with 4312, and rank 2 has no value"),
        (without_figures(1, 2), f"ACCEPTED, and {TRIAD} held in {FULL}, where rank 2 has no figure of it"),
        (measured(2, 6, value=1), f"ACCEPTED, and nccl.all_reduce.wrong held in {REDUCED}, with 0, and rank 6 has 1"),
        (without_limit, f"ACCEPTED, and {TRIAD} judged (at_least), and not among the limits"),
        (twice("rows"), f"ACCEPTED, and {REDUCED} is there 2 times"),
        (twice("rows", 1, "attempts", 0, "ranks"), f"ACCEPTED, and attempt 1 of {FULL} is not of 8 ranks"),
        (twice("conclusion", "limits"), "ACCEPTED, and nccl.all_reduce.busbw_ring (at_least) is among the limits 2 times"),
        (
            in_row(1, nodeid="acceptance/test_nic.py::test_hbm_triad"),
            "ACCEPTED, and acceptance/test_nic.py::test_hbm_triad is told to be of subject hbm",
        ),
        (in_attempt(1, number=2), f"ACCEPTED, and attempt 1 of {FULL} is told to be attempt 2"),
        (on_rank(1, 5, attempt=2), f"ACCEPTED, and attempt 1 of {FULL} has what rank 5 did in attempt 2 of {FULL}"),
        (on_rank(1, 5, nodeid=REDUCED), f"ACCEPTED, and attempt 1 of {FULL} has what rank 5 did in attempt 1 of {REDUCED}"),
        (at_level, "ACCEPTED, and its line does not say 'quick'"),
        (at_level_with("ACCEPTED (overlay quick.yaml)"), "ACCEPTED, and its line does not say 'quick'"),
        (at_level_with("ACCEPTED, quick (1 waived)"), "ACCEPTED, and its line does not say 'quick'"),
        (with_overlay_in("ACCEPTED (11 loosened, overlay site.yaml)"), "ACCEPTED, and its line does not say '1 loosened'"),
        (lambda data: data["header"].update(allow_busy=True), "ACCEPTED, and its line does not say 'busy GPUs allowed'"),
        (with_an_untested_node, "ACCEPTED, and its line does not say '1 node of the partition drained or down: not tested'"),
        (with_overlay, "ACCEPTED, and its line does not say '1 loosened'"),
        (with_a_far_bound, "ACCEPTED, and its line does not say 'hbm.triad.bandwidth loosened to 0.1 % of its bound: a slip of the unit?'"),
        (lambda data: data["header"].update(rebuilt="rebuilt from 8 of 8 journals"), "ACCEPTED, and no reporter finished the run"),
        (lambda data: data["header"].update(measure_only=True), "ACCEPTED, and nothing was judged (--measure-only)"),
    ],
)
def test_each_edit_of_an_accepted_run_is_found(change, message):
    assert contradiction_of(samples.accepted, change) == message


@pytest.mark.parametrize("sample", [samples.rejected, samples.stuck, samples.incomplete])
@pytest.mark.parametrize("verdict", ["ACCEPTED", "INCOMPLETE", "REJECTED"])
def test_another_conclusion_over_the_same_rows_is_refused(sample, verdict):
    if verdict == sample().conclusion.verdict:
        return
    code = {"ACCEPTED": 0, "INCOMPLETE": 6, "REJECTED": 1}[verdict]
    assert contradiction_of(sample, concluded(verdict=verdict, line=verdict, exit_code=code, reasons=[])).startswith(f"{verdict}, and ")


def of_contract(*lines, verdict="ACCEPTED", code=0):
    """A sample of which every limit held, with a contract as it was judged, and then as `change` has it."""

    def made():
        record = samples.accepted()
        contract = judge_contract(samples.CONTRACT.model_copy(update={"lines": lines}), record.conclusion.limits, 1, {})
        changes = {"contract": contract, "verdict": verdict, "line": verdict, "exit_code": code}
        return record.model_copy(update={"conclusion": record.conclusion.model_copy(update=changes)})

    return made


MET = ContractLine(number="8.1", text="memory", metrics=("hbm.*",))
BEYOND = MET.model_copy(update={"at_least": 4400, "unit": "GB/s"})
UNTESTED = MET.model_copy(update={"metrics": ("nic.*",)})
EXCUSED = ContractLine(number="8.2", text="storage", not_tested="no matter of a test")


def with_state(state, reasons=()):
    return lambda data: data["conclusion"]["contract"]["lines"][0].update(state=state, reasons=reasons)


def excused(data):
    data["conclusion"]["contract"]["lines"][0]["declared"] = True


def unchanged(data):
    """As it was judged."""


@pytest.mark.parametrize(
    ("sample", "change", "message"),
    [
        (of_contract(MET), unchanged, ""),
        (of_contract(BEYOND, verdict="REJECTED", code=1), unchanged, ""),
        (of_contract(UNTESTED, verdict="INCOMPLETE", code=6), unchanged, ""),
        (of_contract(BEYOND, verdict="REJECTED", code=1), with_state("missed", ["cut elsewhere"]), ""),
        (
            of_contract(UNTESTED),
            excused,
            "contract line 8.1 is excused, and the limits give not tested: nic.* is not part of this run",
        ),
        (of_contract(BEYOND), unchanged, "ACCEPTED, and contract line 8.1 (memory) missed: hbm.triad.bandwidth = 4312 GB/s, the contract "),
        (of_contract(UNTESTED), unchanged, "ACCEPTED, and contract line 8.1 (memory) not tested: nic.* is not part of this run"),
        (of_contract(BEYOND), with_state("met"), "contract line 8.1 is met, and the limits give missed: hbm.triad.bandwidth = 4312 GB/s, "),
        (
            of_contract(UNTESTED),
            with_state("met"),
            "contract line 8.1 is met, and the limits give not tested: nic.* is not part of this run",
        ),
        (of_contract(MET, verdict="REJECTED", code=1), with_state("missed"), "contract line 8.1 is missed, and the limits give met: "),
        (of_contract(MET, EXCUSED), unchanged, "ACCEPTED, and its line does not say '1 of 2 lines of contract.yaml not tested'"),
    ],
)
def test_a_contract_and_the_verdict_over_it_say_the_same(sample, change, message):
    found = contradiction_of(sample, change)
    assert found.startswith(message)
    assert bool(found) == bool(message)


def test_a_world_that_somebody_made_up_takes_no_time():
    def change(data):
        data["header"]["ranks"][0]["world_size"] = MOST_RANKS

    assert contradiction_of(samples.accepted, change) == f"ACCEPTED, and 8 of {MOST_RANKS} ranks said who they are"


def test_a_node_that_never_came():
    def change(data):
        data["header"]["expected_nodes"] = 2

    assert contradiction_of(samples.accepted, change) == "ACCEPTED, and 1 node took part, and --expect-nodes wants 2"


def test_a_declared_number_of_gpus_excuses_the_others():
    record = samples.incomplete()
    assert record.header.declared_gpus == 4
    limits = tuple(one for one in record.conclusion.limits if one.status is Status.HELD)
    rows = tuple(row for row in record.rows if row.outcome in {Outcome.PASSED, Outcome.NOT_APPLICABLE})
    coverage = record.conclusion.coverage.model_copy(update={"limits_expected": 4})

    def accepted(line):
        changes = {"verdict": "ACCEPTED", "line": line, "exit_code": 0, "reasons": (), "limits": limits, "coverage": coverage}
        return record.model_copy(update={"rows": rows, "conclusion": record.conclusion.model_copy(update=changes)})

    assert find_contradiction(accepted("ACCEPTED for 4 of 8 GPUs (1 loosened, overlay site-example.yaml)")) == ""
    assert find_contradiction(accepted("ACCEPTED")) == "ACCEPTED, and its line does not say '4 of 8 GPUs'"
