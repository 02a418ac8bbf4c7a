"""The committed runs are what their pages and documents say, can be read by the present schema, and name no machine."""

import importlib.util
import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
from report.pages import parse

from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.files import read_results
from gpu_acceptance.report.build import REPORT, build_page
from gpu_acceptance.report.words import exact, judged_figure
from gpu_acceptance.thresholds.limit import bound_at
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "reports" / "samples"
EVIDENCE = ROOT / "reports" / "evidence"
ACCEPTED = SAMPLES / "h200x2-accepted"
RUNS = sorted(path.parent for folder in (SAMPLES, EVIDENCE) for path in folder.rglob("results.json"))
FILES = sorted(path for folder in (SAMPLES, EVIDENCE) for path in folder.rglob("*") if path.is_file())
each_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(ROOT / "reports")))


def folded(text):
    return re.sub(r"\s+", " ", text).strip()


def assert_it_says(page, record):
    """The page gives the verdict line, the coverage, and figure and bound of every limit."""
    page = parse(page)
    assert folded(page.all("h1")[0].text).endswith(f" {record.conclusion.line}")
    tiles = folded(next(one for one in page.all("dl") if one.attributes.get("class") == "tiles").text)
    for name in ("limits_expected", "limits_judged", "limits_held"):
        assert f"{name.replace('_', ' ')} {getattr(record.conclusion.coverage, name)} " in f"{tiles} "
    lines = [folded(one.text) for one in page.all("tr")]
    for limit in record.conclusion.limits:
        six_digits = f"{limit.value:.6g}" if isinstance(limit.value, float) else ""  # so in the pages of earlier versions
        figures = {judged_figure(limit), exact(limit.value), six_digits} - {""}
        named = [line for line in lines if line.startswith(f"{limit.metric} ") and limit.need in line]
        assert any(figure in line for figure in figures for line in named), limit.metric


@each_run
def test_a_committed_run_can_be_read_its_page_says_what_its_results_say_and_its_names_are_stand_ins(run):
    """If the committed page does not, `make docs` builds it anew."""
    record = read_results(run)
    assert_it_says(build_page(record), record)
    if (run / REPORT).exists():
        assert_it_says((run / REPORT).read_text(encoding="utf-8"), record)
    for identity in record.ranks:
        assert re.fullmatch(r"node-\d\d", identity.host)
        for gpu in identity.gpus:
            assert re.fullmatch(r"16500000\d{4}", gpu.serial)
            assert gpu.uuid.startswith("GPU-00000000-0000-0000-")


@pytest.mark.parametrize(
    ("run", "code"),
    [
        ("samples/h200x2-accepted", 0),
        ("samples/h100x2-rejected", 1),
        ("evidence/h200x8-accept/gpus8", 3),
        ("evidence/h200-health/odd-board", 1),
        ("evidence/h200-health/one-gpu", 3),
        ("evidence/h200x8-accept/raised", 1),
        ("evidence/h200x2-accept/quick", 1),
    ],
)
def test_the_verdict_of_a_committed_run_can_be_asked_for(capsys, run, code):
    """A run that says ACCEPTED without a manifest gets no more than that."""
    folder = ROOT / "reports" / run
    line = read_results(folder).conclusion.line
    assert main(["verdict", str(folder)]) == code
    said = capsys.readouterr()
    no_manifest = f"gpu-acceptance: {folder}: no SHA256SUMS, which a run writes last, beside a results.json that says "
    assert (said.err if code == 3 else said.out).startswith(f"{no_manifest}{line}: the run still " if code == 3 else f"{line} | ")


@pytest.mark.parametrize("run", ["h100x2-rejected", "h200x2-accepted"])
def test_a_sample_is_what_its_manifest_says(capsys, run):
    assert main(["report", "verify", str(SAMPLES / run)]) == 0
    assert "\nCONSISTENT: " in capsys.readouterr().out


def test_the_accepted_sample_is_of_all_gpus_of_a_node_and_all_its_limits_held():
    coverage = read_results(ACCEPTED).conclusion.coverage
    assert (coverage.nodes, coverage.ranks, coverage.gpus_tested, coverage.gpus_existing) == (1, 2, 2, 2)
    assert coverage.limits_expected == coverage.limits_judged == coverage.limits_held == 136


