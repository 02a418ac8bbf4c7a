"""`--plan` says of each line of a contract whether this run will answer it."""

from gpu_acceptance.run.plan import JobShape, contract_lines
from gpu_acceptance.thresholds.contract import Contract, ContractLine
from tests.judging import make_limit, make_profile

PROFILE = make_profile(
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


def planned(num_nodes, waivers=None):
    contract = Contract(file="c.yaml", sha256="ab" * 32, lines=LINES)
    return list(contract_lines(contract, PROFILE, JobShape(8, num_nodes), waivers or {}))


def test_what_is_asked_for_will_answer_and_of_the_rest_it_says_why_not():
    assert planned(1) == [
        "contract c.yaml: 4 lines",
        "  1: hbm.*, >= 120 GB/s",
        "  2: will not be tested: nccl.* is not part of this run",
        "  3: will not be tested: train.* is not part of this run",
        "  4: will not be tested: no matter of a test",
    ]


def test_more_nodes_answer_more_and_a_waiver_takes_an_answer_away():
    assert planned(2, {"hbm.*": "agreed"})[1:3] == [
        "  1: will not be tested: waived (agreed): hbm.triad.bandwidth: never measured",
        "  2: nccl.*",
    ]
