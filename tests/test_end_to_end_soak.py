"""The shipped soak in a real run on two ranks, for seconds where it is meant for hours."""

import shutil

import pytest
from suite import ROOT, extend_conftest, make_suite, plain_pytest, shipped_suite, torchrun

pytestmark = pytest.mark.launcher

# In each supervisor a stand-in for NVML's library; on rank 1 link 5 has repeated itself by the fourth round.
LINK_THAT_REPLAYS = f"""
import os, sys
from contextlib import contextmanager
from types import SimpleNamespace

import pynvml
from gpu_acceptance.supervisor import gpu_watch

sys.path.append({str(ROOT / "tests")!r})
from inventory import fake_nvml

sys.path.pop()
REPLAYS = "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"
real_ask, rank, glances, links = gpu_watch.CounterWatch.ask, int(os.environ.get("RANK", 0)), [], {{}}


@contextmanager
def library():
    values = {{**fake_nvml.FIELDS, **fake_nvml.COUNTERS}}
    fake_nvml.install(SimpleNamespace(setattr=setattr), nvmlDeviceGetFieldValues=lambda *asked: fake_nvml.fields(values, links)(*asked))
    yield pynvml


def ask(watch, uuid, *arguments, is_poll=False, **options):
    glances.extend([1] * is_poll)
    if rank == 1 and len(glances) > 3:
        links.update({{(REPLAYS, 5): 5, (REPLAYS, fake_nvml.ALL_LINKS): 39}})
    number = rank + 1
    real_ask(watch, f"GPU-0000000{{number}}-0000-4000-8000-00000000000{{number}}", *arguments, is_poll=is_poll, **options)


gpu_watch.library, gpu_watch.CounterWatch.ask = library, ask
"""


def small_suite(folder):
    """The shipped soak with rounds that take little of two processors which six tests share."""
    suite = shipped_suite(folder, "soak")
    profile = suite / "thresholds" / "cpu.yaml"
    before, after = "hbm.array_bytes: 8388608", "hbm.array_bytes: 1048576"
    assert before in profile.read_text()
    profile.write_text(profile.read_text().replace(before, after))
    return suite


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    made = small_suite(tmp_path_factory.mktemp("soak"))
    shutil.copy(ROOT / "acceptance" / "test_localise.py", made / "acceptance")
    return made


def test_a_soak_is_accepted_as_one_of_its_length(suite):
    ended = torchrun(suite, "--soak=2s", env={"OMP_NUM_THREADS": "1"})
    assert ended.verdict_line == "ACCEPTED (soak of 2 s, cpu profile: no GPU was tested)", ended.output
    assert ended.row("test_load").deadline_s == 302
    assert ended.row("test_corruption").deadline_s == 300
    assert {row.outcome for row in ended.record.rows if row.subject == "localise"} == {"not applicable"}
    assert "nobody asked which node or path is slow: --localise does" in ended.row("test_pairs").message
    plan = ended.record.plan
    assert (plan.profile.level, plan.profile.parameters["soak.duration_s"], plan.not_at_level) == ("soak", 2, {})
    assert "<dt>level</dt><dd>soak of 2 s</dd>" in (ended.folder / "report.html").read_text()
    told = [ended.values("test_load", rank) for rank in (0, 1)]
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
    assert "  acceptance/test_soak.py::test_load: 14405 s expected, deadline 14700 s\n" in plan.output
    assert "  acceptance/test_soak.py::test_corruption: 5 s expected, deadline 300 s\n" in plan.output


def test_a_link_that_replays_ends_a_soak_of_hours_and_is_named(tmp_path):
    suite = small_suite(tmp_path)
    profile = suite / "thresholds" / "cpu.yaml"
    profile.write_text(profile.read_text().replace('"counters.*":', '"counters.[!n]*":'))
    extend_conftest(suite, LINK_THAT_REPLAYS)
    ended = torchrun(suite, "--soak=4h", "-k", "test_load", env={"OMP_NUM_THREADS": "1"})
    row = ended.row("test_load")
    assert (ended.record.conclusion.verdict, str(row.outcome)) == ("REJECTED", "failed"), ended.output
    missed = ended.missed("test_load")
    assert set(missed) == {"counters.nvlink.replays", "soak.load.fraction"}
    assert "counters.nvlink.replays = 3 count (link 5: 3), need <= 0" in missed["counters.nvlink.replays"].message
    assert missed["counters.nvlink.replays"].ranks == (1,)
    assert "(ended after round 4: rank 1: counters.nvlink.replays = 3 (link 5: 3))" in missed["soak.load.fraction"].message
    assert [ended.values("test_load", rank)["load.rounds"] for rank in (0, 1)] == [4, 4]


def test_a_round_that_hangs_is_found_long_before_the_whole_time_is_over(tmp_path):
    ended = torchrun(make_suite(tmp_path, "lasts"))
    row = ended.row("test_lasts")
    assert row.deadline_s == 3604
    assert row.duration_s < 60
    assert (ended.record.conclusion.verdict, str(row.outcome)) == ("REJECTED", "stuck"), ended.output
    assert row.message.startswith("rank 1 "), row.message
    stuck = row.attempts[0].ranks[1]
    assert stuck.message.startswith("no round has ended for 4 s, after 2 rounds"), stuck.message
    assert "in test_lasts" in stuck.stack
