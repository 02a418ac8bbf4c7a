"""Levels: the subjects that each runs, the time it may take, and its place in the verdict."""

import subprocess
import sys

import pytest
from judging import make_limit, make_profile
from suite import ROOT, make_suite, plain_pytest, torchrun

from gpu_acceptance.thresholds.levels import asked_for, at_level, lasting, left_out, num_left_out, runs
from gpu_acceptance.thresholds.limit import LEVELS, level_text, subject_of
from gpu_acceptance.thresholds.profile import LimitsError, load_profile, profile_names, shipped_dir
from gpu_acceptance.verdict.reasons import FORMATION
from tests.judging import shipped_profile

TABLE = {"quick": {"gemm": 2.0}, "full": {"gemm": 3.0, "memory": 9.0}}
PROFILE = make_profile(
    make_limit("gemm.bf16.sustained", at_least=1),
    make_limit("memory.fill.fraction", at_least=1),
    requires=frozenset({"gemm", "memory", "counters"}),
    levels=TABLE,
)


def test_what_only_another_level_names_is_left_out_and_not_required():
    quick = at_level(PROFILE, "quick")
    assert (quick.level, quick.expected_s, left_out(quick)) == ("quick", {"gemm": 2.0}, {"memory"})
    assert quick.requires == {"gemm", "counters"}
    assert not runs(quick, "acceptance/test_memory.py::test_patterns")


def test_what_no_level_names_runs_at_each():
    assert runs(at_level(PROFILE, "quick"), "acceptance/test_of_a_site.py::test_value")
    assert at_level(PROFILE, "full").requires == PROFILE.requires


def test_validations_that_are_left_out_are_counted():
    nodeids = ["acceptance/test_memory.py::test_a[1]", "acceptance/test_memory.py::test_a[2]", "acceptance/test_gemm.py::test_b"]
    assert num_left_out(at_level(PROFILE, "quick"), nodeids) == {"memory": 2}
    assert num_left_out(at_level(PROFILE, "quick"), []) == {"memory": 0}  # required at another level, and not there at all
    assert num_left_out(at_level(PROFILE, "full"), nodeids) == {}


@pytest.mark.parametrize(
    ("levels", "level", "known"), [(TABLE, "health", "quick, full"), ({}, "quick", "full"), (TABLE, "", "quick, full")]
)
def test_a_level_that_the_profile_does_not_have(levels, level, known):
    with pytest.raises(LimitsError, match=f"^--level={level}: profile .+ has no such level; levels: {known}$"):
        at_level(make_profile(levels=levels), level)


def test_a_profile_without_a_table_has_one_level_which_runs_all():
    assert at_level(make_profile(levels={}), "full").requires == make_profile().requires


SOAK = {"soak.duration_s": 3600, "soak.min_duration_s": 300}


def soaked(asked_s, level="soak", **parameters):
    profile = make_profile(levels={"full": {}, "soak": {"soak": 60}}, parameters={**SOAK, **parameters})
    return lasting(at_level(profile, level), asked_s)


@pytest.mark.parametrize(
    ("asked_s", "said"), [(None, "soak of 1 h"), (14_400, "soak of 4 h"), (5400, "soak of 90 min"), (301, "soak of 301 s")]
)
def test_a_soak_lasts_as_long_as_was_asked_for_and_says_so(asked_s, said):
    profile = soaked(asked_s)
    assert profile.parameters == {**SOAK, "soak.duration_s": asked_s or 3600}
    assert level_text(profile.level, profile.parameters) == said


def test_other_levels_do_not_soak():
    profile = soaked(None, "full")
    assert profile.parameters == SOAK
    assert level_text(profile.level, profile.parameters) == "full"


@pytest.mark.parametrize(
    ("asked_s", "parameters", "text"),
    [
        (299, {}, "--soak: 299 s: profile h200-sxm wants at least 300 s (its parameter soak.min_duration_s)"),
        (
            None,
            {"soak.duration_s": 60},
            "parameter soak.duration_s=60: profile h200-sxm wants at least 300 s (its parameter soak.min_duration_s)",
        ),
        *(
            (9000, {name: None}, f"level soak: profile h200-sxm has no parameter {name}; it wants a number of seconds above 0")
            for name in SOAK
        ),
    ],
)
def test_a_soak_that_is_too_short_or_no_time_at_all(asked_s, parameters, text):
    with pytest.raises(LimitsError) as caught:
        soaked(asked_s, **parameters)
    assert str(caught.value) == text


