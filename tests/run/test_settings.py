import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.run.own_files import NO_FILES, choose_profile, own_digest, read_own_files
from gpu_acceptance.run.settings import NAMES, Settings, has_value, read_settings
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import shipped_dir
from gpu_acceptance.worker.options import Paths

CPU = Profile("cpu", None, frozenset(), {}, {}, deadline_s=60)
LIMIT = """\
  hbm.copy.bandwidth:
    at_least: 1
    unit: GB/s
    scope: rank
    source: "policy: an example for these tests"
"""


@pytest.fixture
def suite(tmp_path):
    """A suite's root with profiles of its own."""
    folder = tmp_path / "suite"
    (folder / "thresholds").mkdir(parents=True)
    (folder / "thresholds" / "base.yaml").write_text("deadline_s: 60\n")
    (folder / "thresholds" / "cpu.yaml").write_text(f"extends: base\nrequires: [hbm]\nlimits:\n{LIMIT}")
    (folder / "thresholds" / "h200-sxm.yaml").write_text(f"extends: base\nmatch: {{device_name: NVIDIA H200}}\nlimits:\n{LIMIT}")
    return folder


def settings(suite, started_in=None, **options):
    defaults = {name.removeprefix("--").replace("-", "_"): [] if has_value(name) else False for name in NAMES}
    given = {name: [value] if isinstance(value, str) else value for name, value in options.items() if value is not None}
    invocation = SimpleNamespace(dir=started_in or suite)
    return read_settings(SimpleNamespace(rootpath=suite, invocation_params=invocation, option=SimpleNamespace(**defaults | given)))


def refusal(suite, device_name=None, **options):
    with pytest.raises(RefusedError) as caught:
        choose_profile(settings(suite, **options), device_name and Gpu(index=0, name=device_name), num_gpus=2)
    return str(caught.value)


