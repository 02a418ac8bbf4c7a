"""Documents name nothing that is not there."""

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from gpu_acceptance.cli.verbs import make_parser

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "thresholds/README.md", "reports/README.md")),
    *sorted((ROOT / "reports" / "evidence").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
TOP = ("acceptance", "benchmarks", "deploy", "docs", "fixtures", "reports", "src", "tests", "thresholds", "tools")
_LINK = re.compile(r"(?:\]\(|^\[\w+\]: )([^)#\s]+)", re.MULTILINE)
_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(TOP)})/[\w./-]*")


def text_of(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_link_and_each_path_of_this_checkout_leads_somewhere(path):
    links = [link for link in _LINK.findall(text_of(path)) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    text = re.sub(r"(?:reports/)(?:<run-id>|slurm-JOBID|\d{8}-\d{6}-\w{4,8})\S*", "", text_of(path))
    names = {name.rstrip(".") for name in _PATH.findall(re.sub(r"\S*<\w+>\S*", "", text))}
    assert sorted(name for name in names if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_command_of_ours_is_one_that_the_program_takes(path, capsys):
    """A file of the reader's need not be here."""
    for block in re.findall(r"^ *```sh\n(.*?)```", text_of(path), re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            found = re.match(r"\s*(?:\S*/)?gpu-acceptance (.*)", line)
            if found and "<" not in line:
                words = shlex.split(re.split(r"&&|[;|>]", found[1])[0], comments=True)
                with contextlib.suppress(SystemExit):
                    rest = make_parser().read(words).rest
                    assert [word for word in rest if not (ROOT / word).exists() and not word.startswith("-")] == [], line
                assert re.sub(r"^.*(no such file|no such folder).*$", "", capsys.readouterr().err).strip() == "", line
