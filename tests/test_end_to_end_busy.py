"""A GPU that another process uses: refused before any worker starts, on all ranks, with one text; `--allow-busy` goes on and says so.

NVML shows the GPUs here, and nothing else does: a run that goes on ends where its workers open them.
"""

from pathlib import Path

import pytest
from suite import make_suite, plain_pytest, torchrun

pytestmark = pytest.mark.launcher

WITH_GPUS = {"PYTHONPATH": str(Path(__file__).with_name("fakegpus"))}


@pytest.fixture
def suite(tmp_path):
    made = make_suite(tmp_path, "passes")
    limits = (made / "thresholds" / "cpu.yaml").read_text()
    (made / "thresholds" / "h200-sxm.yaml").write_text(f"match: {{device_name: NVIDIA H200}}\n{limits}")
    return made


def test_it_is_refused_by_name_before_any_worker_starts(suite):
    refused = torchrun(suite, env=WITH_GPUS)
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    text = "ERROR: somebody else uses 1 GPU of this job, so that no figure would be that of the hardware:"
    assert refused.output.count(text) == 1, refused.output
    (line,) = {line.strip() for line in refused.output.splitlines() if "(pid 1607" in line and "Error" not in line}
    assert line.endswith(", GPU 1, serial 1653924100002: 1 process (pid 1607: 1204 MiB), 616 MiB in use")
    assert "--allow-busy runs all the same, and the verdict says so" in refused.output
    assert refused.folder is None


def test_asked_to_it_goes_on_and_the_verdict_line_says_so(suite):
    allowed = torchrun(suite, "--allow-busy", env=WITH_GPUS)
    record = allowed.record
    assert record.plan.allow_busy
    assert record.plan.waivers == {"gpu_health.processes.*": "GPUs that somebody else uses are allowed (--allow-busy)"}
    assert "busy GPUs allowed" in record.conclusion.line
    assert [process.pid for process in record.ranks[0].gpus[1].use.processes] == [1607]
    assert "this node has GPUs, but torch" in allowed.output
    page = (allowed.folder / "report.html").read_text()
    assert "GPUs that somebody else uses were allowed (--allow-busy)" in page
    assert "1 process (pid 1607: 1204 MiB), 616 MiB in use" in page


def test_the_other_gpu_alone_is_free(suite):
    """It goes on to its worker, which finds that torch sees no GPU."""
    found = plain_pytest(suite, "--gpus=1", env=WITH_GPUS)
    assert "somebody else" not in found.output
    assert "this node has GPUs, but torch" in found.output
