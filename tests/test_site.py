"""The site of the documents: it is built strictly, asks no network, answers a search from its folder, and shows what Git hosts show."""

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import markdown
import markdown_it
import pytest

from tests.report.browser import Browser, Tab
from tests.test_documents import DOCUMENTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
SHAPE = ("h1", "h2", "h3", "h4", "ol", "ul", "li", "table", "tr", "code", "pre", "a", "img", "strong", "em")


class Tags(HTMLParser):
    """The number of each element in a page, and all that the page loads."""

    def __init__(self, page):
        super().__init__()
        self.count, self.loaded = Counter(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.count[tag] += tag in SHAPE
        self.loaded += [value for name, value in attributes if name == LOADS.get(tag) and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path)
    yield browser
    browser.close()


def test_each_document_is_a_page_and_each_sample_is_as_it_was_committed(site):
    for document in DOCUMENTS:
        page = site / document.relative_to(ROOT).with_suffix(".html")
        assert (page.with_stem("index") if document.stem == "README" else page).is_file()
    for sample in (path for path in (ROOT / "reports" / "samples").rglob("*") if path.is_file()):
        assert (site / sample.relative_to(ROOT)).read_bytes() == sample.read_bytes()
    assert (site / "src" / "gpu_acceptance" / "report" / "remedies.yaml").is_file()  # linked by a page


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        if "samples" not in page.parts:
            assert [one for one in Tags(page.read_text(encoding="utf-8")).loaded if "//" in one] == []
    assert not any(re.search(r"url\(['\"]?https?:", path.read_text(encoding="utf-8")) for path in site.rglob("*.css"))


@pytest.mark.needs("chromium")
def test_a_search_from_the_folder_answers(site, browser):
    """A browser that reaches no network opens the first page as a file. A metric is found by its parts."""
    tab = Tab(browser, site / "index.html")
    tab.ask("document.querySelector('input[name=query]').focus()")
    tab.type("gpu_health.remapping")
    tab.press(" ")
    found = tab.ask(
        "new Promise(done => { const look = setInterval(() => {"
        "const found = [...document.querySelectorAll('.md-search-result__item a')].map(one => one.href);"
        "if (found.length) { clearInterval(look); done(found); } }, 50); })"
    )
    assert any("/docs/limits.html" in link for link in found)
    assert [one for one in tab.complaints if not one.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_the_same_lists_tables_and_code_as_on_a_git_host(document):
    """Python-Markdown and CommonMark differ over lists that follow a line, and over what is indented."""
    text = document.read_text(encoding="utf-8")
    here = markdown.markdown(  # as mkdocs.yml has it
        text,
        extensions=["tables", "sane_lists", "pymdownx.superfences", "pymdownx.highlight"],
        extension_configs={"pymdownx.highlight": {"use_pygments": False}},
    )
    there = markdown_it.MarkdownIt("commonmark").enable("table").render(text)
    assert Tags(here).count == Tags(there).count
