"""Gives mkdocs the repository as it lies: a page for each document, and a copy of each file that a document links to.

The site has the folders of the repository, so that a link between two documents leads to the same place on a Git host and here.
mkdocs.yml names this file; `mkdocs build --strict` refuses a link to what is not there, and a link to a folder.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("*.md", "docs/*.md", "thresholds/*.md", "deploy/**/*.md", "reports/*.md", "reports/evidence/**/*.md")
AS_THEY_ARE = ("docs/assets/*", "reports/samples/**/*")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)|^\[\w+\]: (\S+)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what mkdocs found in docs/ by what the repository publishes; the files of the theme stay."""
    published = {path for pattern in (*DOCUMENTS, *AS_THEY_ARE) for path in ROOT.glob(pattern) if path.is_file()}
    published |= {linked for path in published if path.suffix == ".md" for linked in linked_files(path)}
    of_theme = [file for file in files if not Path(str(file.abs_src_path)).is_relative_to(config.docs_dir)]
    return Files([*of_theme, *(_file(path, config) for path in sorted(published))])


def linked_files(document: Path) -> Iterator[Path]:
    """Files of the repository that a document links to."""
    for inline, below in _LINK.findall(document.read_text(encoding="utf-8")):
        path = (document.parent / (inline or below)).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def _file(path: Path, config: MkDocsConfig) -> File:
    return File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls)
