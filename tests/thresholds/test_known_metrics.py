"""Metrics that an overlay may limit: what a profile limits or lists among its figures, and all of a site's own subjects."""

import ast
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from test_acceptance_rules import checked_metrics, glob_of
from test_repo_rules import parsed

from gpu_acceptance.inventory import counters, nccl_log
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.known_metrics import known_metrics, nearest_metric
from gpu_acceptance.thresholds.limit import COUNTERS, FarBound
from gpu_acceptance.thresholds.profile import load_profile, read_profiles, shipped_dir

ROOT = Path(__file__).parents[2]
SHIPPED = known_metrics(read_profiles(shipped_dir()), suite=ROOT / "acceptance")
BASE = """\
deadline_s: 60
figures:
  "hbm.{copy,triad}.best": GB/s
  p2p.latency.to_rank_*: us
limits:
  hbm.copy.bandwidth: {at_least: 4000, ceiling: 4800, unit: GB/s, scope: rank, source: "policy: an example for tests"}
  hbm.copy.spread: {at_most: 5, unit: "%", scope: rank, source: "policy: an example for tests"}
  hbm.copy.wrong: {at_most: 0, unit: elements, scope: rank, source: "policy: an example for tests"}
"""


@pytest.fixture
def overlay(tmp_path):
    """Lays an overlay on the example, or on an overlay before it."""
    (tmp_path / "thresholds").mkdir()
    (tmp_path / "thresholds" / "cpu.yaml").write_text(BASE.replace("p2p.latency.to_rank_*", '"p2p.latency.to_rank_*"'))

    def load(*texts, suite=None):
        paths = [tmp_path / f"mine{'-too' * number}.yaml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return load_profile("cpu", tmp_path / "thresholds", paths, suite)

    return load


def limit(metric, bound="at_least: 4000", unit="GB/s"):
    return f'limits:\n  {metric}: {{{bound}, unit: "{unit}", scope: rank, source: "policy: what this test asks for"}}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (limit("hbm.copy.bandwith"), "limits.hbm.copy.bandwith: no validation has this metric; did you mean 'hbm.copy.bandwidth'?"),
        (
            limit("hmb.copy.bandwidth"),
            "limits.hmb.copy.bandwidth: no validation has this metric; there is no subject 'hmb'; did you mean 'hbm'?",
        ),
        (limit("gemm.bf16.rate"), "limits.gemm.bf16.rate: no validation has this metric; there is no subject 'gemm'"),
        (limit("hbm.other"), "limits.hbm.other: no validation has this metric; `gpu-acceptance explain hbm` lists those of its subject"),
        (
            limit("hbm.copy.bandwidth", "at_least: 4", "TB/s"),
            "limits.hbm.copy.bandwidth: the unit is 'TB/s', and this metric is measured in 'GB/s'; a limit cannot change that",
        ),
        (
            limit("hbm.triad.best", unit="MB/s"),
            "limits.hbm.triad.best: the unit is 'MB/s', and this metric is measured in 'GB/s'; a limit cannot change that",
        ),
        (
            limit("hbm.copy.bandwidth", "at_least: {1: 4000, 2: 4153000}"),
            "limits.hbm.copy.bandwidth (line 2): at_least at 2 is 4153000, above the ceiling 4800, the most that is physically possible; "
            "is it in GB/s? If it is meant, give a higher ceiling beside it",
        ),
    ],
)
def test_a_limit_that_nothing_could_be_judged_by(overlay, text, says):
    with pytest.raises(LimitsError) as caught:
        overlay(text)
    assert str(caught.value) == f"mine.yaml: {says}"


