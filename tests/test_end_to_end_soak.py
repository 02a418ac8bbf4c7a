"""The shipped soak in a real run on two ranks, for seconds where it is meant for hours; and what nobody asked for beside it."""

import shutil

import pytest
from suite import ROOT, plain_pytest, shipped_suite, torchrun

pytestmark = pytest.mark.launcher


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    made = shipped_suite(tmp_path_factory.mktemp("soak"), "soak")
    shutil.copy(ROOT / "acceptance" / "test_localise.py", made / "acceptance")
    return made


def test_a_soak_is_accepted_as_one_of_its_length(suite):
    ended = torchrun(suite, "--soak=2s", env={"OMP_NUM_THREADS": "1"})
    assert ended.verdict_line == "ACCEPTED (soak of 2 s, cpu profile: no GPU was tested)", ended.output
    assert ended.row("test_load").deadline_s == 62
    assert ended.row("test_corruption").deadline_s == 60
    assert {row.outcome for row in ended.record.rows if row.subject == "localise"} == {"not applicable"}
    assert "nobody asked which node or path is slow: --localise does" in ended.row("test_pairs").message
    header = ended.record.header
    assert (header.level, header.parameters["soak.duration_s"], header.not_at_level) == ("soak", 2, {})
    assert "<dt>level</dt><dd>soak of 2 s</dd>" in (ended.folder / "report.html").read_text()
    told = [{one.metric.removeprefix("soak."): one.value for one in rank.figures} for rank in ended.row("test_load").attempts[0].ranks]
    assert told[0]["load.rounds"] == told[1]["load.rounds"] >= 3
    for figures in told:
        assert figures["load.fraction"] >= 1
        assert (figures["gemm.wrong"], figures["hbm.wrong"], figures["nccl.wrong"]) == (0, 0, 0)
        assert figures["nccl.drift"] == pytest.approx(100 * (figures["nccl.lowest"] / figures["nccl.first"] - 1))
        assert 0 < figures["gemm.error"] < 0.005
    held = {one.metric for row in ended.record.rows for one in row.judgements if one.status == "held"}
    assert {"soak.nccl.drift", "soak.corruption.peers.hash", "soak.corruption.repeats.mismatches"} <= held


def test_the_plan_counts_its_time(suite):
    plan = plain_pytest(suite, "--plan", "--soak=4h")
    assert "profile cpu (no GPU), level soak of 4 h, " in plan.output
    assert "  acceptance/test_soak.py::test_load: 14405 s expected, deadline 14460 s\n" in plan.output
    assert "  acceptance/test_soak.py::test_corruption: 5 s expected, deadline 60 s\n" in plan.output
