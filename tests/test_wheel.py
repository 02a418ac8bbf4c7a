"""The wheel: it carries the suite and its limits, runs from an empty folder, and copies the suite for additions of a site."""

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from suite import PYTHON, ROOT, run

from gpu_acceptance.run.suite import suite_digest

SOURCES = ("LICENSE", "README.md", "conftest.py", "pyproject.toml", "pytest.ini", "setup.py", "src", "fixtures", "acceptance", "thresholds")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
FIND = "from gpu_acceptance.run.suite import find_suite; print(find_suite())"
CODE = re.compile(r"```(python|yaml)\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.launcher


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, with a stray module at its top: building leaves files beside the sources."""
    folder, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / "stray.py").touch()
    done = subprocess.run([PYTHON, "-c", BUILD, str(out)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A python of its own in which the wheel lies unpacked, and for which this python's packages are there; the checkout is not."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "fixtures").mkdir()  # there is a package of this name, and the suite's own must be found before it
    (site / "fixtures" / "__init__.py").write_text("raise ImportError('not of the suite')\n")
    ours = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (site / "packages.pth").write_text("\n".join(ours))
    return folder / "bin" / "python"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def launched(python, suite, *arguments):
    launcher = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*launcher, "-m", "pytest", f"{suite}acceptance/", *arguments]


def suite_of(python, folder):
    """In a python that cannot see the checkout."""
    found = subprocess.run([str(python), "-c", FIND], cwd=folder, capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def test_it_carries_every_package_and_the_suite_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = {name.removeprefix("gpu_acceptance/") for name in packed.namelist() if name.startswith("gpu_acceptance/")}
        (metadata,) = [packed.read(name).decode() for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
    wanted = {*files_below(ROOT / "src" / "gpu_acceptance"), *(f"profiles/{name}" for name in files_below(ROOT / "thresholds"))}
    wanted |= {f"suite/{part}/{name}" for part in ("acceptance", "fixtures") for name in files_below(ROOT / part)}
    assert names == {*wanted, "suite/conftest.py", "suite/pytest.ini"}
    assert "py.typed" in names
    assert "Requires-Dist: torch" not in metadata


def test_a_run_from_an_empty_folder_is_of_the_installed_suite_and_writes_beside_nothing(installed, empty):
    suite = suite_of(installed, empty)
    assert ROOT not in suite.parents
    before = files_below(suite)
    ended = run(launched(installed, f"{suite}/", "--level=quick", "-k=test_gemm or test_versions"), empty)
    assert "acceptance/test_gemm.py ....  " in ended.output
    assert ended.outcomes()["test_sustained"] == "passed", ended.output
    assert ended.rank_exit_codes == {0: 6, 1: 6}
    assert ended.folder.parent == empty / "reports"
    (digest,) = {
        figure.value for rank in ended.row("test_versions").attempts[0].ranks for figure in rank.figures if "suite" in figure.metric
    }
    assert digest == suite_digest(ROOT)  # of the same files
    assert files_below(suite) == before


def test_the_verb_runs_it_in_an_empty_folder_and_names_its_files_as_the_suite_does(installed, empty):
    ended = run([str(installed), "-m", "gpu_acceptance", "run", "--level=quick", "acceptance/test_hbm.py"], empty)
    assert ended.returncode == 6, ended.output
    assert "only acceptance/test_hbm.py was asked for" in ended.verdict_line
    assert ended.folder.parent == empty / "reports"
    assert len(ended.record.ranks) == 2
    assert (ended.record.plan.suite.source, ended.record.plan.suite.num_changed) == ("wheel", 0)


@pytest.mark.needs("privileged", "util-linux")
def test_an_installation_that_cannot_be_written_to_runs_as_well(installed, empty):
    suite = suite_of(installed, empty)
    site = suite.parents[1]
    script = f'mount --bind "{site}" "{site}" && mount -o remount,ro,bind "{site}" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(installed), "-m", "pytest", f"{suite}/acceptance/", "--level=health"]
    ended = run(command, empty)
    assert ended.returncode == 0, ended.output
    assert ended.verdict_line.startswith("ACCEPTED (health, ")


def test_the_copy_of_a_site_runs_with_the_validation_and_the_limit_that_its_readme_adds(installed, empty):
    """Rows that only an option asks for are skipped in their set-up, where all ranks agree: inside the call that is an error."""
    program = [str(installed), "-m", "gpu_acceptance"]
    subprocess.run([*program, "init", "mine"], cwd=empty, check=True, timeout=60)
    mine = empty / "mine"
    blocks = dict(CODE.findall((mine / "README.md").read_text()))
    (mine / "acceptance" / "test_scratch.py").write_text(blocks["python"])
    (mine / "site.yaml").write_text(blocks["yaml"])
    ended = run([*program, "run", "--level=health", "--limits=site.yaml"], mine)
    assert ended.returncode == 0, ended.output
    assert ended.outcomes()["test_free"] == "passed"
    assert ended.row("test_fine_tuning").outcome == ended.row("test_localise.py::test_pairs").outcome == "not applicable"
    assert ended.row("test_fine_tuning").message.endswith(
        "nobody named a checkpoint to fine-tune: --lora-model does (Skipped: no --lora-model)"
    )
    assert ended.verdict_line.startswith("ACCEPTED (health, ")
    assert "overlay site.yaml" in ended.verdict_line
    (judged,) = [limit for limit in ended.record.conclusion.limits if limit.metric == "scratch.free.size"]
    assert (judged.status, judged.file) == ("held", "site.yaml")
    assert ended.folder.parent == mine / "reports"
    told = subprocess.run([*program, "verdict", "reports"], cwd=mine, capture_output=True, text=True, check=False, timeout=60)
    assert (told.returncode, told.stdout.partition(" | ")[0]) == (0, ended.verdict_line)