@pytest.mark.parametrize(
    ("metric", "unit"),
    [("hbm.copy.bandwidth", "GB/s"), ("hbm.copy.best", "GB/s"), ("hbm.triad.best", "GB/s"), ("p2p.latency.to_rank_7", "us")],
)
def test_what_is_limited_or_a_figure_may_be_limited(overlay, metric, unit):
    assert metric in overlay(limit(metric, unit=unit)).limits


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            "hbm.copy.bandwidth: {at_least: 9000, at_most: 100, unit: TB/s, scope: rank, source: why}",
            (
                r"limits\.hbm\.copy\.bandwidth\.source \(line 1\): 'why' is not allowed; allowed: a sentence of 20 characters",
                r"limits\.hbm\.copy\.bandwidth \(line 1\): at_least is 9000, above the ceiling 4800, .*, above at_most 100",
                r"limits\.hbm\.copy\.bandwidth: the unit is 'TB/s', and this metric is measured in 'GB/s'",
            ),
        ),
        (
            "hbm.cpoy.bandwidth: {at_leats: 1, scope: gpu, source: why}",
            (
                r"limits\.hbm\.cpoy\.bandwidth\.unit \(line 1\): is missing; needed: the unit that the test passes",
                r"limits\.hbm\.cpoy\.bandwidth\.scope \(line 1\): 'gpu' is not allowed; allowed: whose figure it is",
                r"limits\.hbm\.cpoy\.bandwidth\.source \(line 1\): 'why' is not allowed",
                r"limits\.hbm\.cpoy\.bandwidth\.at_leats \(line 1\): unknown key; .*; did you mean 'at_least'\?",
                r"limits\.hbm\.cpoy\.bandwidth: no validation has this metric; did you mean 'hbm\.copy\.bandwidth'\?",
            ),
        ),
        (
            "hbm.copy.bandwidth: {at_least: {nodes: {2: 9000, 3-8: none}}, min_ranks_per_node: 4, unit: GB/s, scope: rank, source: why}",
            (
                r"limits\.hbm\.copy\.bandwidth\.source \(line 1\): 'why' is not allowed",
                r"limits\.hbm\.copy\.bandwidth \(line 1\): at_least at 2 nodes is 9000, above the ceiling 4800, ",
            ),
        ),
        ("hbm.copy.bandwidth: 5", (r"limits\.hbm\.copy\.bandwidth \(line 1\): 5 is not allowed",)),
        (
            "hbm.copy.bandwidth: {at_least: much, unit: GB/s, scope: rank, source: why}",
            (r"limits\.hbm\.copy\.bandwidth\.at_least \(line 1\): 'much' is not allowed", r"limits\.hbm\.copy\.bandwidth\.source"),
        ),
    ],
)
def test_all_faults_of_an_entry_are_told_at_once(overlay, entry, says):
    with pytest.raises(LimitsError) as caught:
        overlay(f"limits: {{{entry}}}")
    lines = str(caught.value).split("\n")
    assert len(lines) == len(says), lines
    for line, expected in zip(lines, says, strict=True):
        assert re.match(rf"mine\.yaml: {expected}", line), line


def test_a_ceiling_of_its_own_says_that_a_bound_is_meant(overlay):
    assert overlay(limit("hbm.copy.bandwidth", "at_least: 5000, ceiling: 6000")).limits["hbm.copy.bandwidth"].ceiling == 6000


def test_an_overlay_may_declare_figures_for_itself_and_for_others(overlay):
    declared = 'figures: {"hbm.{new,odd}.rate": GB/s}\n'
    assert overlay(declared + limit("hbm.odd.rate"), limit("hbm.new.rate")).limits.keys() > {"hbm.odd.rate", "hbm.new.rate"}


def test_an_overlay_among_the_profiles_knows_no_metric_by_itself(tmp_path):
    (tmp_path / "cpu.yaml").write_text("deadline_s: 60\n")
    for name in ("site-mine.yaml", "mine.yaml"):
        (tmp_path / name).write_text(limit("hbm.copy.bandwidth"))
        with pytest.raises(LimitsError, match=rf"^{name}: limits\.hbm\.copy\.bandwidth: no validation has this metric"):
            load_profile("cpu", tmp_path, [tmp_path / name])
        (tmp_path / name).unlink()


