"""`--contract=FILE` in real runs: what it asks beyond the limits rejects, and what is wrong in it refuses the run on all ranks."""

import pytest
from suite import make_suite, torchrun

from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.files import read_results

pytestmark = pytest.mark.launcher

CONTRACT = """
title: "annex B"
lines:
  8.1: {text: "what passes", metrics: ["passes.*"]}
  8.2: {text: "twice as fast", metrics: [passes.value], at_least: 2.5, unit: GB/s}
  8.3: {text: "the network", metrics: [passes.value], nodes: several}
"""
WHY = "contract line 8.2 (twice as fast) missed: passes.value = 2 GB/s, the contract asks for >= 2.5 GB/s; its limit, >= 1, held"


@pytest.fixture(scope="module")
def missed(tmp_path_factory):
    """Two ranks, 2 and 3 GB/s, with a limit of 1: every limit held."""
    suite = make_suite(tmp_path_factory.mktemp("suite"), "passes")
    (suite / "annex b.yaml").write_text(CONTRACT)
    return torchrun(suite, "--contract=annex b.yaml")


def test_a_line_beyond_the_limits_rejects_on_every_rank_and_stands_on_the_page(missed):
    conclusion = missed.record.conclusion
    assert missed.rank_exit_codes == {0: 1, 1: 1}
    assert missed.verdict_line == (
        "REJECTED: 1 contract line missed (cpu profile: no GPU was tested, 1 of 3 lines of annex b.yaml not tested)"
    )
    assert (conclusion.coverage.limits_expected, conclusion.coverage.limits_held) == (1, 1)
    assert missed.reasons == WHY
    assert "contract annex b.yaml: 3 lines: 1 met, 1 missed, 1 not tested" in missed.output
    assert "\nMISSED contract line 8.2: twice as fast: passes.value = 2 GB/s, the contract asks for >= 2.5 GB/s" in missed.output
    record = missed.record
    assert list(record.plan.profile.digests) == ["base.yaml", "cpu.yaml", "annex b.yaml"]
    assert record.conclusion.contract.sha256 == record.plan.profile.digests["annex b.yaml"]
    page = (missed.folder / "report.html").read_text()
    assert f"<code>annex b.yaml</code>, annex B, sha256 <code>{record.conclusion.contract.sha256}</code>" in page
    assert "asks for &gt;= 2.5 GB/s" in page


def test_page_and_lines_are_built_again_from_the_results_and_from_the_journals(missed, capsys):
    page, contract = missed.folder / "report.html", missed.record.conclusion.contract
    as_written = page.read_bytes()
    assert main(["report", "build", str(missed.folder)]) == 0
    assert page.read_bytes() == as_written
    for name in ("results.json", "SHA256SUMS"):
        (missed.folder / name).unlink()
    main(["report", "build", str(missed.folder)])
    rebuilt = read_results(missed.folder).conclusion
    assert rebuilt.contract == contract
    assert rebuilt.line.startswith("REJECTED: 1 contract line missed, no reporter saw this run whole")
    capsys.readouterr()


def test_a_contract_that_nothing_can_answer_refuses_the_run_on_all_ranks(tmp_path):
    suite = make_suite(tmp_path, "passes")
    (suite / "c.yaml").write_text("lines: {8.2: {text: a, metrics: [pases.value]}}")
    refused = torchrun(suite, "--contract=c.yaml")
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    says = "--contract: c.yaml: lines.8.2.metrics: pases.value matches no limit of profile cpu"
    assert f"{says}; did you mean 'passes.value'?" in refused.output
    assert refused.folder is None