def test_the_defaults(suite, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    found = settings(suite)
    assert found == Settings(report_dir=suite / "reports", profiles=suite / "thresholds", suite=suite / "acceptance")
    assert (found.limits, found.waivers, found.level, found.confirm, found.join_s, found.paths) == ((), {}, "full", 0, 60, Paths())
    assert settings(tmp_path).profiles == shipped_dir()


def test_runs_of_an_installed_suite_leave_their_reports_where_they_were_started(suite, tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.run.suite.INSTALLED", suite)
    assert settings(suite, started_in=tmp_path).report_dir == tmp_path / "reports"
    assert settings(suite, started_in=tmp_path, report_dir="mine").report_dir == tmp_path / "mine"


PATHS = ("checkpoint_dir", "data_dir", "shared_dir", "lora_model", "lora_data")


def test_paths_are_relative_to_the_folder_in_which_pytest_was_started(suite, tmp_path):
    (tmp_path / "agreed limits.yaml").touch()
    others = {name: f"my {name}" for name in ("site", "contract", "report_dir", *PATHS)}
    found = settings(suite, tmp_path, limits=["agreed limits.yaml", "no.yaml", "a/b", "site-nvls-off"], **others)
    assert found.limits == (tmp_path / "agreed limits.yaml", tmp_path / "no.yaml", tmp_path / "a/b", Path("site-nvls-off"))
    assert found.paths == Paths(**{name: tmp_path / f"my {name}" for name in PATHS})
    expected = (tmp_path / "my site", tmp_path / "my contract", tmp_path / "my report_dir")
    assert (found.site, found.contract, found.report_dir) == expected
    assert settings(suite, report_dir=str(tmp_path / "runs")).report_dir == tmp_path / "runs"


def test_a_site_counts_into_the_digest_of_the_own_profile(suite, tmp_path):
    (tmp_path / "ours.yaml").write_text("gpus_per_node: 8\nnodes: {a: {}}")
    found = settings(suite, tmp_path, site="ours.yaml")
    own = read_own_files(found.site, None)
    assert choose_profile(found, None, own, num_gpus=2).files[-1] == own.site.digest
    assert own_digest(found, CPU, own).endswith(f", ours.yaml {own.site.digest.sha256[:8]}")
    assert own_digest(found, CPU, NO_FILES) != own_digest(found, CPU, own)
    assert own_digest(found, replace(CPU, name="no-such"), NO_FILES).startswith("cannot be read: no profile 'no-such'")
    (tmp_path / "ours.yaml").write_text("nodes: {a: {}}")
    with pytest.raises(RefusedError, match=r"^--site: ours\.yaml: the file: nodes\.a has no gpus, and there is no gpus_per_node"):
        read_own_files(found.site, None)


CONTRACT = "lines: {8.2: {text: copies, metrics: [hbm.copy.bandwidth], at_least: 2, unit: GB/s}}"


def test_a_contract_counts_into_the_digest_of_the_own_profile(suite, tmp_path):
    (tmp_path / "ours.yaml").write_text(CONTRACT)
    found = settings(suite, tmp_path, contract="ours.yaml")
    own, other = (read_own_files(None, path) for path in (found.contract, None))
    assert [line.number for line in own.contract.lines] == ["8.2"]
    assert choose_profile(found, None, own, num_gpus=2).files[-1].file == "ours.yaml"
    assert own_digest(found, CPU, own).endswith(f", ours.yaml {own.contract.sha256[:8]}")
    (tmp_path / "ours.yaml").write_text(CONTRACT.replace("at_least: 2", "at_least: 1"))
    digests = {own_digest(found, CPU, one) for one in (own, other, read_own_files(None, found.contract))}
    assert len(digests) == 3


def test_a_contract_that_the_profile_cannot_answer_is_refused(suite, tmp_path):
    (tmp_path / "ours.yaml").write_text(CONTRACT.replace("hbm.copy", "hbm.cpy"))
    own = read_own_files(None, tmp_path / "ours.yaml")
    with pytest.raises(
        RefusedError, match=r"^--contract: ours\.yaml: lines\.8\.2\.metrics: hbm\.cpy\.bandwidth matches no limit of profile cpu;"
    ):
        choose_profile(settings(suite), None, own, num_gpus=2)


def test_waivers_and_numbers(suite, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    found = settings(
        suite, waive=["hbm.*= agreed = on Monday "], gpus="4", expect_nodes="16", confirm="2", budget="30m", join_timeout="15m"
    )
    assert found.waivers == {"hbm.*": "agreed = on Monday"}
    assert (found.declared_gpus, found.expected_nodes, found.confirm, found.join_s) == (4, 16, 2, 900)
    assert found.budget.text == "out of time: --budget=30m"


def test_busy_gpus_are_allowed_by_a_waiver_of_their_limits_that_every_profile_takes(suite):
    found = settings(suite, allow_busy=True, waive=["hbm.*=agreed"])
    assert found.allow_busy
    assert found.waivers == {"gpu_health.processes.*": "GPUs that other programs use are allowed (--allow-busy)", "hbm.*": "agreed"}
    assert choose_profile(found, None, num_gpus=2).name == "cpu"
    assert not settings(suite).allow_busy


@pytest.mark.parametrize("text", ["hbm.*", "hbm.*=", "hbm.*= ", "=agreed", ""])
def test_a_waiver_needs_a_glob_and_a_reason(suite, text):
    with pytest.raises(pytest.UsageError) as caught:
        settings(suite, waive=[text])
    assert str(caught.value).startswith(f"--waive={text}: allowed: METRIC-GLOB=reason, as in --waive='hbm.read.*=agreed with ")


@pytest.mark.parametrize(
    ("text", "hint"), [("bogus", ""), ("", ""), ("Full", "; did you mean 'full'?"), ("quik", "; did you mean 'quick'?")]
)
def test_a_level_that_no_profile_has(suite, text, hint):
    with pytest.raises(pytest.UsageError, match=rf"^--level={text}: allowed: health, quick, full, soak{re.escape(hint)}$"):
        settings(suite, level=text)


def test_an_option_that_is_given_twice(suite):
    with pytest.raises(pytest.UsageError, match=r"^--level is given 2 times \(quick, full\); allowed: once$"):
        settings(suite, level=["quick", "full"])
    with pytest.raises(pytest.UsageError, match=r"^--lora-model is given 2 times \(a, a\); allowed: once$"):
        settings(suite, lora_model=["a", "a"], lora_data="b")


COUNTS = {"gpus": "GPUs of each node under test", "expect-nodes": "nodes that take part", "confirm": "more measurements of a missed limit"}
NO_BUDGET = r"more than 30 seconds, as 90, 90s, 30m or 2h \(30 s are kept for the report\)"
NO_TIME = "more than 0 seconds, as 90, 90s, 15m or 2h"
NO_RUN_ID = r"1 to 100 letters, digits, '\.', '_' and '-', of which the first is a letter or digit"
WRONG = [
    *(
        (name, text, rf"1 to 9999 \({meaning}\)")
        for name, meaning in COUNTS.items()
        for text in ("0", "-1", "", "4.0", "1e3", "10000", "٣")
    ),
    *(("budget", text, NO_BUDGET) for text in ("1d", "5", "30", "")),
    *(("join-timeout", text, NO_TIME) for text in ("0", "-1", "soon", "1d", "", "1.5h")),
    *(("soak", text, NO_TIME) for text in ("", "0", "0h", "-1", "1d", "1.5h", "4 h", "12345678")),
    *(("run-id", text, NO_RUN_ID) for text in ("", "../elsewhere", "a/b", ".hidden", "two words", "x" * 101, "new\nline")),
]


@pytest.mark.parametrize(("name", "text", "allowed"), WRONG)
def test_a_value_that_is_not_allowed(suite, name, text, allowed):
    with pytest.raises(pytest.UsageError, match=rf"^--{name}={re.escape(text)}: allowed: {allowed}$"):
        settings(suite, **{name.replace("-", "_"): text})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hardware": ""}, "--hardware=: allowed: the name of a profile"),
        ({"limits": [""]}, "--limits=: allowed: a file, or the name of a shipped overlay"),
        ({"limits": ["x" * 300]}, f"--limits={'x' * 300}: cannot be read: File name too long"),
        ({"report_dir": ""}, "--report-dir=: allowed: a folder"),
        ({"site": " "}, "--site= : allowed: a file that says which nodes there must be"),
        ({"contract": " "}, "--contract= : allowed: a file with the lines of a contract"),
        ({"checkpoint_dir": " "}, "--checkpoint-dir= : allowed: a folder that all nodes share"),
        ({"data_dir": ""}, "--data-dir=: allowed: a folder with training data"),
        ({"lora_model": "", "lora_data": "a"}, "--lora-model=: allowed: a folder with a checkpoint in Hugging Face format"),
        ({"lora_model": "a", "lora_data": " "}, "--lora-data= : allowed: a file with dialogues in JSON lines"),
        ({"lora_model": "a"}, "--lora-model=a: a model is fine-tuned on data; name the other as well: --lora-data=FILE"),
        ({"lora_data": "a"}, "--lora-data=a: a model is fine-tuned on data; name the other as well: --lora-model=DIR"),
    ],
)
def test_a_name_that_cannot_be_one(suite, options, text):
    with pytest.raises(pytest.UsageError) as caught:
        settings(suite, **options)
    assert str(caught.value) == text


def test_the_machine_chooses_its_profile(suite):
    assert choose_profile(settings(suite), None, num_gpus=2).name == "cpu"
    assert choose_profile(settings(suite), Gpu(index=0, name="NVIDIA H200"), num_gpus=2).name == "h200-sxm"
    assert choose_profile(settings(suite, hardware="h200-sxm"), None, num_gpus=2).name == "h200-sxm"
    text = "no profile for the GPU 'NVIDIA H300'; profiles: h200-sxm (NVIDIA H200); --measure-only records without judging"
    assert refusal(suite, "NVIDIA H300") == text
    assert choose_profile(settings(suite, measure_only=True), Gpu(index=0, name="NVIDIA H300"), num_gpus=2).name == "base"


@pytest.mark.parametrize(
    ("name", "hint"), [("base", ""), ("gb300", ""), ("h200", "; did you mean 'h200-sxm'?"), ("H200-smx", "; did you mean 'h200-sxm'?")]
)
def test_a_name_that_is_no_profile_is_refused(suite, name, hint):
    assert refusal(suite, hardware=name) == f"--hardware={name}: unknown profile; profiles: cpu, h200-sxm{hint}"


def test_a_waiver_of_nothing_is_refused(suite):
    says = "matches no limit of profile cpu"
    assert refusal(suite, waive=["hbm.cpoy.*=slow"]) == f"--waive=hbm.cpoy.*=...: {says}; did you mean 'hbm.copy.*'?"
    assert refusal(suite, waive=["gemm.x=slow"]) == f"--waive=gemm.x=...: {says}; `gpu-acceptance explain '*'` lists all metrics"


def test_a_file_of_limits_that_cannot_be_used_is_one_readable_refusal(suite):
    """tests/thresholds has all ways in which one can be wrong."""
    assert refusal(suite, limits=["agreed.yaml"]).startswith("agreed.yaml: there is no such file: ")
    typo = LIMIT.replace("at_least", "at_laest")
    (suite / "thresholds" / "cpu.yaml").write_text(f"extends: base\nrequires: [hbm]\nlimits:\n{typo}")
    said = refusal(suite)
    assert re.fullmatch(r"cpu\.yaml: limits\.hbm\.copy\.bandwidth\.at_laest \(line \d+\): unknown key; .*'at_least'\?", said), said


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30m", 1800), ("4h", 14_400)])
def test_a_soak_is_a_level_with_its_time(suite, text, seconds):
    for level in (None, "soak"):
        found = settings(suite, soak=text, level=level)
        assert (found.level, found.soak_s) == ("soak", seconds)
    assert (settings(suite, level="soak").level, settings(suite, level="soak").soak_s) == ("soak", None)
    assert (settings(suite).level, settings(suite).soak_s) == ("full", None)


def test_a_soak_at_another_level(suite):
    with pytest.raises(pytest.UsageError, match=r"^--soak=4h --level=full: --soak is level soak; leave one of them out$"):
        settings(suite, soak="4h", level="full")


def test_a_soak_that_the_profile_finds_too_short_is_refused(suite):
    parameters = "parameters: {soak.duration_s: 3600, soak.min_duration_s: 300}\nlevels: {soak: {hbm: 2}}\n"
    (suite / "thresholds" / "base.yaml").write_text("deadline_s: 60\n" + parameters)
    assert refusal(suite, soak="60") == "--soak: 60 s: profile cpu wants at least 300 s (its parameter soak.min_duration_s)"
    assert choose_profile(settings(suite, soak="4h"), None, num_gpus=2).parameters["soak.duration_s"] == 14_400


def test_the_option_localise_requires_its_subject(suite):
    parameters = 'parameters: {localise.asked: false, localise.expected_s: 5}\nnot_applicable: {"localise.*": nobody asked}\n'
    limit = 'localise.node.deficit: {at_most: 3, unit: "%", scope: node, source: "policy: what this test asks for"}\n'
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: 60\n{parameters}limits:\n  {limit}")
    asked, unasked = (choose_profile(settings(suite, localise=one), None, num_gpus=2) for one in (True, False))
    assert (unasked.requires, unasked.parameters["localise.asked"], list(unasked.not_applicable)) == ({"hbm"}, False, ["localise.*"])
    assert (asked.requires, asked.parameters["localise.asked"], asked.not_applicable) == ({"hbm", "localise"}, True, {})
    assert asked.expected_s["localise"] == 5


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("8x400-roce", "--fabric: fabric 8x400-roce is for b200; fabrics for h200-sxm: 8x400-ib, none; did you mean '8x400-ib'?"),
        ("8x400-ibb", "--fabric: no fabric '8x400-ibb'; fabrics for h200-sxm: 8x400-ib, none; did you mean '8x400-ib'?"),
        ("base-ib", "--fabric: no fabric 'base-ib'; fabrics for h200-sxm: 8x400-ib, none"),
    ],
)
def test_a_network_that_is_none_or_another_gpus_is_refused(suite, asked, text):
    fabric = "requires: []\nmatch: {{fabric: {{link: {0}}}, profiles: [{1}]}}\n"
    for name, content in (("base-ib", ""), ("8x400-ib", fabric.format("IB", "h200-sxm")), ("8x400-roce", fabric.format("RoCE", "b200"))):
        (suite / "thresholds" / f"fabric-{name}.yaml").write_text(content or "requires: []\n")
    assert refusal(suite, "NVIDIA H200", fabric=asked) == text
    assert (
        choose_profile(settings(suite, fabric="8x400-ib"), Gpu(index=0, name="NVIDIA H200"), num_nodes=2, num_gpus=2).fabric == "8x400-ib"
    )
