"""Libraries and tools that only some validations need, missing in real runs: each costs the subjects that need it, and never the run."""

import re
from pathlib import Path

import pytest
from bundles import cluster_python
from suite import PYTHON, ROOT, run, torchrun_command

from gpu_acceptance.verdict.reasons import FORMATION

pytestmark = pytest.mark.launcher

SENTENCE = re.compile(r"wherever ([\w, -]+) can be\s+imported")  # of the README
HAS_TO_COMPILE = """
reason: as a GPU would
parameters: {train.compiled: true}
"""
WITHOUT_LORA = """
reason: nobody fine-tunes here
not_applicable: {"lora_convergence.*": "nobody fine-tunes here"}
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A python with the packages that the README lists, and what they need."""
    (listed,) = SENTENCE.findall((ROOT / "README.md").read_text())
    packages = re.split(r", | and ", listed)
    assert len(packages) == 7
    return cluster_python(tmp_path_factory.mktemp("python") / "bare", *packages)


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Runs some of the shipped suite, in the bare checkout."""
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def launch(python, *arguments, env=None):
        command = [str(python), *torchrun_command(*arguments, f"--report-dir={tmp_path}")[1:]]
        return run(command, ROOT, {"PYTEST_ADDOPTS": "", **(env or {})}, reports=tmp_path)  # without the plugins of this python

    return launch


def rows_by_lack(ended):
    """Missing package -> the subjects that were not run without it."""
    found = {}
    for row in ended.record.rows:
        if row.lacks:
            assert row.outcome == "not run"
            found.setdefault(row.lacks, set()).add(row.subject)
    return found


def summary_of(ended):
    return " ".join((ended.folder / "summary.txt").read_text().split())


def test_the_packages_that_the_readme_lists_are_enough_to_begin_with(bare, launched):
    ended = launched(bare, "acceptance/", "--level=quick")
    assert ended.rank_exit_codes == {0: 6, 1: 6}, ended.output
    assert ended.record.conclusion.verdict == "INCOMPLETE"
    assert rows_by_lack(ended) == {("numpy", "transformers"): {"ddp_short"}}
    others = {row.outcome for row in ended.record.rows if not row.lacks}
    assert others == {"passed", "not applicable"}
    never = {limit.metric.partition(".")[0] for limit in ended.record.conclusion.limits if limit.status == "not measured"}
    assert never == {"ddp_short"}
    install = f"install it there: {bare} -m pip install 'transformers>=5.0'"
    host = ended.record.ranks[0].host
    said = f"missing   transformers 5.0 or newer ({host} has none): 1 validation will not run (ddp_short); {install}"
    assert said in ended.output.splitlines()
    assert ended.output.index(said) < ended.output.index(FORMATION)
    assert "gpu-acceptance remedy package_missing" in summary_of(ended)


def test_of_three_subjects_that_cannot_run_the_next_one_runs_all_the_same(bare, launched):
    """Each of them was an error in the call once, which spoiled the workers; after three of them nothing ran any more."""
    files = [f"acceptance/test_{name}.py" for name in ("ddp", "checkpoint", "lora_convergence", "parity", "nccl_exact", "sampler")]
    ended = launched(bare, *files)
    assert rows_by_lack(ended) == {
        ("numpy", "transformers"): {"ddp", "parity", "sampler"},
        ("numpy", "peft", "transformers"): {"checkpoint", "lora_convergence"},
    }
    assert {row.outcome for row in ended.record.rows if row.subject == "nccl_exact"} == {"passed"}
    assert ended.outcomes()["test_epochs[padded]"] == "passed"
    assert "died" not in ended.output


def test_a_subject_that_a_site_declares_away_needs_nothing(bare, launched, tmp_path):
    (tmp_path / "without.yaml").write_text(WITHOUT_LORA)
    ended = launched(bare, "acceptance/test_lora_convergence.py", f"--limits={tmp_path / 'without.yaml'}")
    row = ended.row("test_training")
    assert (row.outcome, row.lacks) == ("not applicable", ())
    assert row.message.startswith("not applicable: nobody fine-tunes here (needs numpy 1.24 or newer, and ")


def test_a_compiler_that_does_not_work_costs_what_is_compiled(launched, tmp_path):
    """On a CPU, where the profile asks for it."""
    (tmp_path / "compiled.yaml").write_text(HAS_TO_COMPILE)
    files = ("acceptance/test_ddp.py", "acceptance/test_sampler.py")
    ended = launched(PYTHON, *files, f"--limits={tmp_path / 'compiled.yaml'}", env={"CXX": "/nonsense/g++"})
    assert rows_by_lack(ended) == {("compiler",): {"ddp", "sampler"}}
    host = ended.record.ranks[0].host
    why = f"needs a compiler, and {host} has none that works (CXX=/nonsense/g++: not found); "
    assert ended.row("test_step_split").message.startswith(why)
    assert ended.outcomes()["test_epochs[dropped]"] == "passed"
    assert "gpu-acceptance remedy compiler_missing" in summary_of(ended)


def test_the_plan_says_what_would_not_run(tmp_path):
    """On two H200 that only NVML shows: there a C compiler is tried."""
    env = {"PYTHONPATH": str(Path(__file__).with_name("fakegpus")), "CC": "/nonsense/gcc"}
    ended = run([PYTHON, "-m", "pytest", "acceptance/", "--plan"], ROOT, env, reports=tmp_path)
    assert ended.returncode == 5, ended.output
    (line,) = [line for line in ended.output.splitlines() if line.startswith("missing: ")]
    assert line.startswith("missing: a compiler (")
    lacks = "has none that works (CC=/nonsense/gcc: No such file or directory)"
    assert f" {lacks}): 4 validations will not run (fsdp, ddp, lora_convergence); " in line


def test_what_a_rank_lacks_is_in_its_journal(bare, launched):
    ended = launched(bare, "acceptance/test_environment.py", "--level=health")
    identity = ended.journal_of(1)[0]
    assert identity["lacks"].keys() >= {"numpy", "peft", "transformers"}
    assert identity["python"] == str(bare)
    assert rows_by_lack(ended) == {}
    assert "\nmissing " not in ended.output