def test_of_a_subject_of_the_sites_own_every_metric_may_be_limited(overlay, tmp_path):
    (tmp_path / "acceptance" / "more").mkdir(parents=True)
    for name in ("test_hbm.py", "more/test_burn_in.py"):
        (tmp_path / "acceptance" / name).touch()
    assert "burn_in.power.mean" in overlay(limit("burn_in.power.mean", unit="W"), suite=tmp_path / "acceptance").limits
    with pytest.raises(LimitsError, match=r"no validation has this metric; there is no subject 'burn_im'; did you mean 'burn_in'\?$"):
        overlay(limit("burn_im.power.mean", unit="W"), suite=tmp_path / "acceptance")
    with pytest.raises(LimitsError, match="no validation has this metric"):  # profiles speak of hbm: all of it is known
        overlay(limit("hbm.other"), suite=tmp_path / "acceptance")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("hbm.{copy.best", r"'hbm\.\{copy\.best': each \{ needs its \}, as in hbm\.\{copy,triad\}\.best"),
        ("hbm.{{copy}}.best", r"each \{ needs its \}"),
        ("{hbm,}.copy", r"'\.copy' is not a metric; allowed: <subject>\.<operation>\.<quantity>, lower-case letters, digits, _ and \*"),
        ("hbm", r"'hbm' is not a metric"),
        ("hbm.copy" + "{_a,_b}" * 20, r"stands for more than 1000 names; allowed: 1000"),
        (
            "HBM.copy",
            r"not a key that is allowed here; allowed: a metric named <subject>\.<operation>\.<quantity>, in which \{a,b\} stands",
        ),
    ],
)
def test_a_figure_that_cannot_be_one(overlay, key, says):
    with pytest.raises(LimitsError, match=rf"^mine\.yaml: figures\..* \(line 1\): .*{says}"):
        overlay(f'figures: {{"{key}": GB/s}}')


@pytest.mark.parametrize(
    ("bound", "kind", "ratio"),
    [
        ("at_least: 4.153", "loosened", 4.153 / 4000),
        ("at_least: 399", "loosened", 399 / 4000),
        ("at_least: {1: 4000, 2: 4}", "loosened", 0.001),
    ],
)
def test_a_bound_that_is_far_from_the_machines_own(overlay, bound, kind, ratio):
    assert overlay(limit("hbm.copy.bandwidth", f"{bound}, ceiling: 4800")).far_bounds == (FarBound("hbm.copy.bandwidth", kind, ratio),)


@pytest.mark.parametrize(("most", "kind"), [("0.05", "tightened"), ("5000", "loosened")])
def test_a_fraction_for_percent_and_a_limit_that_anything_meets(overlay, most, kind):
    assert overlay(limit("hbm.copy.spread", f"at_most: {most}", "%")).far_bounds == (FarBound("hbm.copy.spread", kind, float(most) / 5),)


@pytest.mark.parametrize(
    "text",
    [
        limit("hbm.copy.bandwidth", "at_least: 400"),
        limit("hbm.copy.bandwidth", "at_least: 4799"),
        limit("hbm.copy.spread", "at_most: 0", "%"),
        limit("hbm.copy.wrong", "at_most: 1000", "elements"),
        limit("hbm.copy.bandwidth", "at_most: 4800"),
        limit("hbm.copy.best", "at_least: 1"),
    ],
)
def test_what_is_not_far(overlay, text):
    assert overlay(text).far_bounds == ()


def test_two_overlays_together_are_as_far_as_one(overlay):
    steps = [limit("hbm.copy.bandwidth", f"at_least: {least}, ceiling: 4800") for least in (800, 160)]
    assert overlay(steps[0]).far_bounds == ()
    assert overlay(*steps).far_bounds == (FarBound("hbm.copy.bandwidth", "loosened", 0.04),)
    assert overlay(steps[1], limit("hbm.copy.bandwidth", "at_least: 4000, ceiling: 4800")).far_bounds == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("a.b.d", "; did you mean 'a.b.c'?"), ("a.bb.*", "; did you mean 'a.b.*'?"), ("zz.*", ""), ("*.wrong", "")],
)
def test_the_nearest_of_a_glob_is_a_glob(name, hint):
    assert nearest_metric(name, ["a.b.c"]) == hint


