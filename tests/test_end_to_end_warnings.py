"""One run of the shipped `nccl` on gloo, where it holds, beside a validation in which a line as of NCCL warns."""

import re
import shutil

import pytest
from suite import EXAMPLES, shipped_suite, torchrun

pytestmark = pytest.mark.launcher

OVERLAY = """
reason: "a CPU has no counters, but for warnings"
requires: [warns, counters]
parameters: {nccl.large_bytes: 65536, nccl.medium_bytes: 4096, nccl.block_s: 0.005, nccl.latency_block_s: 0.002, timing.num_blocks: 2}
limits:
  warns.value: {at_least: 1, unit: GB/s, scope: rank, source: "policy: of this example"}
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    suite = shipped_suite(tmp_path_factory.mktemp("warnings"), "nccl")
    shutil.copy(EXAMPLES / "warns.py", suite / "acceptance" / "test_warns.py")
    (suite / "warnings.yaml").write_text(OVERLAY)
    env = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": str(suite / "mine.%p"), "OMP_NUM_THREADS": "1"}
    return torchrun(suite, "--limits=warnings.yaml", env=env)


def warnings_in(ended, name):
    """By rank, of one row."""
    (attempt,) = ended.row(name).attempts
    return [
        {figure.metric: (figure.value, figure.detail) for figure in record.counters if figure.metric == "counters.warnings.nccl"}
        for record in attempt.ranks
    ]


def test_a_warning_fails_the_validation_that_it_came_in_and_names_the_rank(ended):
    row = ended.row("test_warns")
    assert row.outcome == "failed", ended.output
    said = r"counters\.warnings\.nccl = 1 count \(enqueue\.cc:1859 NCCL WARN planted\), need <= 0 count \[base\.yaml: .*\] on rank 1 \("
    assert re.search(said, row.message)
    assert warnings_in(ended, "test_warns")[0] == {"counters.warnings.nccl": (0, "")}


def test_the_next_validation_is_well_again(ended):
    assert ended.row("warns.py::test_next").outcome == "passed"
    assert warnings_in(ended, "warns.py::test_next") == [{"counters.warnings.nccl": (0, "")}] * 2


def test_the_shipped_nccl_holds_on_gloo_which_has_no_log(ended):
    assert ended.alone("nccl").line == "ACCEPTED (cpu profile: no GPU was tested)"
    assert ended.row("test_physics").outcome == "not applicable"
    assert "needs a GPU; torch sees none" in ended.row("test_physics").message
    for record in ended.row("test_latency_eager").attempts[0].ranks:
        latencies = ended.figures("test_latency_eager", record.rank)
        assert latencies.keys() == {f"all_reduce.latency_{size}_eager" for size in ("8b", "32k", "1m")}
        assert all(0 < figure.value < 1e6 and figure.unit == "us" for figure in latencies.values())


def test_what_the_user_set_is_in_the_report(ended):
    for identity in ended.record.ranks:
        assert identity.environment["NCCL_DEBUG"] == "VERSION"
        assert identity.environment["NCCL_DEBUG_FILE"].endswith("/mine.%p")
