"""Documents name nothing that is not there."""

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from gpu_acceptance.cli.verbs import make_parser
from tools.make_pages import PAGES, WITH_BLOCKS

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
_ANCHOR = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(TOP)})/[\w./-]*")


TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCUMENTS}
MADE = {str(path) for path in PAGES.keys() - WITH_BLOCKS.keys()} | {"docs/faults.md"}
BY_HAND = [
    name
    for name in TEXTS
    if name not in MADE and (name.startswith("docs/") or name in {"README.md", "thresholds/README.md", "reports/README.md"})
]


def test_each_link_leads_somewhere():
    links = [(name, link) for name, text in TEXTS.items() for link in _LINK.findall(text) if "://" not in link]
    assert [(name, link) for name, link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def slug(heading):
    """Return the anchor that a git host and MkDocs make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_each_anchor_is_a_heading():
    headings = {name: {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)} for name, text in TEXTS.items()}
    dead = []
    for name, text in TEXTS.items():
        for path, anchor in _ANCHOR.findall(text):
            target = str((ROOT / name).parent.joinpath(path).resolve().relative_to(ROOT)) if path else name
            dead += [(name, path, anchor)] if target in headings and anchor not in headings[target] else []
    assert dead == []


def test_each_path_of_this_checkout_is_there():
    shown = {
        name: re.sub(r"(?:reports/)(?:<run-id>|slurm-JOBID|\d{8}-\d{6}-\w{4,8})\S*|\S*<\w+>\S*", "", text) for name, text in TEXTS.items()
    }
    paths = {(name, path.rstrip(".")) for name, text in shown.items() for path in _PATH.findall(text)}
    assert sorted((name, path) for name, path in paths if not (ROOT / path).exists()) == []


def commands(text):
    for block in re.findall(r"^ *```sh\n(.*?)```", text, re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            if (found := re.match(r"\s*(?:\S*/)?gpu-acceptance (.*)", line)) and "<" not in line:
                yield shlex.split(re.split(r"&&|[;|>]", found[1])[0], comments=True)


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if any(commands(text))])
def test_each_command_of_ours_is_one_that_the_program_takes(name, capsys):
    """A file of the reader's need not be here."""
    for words in commands(TEXTS[name]):
        with contextlib.suppress(SystemExit):
            rest = make_parser().read(words).rest
            assert [word for word in rest if not (ROOT / word).exists() and not word.startswith("-")] == [], words
        assert re.sub(r"^.*(no such file|no such folder).*$", "", capsys.readouterr().err).strip() == "", words


def test_pages_by_hand_can_be_read_in_an_afternoon():
    size = {name: len(re.sub(r"<!-- generated: .*?<!-- end -->", "", TEXTS[name], flags=re.DOTALL).encode()) for name in BY_HAND}
    assert sum(size.values()) <= 110_000, size
