"""The shipped validations of corruption and of memory in real runs: one rank alone, and two, on one of which faults were planted."""

import re

import pytest
from suite import plain_pytest, shipped_suite, torchrun

from gpu_acceptance.measure.corruption import kernels

pytestmark = pytest.mark.launcher

DRILL = """
reason: "a drill: are a flipped bit and a wrong word found, and the right rank named?"
parameters: {corruption.planted_flip_every: 50, corruption.planted_flip_rank: 1, memory.planted_words: 1, memory.planted_rank: 1}
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    made = shipped_suite(tmp_path_factory.mktemp("corruption"), "corruption", "memory")
    (made / "drill.yaml").write_text(DRILL)
    return made


def judgement_of(ended, metric):
    (judgement,) = [one for one in ended.row("test_kernels").judgements if one.metric == f"corruption.{metric}"]
    return judgement


def test_a_rank_that_agrees_with_itself_is_accepted_and_claims_no_peers(suite):
    alone = plain_pytest(suite, env={"OMP_NUM_THREADS": "1"})
    assert alone.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)", alone.output
    assert judgement_of(alone, "peers.hash").status == "not applicable"
    assert judgement_of(alone, "peers.hash").message == "corruption.peers.hash: not applicable: one figure has nothing to be equal to"
    assert (alone.record.conclusion.coverage.limits_expected, alone.record.conclusion.coverage.limits_held) == (7, 7)
    figures = alone.figures("test_kernels")
    assert figures["kernels.run"].detail == "mm_tf32: a CPU has no TF32"
    assert figures["detection.limit_of_one_kernel"].value > figures["detection.limit"].value > 0
    for name in kernels.NAMES:
        assert (f"{name}.hash" in figures) == (name != "mm_tf32")
    assert len(set(figures["sort.hash"].value.split())) == len(kernels.SIZES)
    assert "corruption.detection.limit" in (alone.folder / "report.html").read_text()


def test_a_planted_fault_is_found_on_its_rank_alone_and_the_report_shows_that_it_was_planted(suite):
    drill = torchrun(suite, "--limits=drill.yaml")
    assert drill.returncode == 1, drill.output
    line = "REJECTED: 4 limits missed in 2 of 2 validations (cpu profile: no GPU was tested, 4 limits changed by overlay drill.yaml)"
    assert drill.verdict_line == line
    found = judgement_of(drill, "repeats.mismatches")
    num_planted = drill.figures("test_kernels", 1)["planted.flips"].value
    assert (found.status, found.ranks, found.value) == ("missed", (1,), num_planted)
    assert num_planted > 0
    assert re.search(r"repetitions differ \(1 element of output 0 at 77, bits 0*8; \d of 3 re-runs differ, planted\)", found.message)
    assert judgement_of(drill, "planted.flips").ranks == (1,)
    assert drill.figures("test_kernels")["peers.hash"].value == drill.figures("test_kernels", 1)["peers.hash"].value
    assert [judgement_of(drill, metric).status for metric in ("peers.hash", "inputs.changed", "kernels.run")] == ["held"] * 3
    clean = drill.figures("test_kernels")
    assert (clean["repeats.mismatches"].value, clean["planted.flips"].value) == (0, 0)
    changed = {change.key: (change.old, change.new) for change in drill.record.plan.profile.changes}
    assert changed == {
        "parameter corruption.planted_flip_every": ("0", "50"),
        "parameter corruption.planted_flip_rank": ("0", "1"),
        "parameter memory.planted_words": ("0", "1"),
        "parameter memory.planted_rank": ("0", "1"),
    }
    wrong, planted = drill.missed("test_patterns").values()
    assert (wrong.metric, wrong.ranks, wrong.value) == ("memory.fill.wrong", (1,), 1)
    assert re.search(r"random: byte 0x\w+ of the tested memory .*, XOR 0x0000010000000000", wrong.message)
    assert (planted.metric, planted.ranks) == ("memory.planted.words", (1,))
    assert "parameter corruption.planted_flip_every" in (drill.folder / "report.html").read_text()