def test_the_journals_of_the_sample_tell_the_same(tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(ACCEPTED, run)
    for name in ("results.json", "SHA256SUMS"):
        (run / name).unlink()
    assert main(["report", "build", str(run)]) == 6, capsys.readouterr()
    assert judged(read_results(run)) == judged(read_results(ACCEPTED))


def judged(record):
    return {(one.metric, one.bound): (one.status, one.value, one.need, one.ranks) for one in record.conclusion.limits}


@pytest.fixture(scope="module")
def comparison():
    spec = importlib.util.spec_from_file_location("make_comparison", ROOT / "tools" / "make_comparison.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_comparison_is_that_of_the_committed_figures(comparison):
    """If it is not, tools/make_comparison.py writes it anew."""
    assert comparison.PAGE.read_text(encoding="utf-8") == comparison.page()


@pytest.mark.parametrize(("busbw", "inside"), [(97.9, False), (98.1, True), (105.0, True), (112.1, True), (112.3, False)])
def test_inside_is_between_the_columns_widened_by_2_percent(comparison, busbw, inside):
    assert comparison.is_inside(busbw, (110.0, 100.0)) is inside


def spans(source):
    """By number of GPUs: lowest and highest of each range that the source of a limit names, the one it was made from first."""
    parts = re.split(r"\b(\d) GPUs ", source)
    texts = zip(parts[1::2], parts[2::2], strict=True)
    return {int(num_gpus): re.findall(r"(\d{3}\.\d)(?:-(\d{3}\.\d))?", text) for num_gpus, text in texts}


def further(comparison, num_gpus, collective):
    """Figures of 4 GiB in other evidence: medians over blocks on pairs of GPUs, and a run on another node."""
    if num_gpus == 8:
        return {round(one, 1) for one in comparison.figures(EVIDENCE / "h200-health" / "odd-board", f"nccl.{collective}.busbw")}
    texts = [(EVIDENCE / name).read_text() for name in ("block-levels-2-gpus.jsonl", "all-gather-2-gpus.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()] if num_gpus == 2 else []
    at_4_gib = [line for line in lines if (line["collective"], line["num_bytes"]) == (collective, 4 * 2**30)]
    return {round(statistics.median(line["busbw_gb_per_s"]), 1) for line in at_4_gib}


def figures(readings):
    return {round(one.busbw_gb_per_s, 1) for one in readings}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_a_limit_of_site_nvls_off_comes_from_readings_that_would_be_judged(comparison, collective, num_gpus):
    """Each figure of 4 GiB is in a range of its source, both ends of a range are such figures, and the lowest that counts is stable.

    all_gather is measured in place since readings on 2 GPUs showed what placement does: those out of place no longer count.
    """
    limit = load_profile("h200-sxm", shipped_dir(), [Path("site-nvls-off")]).limits[f"nccl.{collective}.busbw"]
    ours = [one for one in comparison.readings() if (one.num_gpus, one.collective, one.num_bytes) == (num_gpus, collective, 4 * 2**30)]
    present = [one for one in ours if collective != "all_gather" or one.origin == "run" or one.origin.endswith(" in place")]
    stable = figures(one for one in present if one.cv_percent <= bound_at(limit.spread_at_most, num_gpus, 1))
    theirs = {round(column, 1) for column in comparison.nccl_tests()[num_gpus, collective, 4 * 2**30]}
    found = [(float(low), float(high or low)) for low, high in spans(limit.source)[num_gpus]]
    assert [one for one in figures(ours) | theirs if not any(low <= one <= high for low, high in found)] == []
    committed = figures(ours) | theirs | further(comparison, num_gpus, collective)
    assert [end for ends in found for end in ends if not any(abs(end - one) < 0.15 for one in committed)] == []
    lowest = found[0][0]
    assert lowest <= min(stable)
    assert lowest not in figures(present) - stable
    assert limit.at_least[num_gpus] == int(0.95 * lowest)


NAMES = {
    "a UUID": r"(?<![0-9a-f])(?!00000000-0000-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "a serial number": r"serial\W+(?!16500000\d{4}\b)\d{8,}",
    "a path of its machine": r"(?<![\w.-])/(?:work|home|root|opt|mnt|srv|data|scratch|var|tmp(?!/torch(?:elastic|inductor)_))/[\w.-]+",
    "an address": r"(?<![\w.-])(?!127\.|0\.0\.0\.0|192\.0\.2\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w.-])",
    "a link to outside": r'<a href="https?:[^"]*"',
}


def text_of(path):
    """Return the text of a file, also that within a picture."""
    return path.read_bytes().decode("utf-8", "replace")


@pytest.mark.parametrize("kind", NAMES)
def test_no_file_names(kind):
    assert len(FILES) > 30
    found = {str(path.relative_to(ROOT)): re.findall(NAMES[kind], text_of(path), re.IGNORECASE)[:3] for path in FILES}
    assert {path: hits for path, hits in found.items() if hits} == {}