# --- what base.yaml lists is what validations do ---------------------------------------------------------------------------------

FACTS = ("inventory/kubernetes_health", "inventory/nccl_physics", "inventory/slurm_health", "inventory/gpu_health", "record/gpu_telemetry")
RUNS = sorted([*(ROOT / "reports" / "evidence").rglob("results.json"), *(ROOT / "reports" / "samples").rglob("results.json")])
COUNTED = ("xids", *counters.GPU_NAMES, *counters.PORT_NAMES, *(f"warnings.{kind}" for kind in nccl_log.WARNING_KINDS))


def recorded():
    """Metric and unit of every `record` in acceptance/ and fixtures/; what is only known there is a `*`."""
    for path in [*(ROOT / "acceptance").glob("test_*.py"), *(ROOT / "fixtures").glob("*.py")]:
        for call in (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call) and len(node.args) == 3):
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            if name == "record" and not isinstance(call.args[0], ast.Name):
                unit = call.args[2]
                yield glob_of(call.args[0]), glob_of(unit) if isinstance(unit, ast.Constant | ast.JoinedStr) else "*"


def facts():
    """Names that readers record for information: the first part of each fact."""
    for name in FACTS:
        for node in ast.walk(parsed(ROOT / "src" / "gpu_acceptance" / f"{name}.py")):
            if (
                isinstance(node, ast.Yield)
                and isinstance(node.value, ast.Tuple)
                and isinstance(node.value.elts[0], ast.Constant | ast.JoinedStr)
            ):
                yield glob_of(node.value.elts[0])


def figures_of(path):
    return {
        (figure["metric"], figure["unit"])
        for row in json.loads(path.read_text())["rows"]
        for attempt in row["attempts"]
        for rank in attempt["ranks"]
        for figure in (*rank.get("figures", ()), *rank.get("counters", ()))
    }


def units_of(glob):
    """Return all names that an expression in a test may stand for."""
    named = {unit for name, unit in {**SHIPPED.limited, **SHIPPED.figures}.items() if fnmatchcase(name.replace("*", "x"), glob)}
    return named | {SHIPPED.unit_of(glob.replace("*", "x"))} - {None}


@pytest.mark.parametrize(("glob", "unit"), sorted({*recorded(), *((glob, unit) for _, glob, unit in checked_metrics())}))
def test_each_figure_of_a_validation_is_known_in_its_unit(glob, unit):
    assert any(fnmatchcase(known, unit) for known in units_of(glob)), units_of(glob)


def test_each_counter_is_known():
    assert [name for name in COUNTED if SHIPPED.unit_of(f"{COUNTERS}.{name}") is None] == []


def test_each_listed_figure_is_one_of_some_validation():
    globs = {glob for glob, _ in recorded() if not glob.endswith(".*")} | {glob for _, glob, _ in checked_metrics()} | {*facts()}
    globs |= {f"{COUNTERS}.{name}" for name in COUNTED} | {metric for path in RUNS for metric, _ in figures_of(path)}
    unknown = [
        name for name in SHIPPED.figures if not any(fnmatchcase(name.replace("*", "x"), glob) or fnmatchcase(glob, name) for glob in globs)
    ]
    assert unknown == []


def test_nothing_is_listed_that_a_profile_limits():
    assert sorted(SHIPPED.figures.keys() & SHIPPED.limited.keys()) == []


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(ROOT / "reports")))
def test_every_figure_of_every_committed_run_is_known_in_its_unit(path):
    examples = {"hangs", "passes", "segfaults"}  # of the tests of the suite itself
    unknown = [one for one in figures_of(path) if SHIPPED.unit_of(one[0]) != one[1] and one[0].split(".")[0] not in examples]
    assert sorted(unknown) == []
