"""A forged verdict needs edits of everything that it follows from: concluding again finds each single edit."""

import copy
import json

import pytest

from gpu_acceptance.record.job import MOST_RANKS
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.contract import ContractLine
from gpu_acceptance.verdict.run_record import conclude_again, find_concluded_otherwise
from tests.journals import concluded as leave
from tests.journals import told
from tests.report import samples


def fault_of(record):
    return next(find_concluded_otherwise(record, conclude_again(record)), "")


def fault_in(sample, change):
    """Return the fault that is found in a sample after `change` edited its JSON."""
    data = json.loads(sample().model_dump_json())
    change(data)
    return fault_of(RunRecord.model_validate_json(json.dumps(data)))


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
    """Remove a limit from the conclusion and from the coverage."""
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
    data["plan"]["profile"]["not_applicable"] = {"infiniband.*": "one node", "gpu_health.retired*": "not on these"}
    data["plan"]["waivers"] = {"h200.*": "another subject whose name begins alike"}


def without_ranks(*ranks):
    def change(data):
        data["ranks"] = [one for one in data["ranks"] if one["rank"] not in ranks]

    return change


def smaller_job(data):
    """Ranks 4 to 7 never existed, and no declaration says so."""
    data["ranks"] = [{**one, "world_size": 4, "local_world_size": 4} for one in data["ranks"][:4]]


def gpus_twice(data):
    for one in data["ranks"]:
        one["num_gpus_on_bus"] = 16


REDUCED = "acceptance/test_nccl.py::test_nccl_large[all_reduce]"


@pytest.mark.parametrize("sample", samples.ALL)
def test_of_a_sample_the_same_is_concluded_again(sample):
    assert fault_of(samples.ALL[sample]()) == ""


@pytest.mark.parametrize(
    "run", [told(), told(triad=(50.0,) * 4), told(rank_2=Outcome.DIED), told(rank_1=Outcome.SKIPPED), told(triad=(-1.0,) * 4)]
)
def test_of_a_run_the_same_is_concluded_again(run):
    assert fault_of(leave(run)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        concluded(exit_code=1),
        concluded(verdict="INCOMPLETE", line="INCOMPLETE"),
        concluded(verdict="REJECTED", line="REJECTED", exit_code=1),
        concluded({"limits_held": 3}),
        concluded({"limits_held": 0, "limits_expected": 0}),
        concluded({"limits_held": 4, "limits_expected": 4}),
        concluded({"gpus_tested": 4, "gpus_existing": 4}),
        concluded({"nodes": 2}),
        in_row(1, outcome="died", message="signal 9"),
        in_row(1, outcome="error", message="a\nb"),
        in_row(1, outcome="not run"),
        in_row(1, attempts=[]),
        in_row(1, judgements=[]),
        in_row(1, subject="smoke"),
        in_row(1, deadline_s=1.0),
        lambda data: data["rows"].reverse(),
        in_row(1, nodeid="acceptance/test_nic.py::test_hbm_triad"),
        judged(1, metric="gemm.triad"),
        judged(1, status="missed"),
        judged(1, status="invalid"),
        judged(1, status="unstable"),
        judged(1, status="waived"),
        judged(1, margin=-0.2),
        judged(1, value=4400.0),
        judged(1, value=4333.0),
        judged(1, value=None),
        judged(1, asked=4500.0),
        judged(1, asked="much"),
        judged(1, source="policy: as agreed"),
        judged(1, ranks=[2]),
        on_rank(1, 5, outcome="stuck"),
        on_rank(1, 5, outcome="skipped"),
        on_rank(1, 5, rank=4),
        on_rank(1, 5, attempt=2),
        on_rank(1, 5, nodeid=REDUCED),
        in_attempt(1, number=2),
        in_limits(status="not measured"),
        in_limits(status="missed"),
        in_limits(metric="gemm.fp8.tflops"),
        in_limits(value=800.0),
        in_limits(asked=1.0),
        measured(1, 2, value=3000.0),
        measured(1, 2, value=None, anomaly="nan"),
        measured(2, 6, value=1),
        without_figures(1, 2),
        without_limit,
        without_hbm,
        without_hbm_beside_declarations,
        without_ranks(5),
        without_ranks(*range(8)),
        smaller_job,
        gpus_twice,
        twice("rows"),
        twice("rows", 1, "attempts", 0, "ranks"),
        twice("conclusion", "limits"),
        with_an_untested_node,
        lambda data: data["ranks"][0].update(world_size=MOST_RANKS),
        lambda data: data["end"].update(interrupted="SIGTERM"),
        lambda data: data["end"].update(not_concluded=["no reporter saw this run whole"]),
        lambda data: data["plan"].update(expected_nodes=2),
        lambda data: data["plan"].update(not_collected=["test_nic.py: no validations"]),
        lambda data: data["plan"].update(waivers={"gemm.*": "a ticket"}),
        lambda data: data["plan"]["profile"].update(not_applicable={"gemm.*": "none"}),
        lambda data: data["plan"]["profile"].update(requires=["gemm", "hbm", "nccl", "nic"]),
        lambda data: data["plan"]["profile"]["limits"].pop("hbm.triad.bandwidth"),
        lambda data: data["plan"]["profile"]["limits"]["hbm.triad.bandwidth"].update(at_least=1.0),
        lambda data: data["plan"].update(run_id="another"),
    ],
)
def test_each_edit_of_an_accepted_run_is_found(change):
    assert fault_in(samples.accepted, change)


@pytest.mark.parametrize("sample", [samples.rejected, samples.stuck, samples.incomplete])
@pytest.mark.parametrize("verdict", ["ACCEPTED", "INCOMPLETE", "REJECTED"])
def test_another_conclusion_over_the_same_rows_is_refused(sample, verdict):
    if verdict == sample().conclusion.verdict:
        return
    code = {"ACCEPTED": 0, "INCOMPLETE": 6, "REJECTED": 1}[verdict]
    found = fault_in(sample, concluded(verdict=verdict, line=verdict, exit_code=code, objections=[]))
    assert found.startswith(f"conclusion.verdict is '{verdict}', and what the record holds gives ")


MET = ContractLine(number="8.1", text="memory", metrics=("hbm.*",))
BEYOND = MET.model_copy(update={"at_least": 4400, "unit": "GB/s"})
UNTESTED = MET.model_copy(update={"metrics": ("nic.*",)})


def of_contract(line):
    return lambda: samples.accepted(contract=samples.CONTRACT.model_copy(update={"lines": (line,)}))


def with_state(state):
    return lambda data: data["conclusion"]["contract"]["lines"][0].update(state=state, reasons=[])


def excused(data):
    data["conclusion"]["contract"]["lines"][0]["declared"] = True


@pytest.mark.parametrize(
    ("line", "change", "is_found"),
    [
        (MET, with_state("met"), False),
        (MET, with_state("missed"), True),
        (BEYOND, with_state("missed"), False),
        (BEYOND, with_state("met"), True),
        (UNTESTED, with_state("met"), True),
        (UNTESTED, excused, True),
    ],
)
def test_a_contract_and_the_verdict_over_it_say_the_same(line, change, is_found):
    assert fault_in(of_contract(line), change) == ("conclusion.contract is not what its lines and the limits give" if is_found else "")
