"""Copies between GPUs in a real run, where buffers of one memory stand for GPUs: what one rank measured is what each is judged by.

And the pairs of `nic`, whose loopback goes over gloo here.
"""

import pytest
from suite import extend_conftest, shipped_suite, torchrun

pytestmark = pytest.mark.launcher

PLANTED = """
import os
from dataclasses import replace

from gpu_acceptance.measure import p2p

_really = p2p.bandwidth


def _planted(mode, **options):
    print("PLANTED by", os.environ["RANK"], flush=True)
    found = _really(mode, **options)
    rates = {pair: 2.0 if 1 in pair else 4.0 for pair in found.cells}
    return replace(found, cells={pair: replace(cell, value=rates[pair]) for pair, cell in found.cells.items()})


p2p.bandwidth = _planted
"""
OVERLAY = """
reason: "a planted fault: rank 1 is slow both ways"
limits:
  p2p.unidirectional.out.bandwidth: {at_least: 3, unit: GB/s, scope: rank, source: "policy: a planted fault must miss it"}
  p2p.unidirectional.in.bandwidth: {at_least: 3, unit: GB/s, scope: rank, source: "policy: a planted fault must miss it"}
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("p2p")
    suite = shipped_suite(folder / "suite", "p2p", "nic")
    extend_conftest(suite, PLANTED)
    (folder / "planted.yaml").write_text(OVERLAY)
    return torchrun(suite, f"--limits={folder / 'planted.yaml'}", ranks=3)


def test_a_gpu_that_is_slow_both_ways_is_named_and_no_other(ended):
    assert ended.verdict_line.startswith("REJECTED: 2 limits missed in 1 of 5 validations"), ended.output
    row = ended.row("test_p2p.py::test_bandwidth[unidirectional]")
    missed = {metric: judgement.ranks for metric, judgement in ended.missed("test_p2p.py::test_bandwidth[unidirectional]").items()}
    assert missed == {f"p2p.unidirectional.{way}.bandwidth": (1,) for way in ("out", "in")}
    assert "p2p.unidirectional.out.bandwidth = 2 GB/s (rank 1 to rank 0, the fastest of 2), need >= 3 GB/s" in row.message
    assert ended.outcomes()["test_latency"] == ended.outcomes()["test_bandwidth[bidirectional]"] == "passed"


def test_each_rank_tells_its_row_of_the_matrix(ended):
    told = [ended.values("test_p2p.py::test_bandwidth[unidirectional]", rank) for rank in range(3)]
    rates = [{int(metric[-1]): value for metric, value in values.items() if ".to_rank_" in metric} for values in told]
    assert rates == [{1: 2.0, 2: 4.0}, {0: 2.0, 2: 2.0}, {0: 4.0, 1: 2.0}]


def test_only_the_first_rank_of_the_node_measures(ended):
    logs = [(ended.folder / "logs" / f"rank-{rank:05d}.log").read_text() for rank in range(3)]
    assert ["PLANTED by 0" in log for log in logs] == [True, False, False]


def test_what_goes_between_nodes_does_not_apply_to_one(ended):
    row = ended.row("test_nic.py::test_share")
    assert (row.outcome, row.message, row.attempts) == ("not applicable", "needs at least 2 nodes, this job has 1", ())


def test_in_a_loopback_each_rank_met_each_other(ended):
    row = ended.row("test_nic.py::test_loopback")
    assert row.outcome == "passed", ended.output
    told = [ended.figures("test_nic.py::test_loopback", rank) for rank in range(3)]
    rates = [{int(metric[-1]): figure.value for metric, figure in figures.items() if ".with_rank_" in metric} for figures in told]
    assert [set(met) for met in rates] == [{1, 2}, {0, 2}, {0, 1}]
    for rank, figures in enumerate(told):
        best = max(rates[rank], key=rates[rank].get)
        assert rates[rank][best] == rates[best][rank] == figures["loopback.bandwidth"].value > 0
        assert figures["loopback.bandwidth"].detail == f"with rank {best}, the fastest of 2, through unknown (no connection told)"
        assert figures["loopback.wrong"].value == 0