LONGEST_S = {
    "health": 10,
    "quick": 115,
    "full": 540,
    "soak": 1430,
}  # one node of 8 GPUs; formation, import of torch and --soak=TIME excluded
TRAINING_IN_SOAK = {"train_single", "ddp_scaling", "fsdp_variants", "parity", "sampler", "checkpoint", "failure_propagation", "lora_modes"}
GPU_PROFILES = [name for name in profile_names(shipped_dir()) if name != "cpu"]


@pytest.fixture(scope="module")
def nodeids():
    """All validations of the suite."""
    command = [sys.executable, "-m", "pytest", "acceptance/", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert {subject_of(nodeid) for nodeid in found} >= {"gpu_health", "gemm", "hbm", "nccl"}, done.stdout
    return found


@pytest.mark.parametrize("level", LONGEST_S)
@pytest.mark.parametrize("name", GPU_PROFILES)
def test_the_seconds_of_a_level_add_up_to_what_it_may_take(name, level, nodeids):
    profile = at_level(shipped_profile(name), level)
    subjects = [subject_of(nodeid) for nodeid in nodeids if runs(profile, nodeid)]
    assert set(subjects) == profile.expected_s.keys()  # each validation has its seconds, and nothing is named that is not there
    assert sum(profile.expected_s[subject] for subject in subjects) <= LONGEST_S[level]


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_the_shipped_levels_differ(name):
    health, quick, full, soak = (at_level(shipped_profile(name), level).expected_s.keys() for level in LEVELS)
    assert health < quick < full < soak
    in_full = {"parity", "sampler", "checkpoint", "failure_propagation"} if name == "cpu" else set()
    assert soak - full == {"soak", "gemm_dtypes", *TRAINING_IN_SOAK} - in_full


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_training_takes_at_most_three_minutes_of_a_full_run(name, nodeids):
    profile = at_level(shipped_profile(name), "full")
    of_training = [subject for subject in map(subject_of, nodeids) if subject in profile.expected_s.keys() & {"ddp", "ddp_short", "fsdp"}]
    assert sum(profile.expected_s[subject] for subject in of_training) <= 180


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_fine_tuning_takes_at_most_a_minute_and_a_half_of_a_full_run_and_none_of_a_quick_one(name):
    expected_s = {level: at_level(shipped_profile(name), level).expected_s for level in LEVELS}
    assert [level for level in LEVELS if "lora_convergence" in expected_s[level]] == ["full", "soak"]
    assert expected_s["full"]["lora_convergence"] <= 90


def test_no_overlay_takes_a_subject_out_of_the_whole_suite(tmp_path):
    """Counters are named by no level. Named by a lower one alone they would be no part of a full run, and nothing would ask for them."""
    (tmp_path / "mine.yaml").write_text("reason: a test\nlevels: {health: {counters: 1}}\n")
    with pytest.raises(LimitsError, match=r"^mine.yaml: levels.health.counters \(line 2\): .*counters are read at each level$"):
        load_profile("h200-sxm", shipped_dir(), [tmp_path / "mine.yaml"])
    (tmp_path / "mine.yaml").write_text("reason: a test\nlevels: {quick: {ssd: 1, gemm: 3}, full: {gemm: 4}}\n")
    levels = load_profile("h200-sxm", shipped_dir(), [tmp_path / "mine.yaml"]).levels
    assert {level: (subjects.get("ssd"), subjects.get("gemm")) for level, subjects in levels.items()} == {
        "health": (None, None),
        "quick": (1, 3),
        "full": (1, 4),
        "soak": (1, 4),
    }


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    made = make_suite(tmp_path_factory.mktemp("levels"), "passes", "misses", "two_metrics")
    table = "levels:\n  health: {passes: 1}\n  quick: {passes: 1, misses: 1}\n  full: {passes: 1, misses: 1, two_metrics: 2}\n"
    (made / "thresholds" / "base.yaml").write_text(f"deadline_s: 60\n{table}")
    return made


@pytest.mark.launcher
def test_a_run_at_a_level_says_so_and_names_what_was_no_part_of_it(suite):
    ended = torchrun(suite, "--level=health")
    assert ended.verdict_line == "ACCEPTED (health, cpu profile: no GPU was tested)", ended.output
    assert {row.subject for row in ended.record.rows} == {FORMATION, "passes"}
    plan = ended.record.plan
    assert (plan.profile.level, plan.not_at_level, plan.profile.requires) == ("health", {"misses": 1, "two_metrics": 2}, {"passes"})
    assert "level health: misses (1 validation), two_metrics (2 validations) not part of it" in (ended.folder / "report.html").read_text()


@pytest.mark.launcher
def test_a_level_can_reject(suite):
    ended = plain_pytest(suite, "--level=quick")
    assert ended.returncode == 1, ended.output
    assert ended.verdict_line.startswith("REJECTED: 1 limit missed in 1 of 2 validations (quick, cpu profile")


@pytest.mark.launcher
def test_a_level_to_which_nothing_belongs_is_a_usage_error(suite):
    refused = plain_pytest(suite, "--level=health", "-k", "misses or two_metrics")
    assert refused.returncode == 4, refused.output
    assert "--level=health: nothing of what was asked for belongs to it: misses, two_metrics" in refused.output


@pytest.mark.launcher
def test_the_plan_shows_the_level_and_what_it_leaves_out(suite):
    plan = plain_pytest(suite, "--plan", "--level=quick")
    assert "profile cpu (no GPU), level quick, " in plan.output
    assert "  two_metrics: not at this level, 2 validations\n" in plan.output
    assert "test_two_metrics.py::" not in plan.output


@pytest.mark.launcher
def test_a_level_that_is_not_there_is_a_usage_error(suite):
    refused = plain_pytest(suite, "--level=fast")
    assert refused.returncode == 4
    assert "ERROR: --level=fast: allowed: health, quick, full, soak" in refused.output


@pytest.mark.parametrize("level", ["soak", "full"])
def test_a_soak_that_nothing_would_judge_or_that_is_too_short_is_refused_at_each_level_that_runs_it(tmp_path, level):
    table = "levels: {full: {soak: 5}}\n" if level == "full" else ""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(f'reason: a test\n{table}not_applicable: {{"soak.*": "we do not soak"}}\n')
    said = rf"^level {level} runs a soak, and soak.load.fraction is declared not applicable \(we do not soak\): nothing would judge it$"
    with pytest.raises(LimitsError, match=said):
        lasting(at_level(load_profile("h200-sxm", shipped_dir(), [overlay]), level), None)
    overlay.write_text(f"reason: a test\n{table}parameters: {{soak.duration_s: 2}}\n")
    with pytest.raises(LimitsError, match=r"^parameter soak.duration_s=2: profile h200-sxm wants at least 300 s"):
        lasting(at_level(load_profile("h200-sxm", shipped_dir(), [overlay]), level), None)


def test_a_soak_of_more_than_a_month_is_a_typo():
    with pytest.raises(LimitsError, match=r"^--soak: 1.08e\+09 s: wants at most 2592000 s, which are 30 days$"):
        lasting(at_level(shipped_profile("h200-sxm"), "soak"), 300_000 * 3600)


@pytest.mark.parametrize(("option", "subject", "seconds"), [("--localise", "localise", 30), ("--lora-model", "lora_model", 300)])
def test_what_is_asked_for_is_beside_all_levels(option, subject, seconds):
    for level in LEVELS:
        profile = at_level(shipped_profile("h200-sxm"), level)
        asked = asked_for(profile, option)
        assert asked.requires - profile.requires == {subject}
        assert profile.not_applicable.keys() - asked.not_applicable.keys() == {f"{subject}.*"}
        assert (asked.level, asked.expected_s[subject], asked.parameters[f"{subject}.asked"]) == (level, seconds, True)


@pytest.mark.parametrize(
    ("option", "line", "text"),
    [
        (
            "--lora-model",
            'not_applicable: {"lora_model.held*": "not here"}',
            "--lora-model: lora_model.held_out.loss is declared not applicable (not here): nothing would judge it",
        ),
        (
            "--localise",
            'not_applicable: {"localise.node.*": "not here"}',
            "--localise: localise.node.deficit is declared not applicable (not here): nothing would judge it",
        ),
    ],
)
def test_a_site_that_takes_it_away_cannot_ask_for_it(tmp_path, option, line, text):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(f"reason: a test\n{line}\n")
    with pytest.raises(LimitsError) as caught:
        asked_for(at_level(load_profile("h200-sxm", shipped_dir(), [overlay]), "full"), option)
    assert str(caught.value) == text
