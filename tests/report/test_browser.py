"""A real browser opens the report: offline, without a complaint, and the verdict is there to see."""

import html
import json
import re
import shutil
import subprocess
from importlib import resources

import pytest

from gpu_acceptance.comparison import compare
from gpu_acceptance.report import build_page
from gpu_acceptance.report.compare_page import build_compare_page
from tests.report import samples

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"),
    *("--enable-logging=stderr", "--virtual-time-budget=2000"),
)


@pytest.fixture
def browse(tmp_path):
    """Open a page; returns the DOM the browser made of it, and what its console said."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.fail("no browser: the report is checked in a real one; install it with `apt-get install chromium`")

    def browse(text, *more):
        path = tmp_path / "report.html"
        path.write_text(text)
        command = [browser, *FLAGS, *more, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr)

    return browse


@pytest.mark.parametrize("name", ["rejected", "incomplete", "trained"])
def test_a_browser_shows_the_verdict_and_has_no_complaint(browse, name):
    record = samples.ALL[name]()
    dom, console = browse(build_page(record))
    assert console == []
    heading = re.search(r"<h1>(.*)</h1>", dom)[1]
    assert re.sub(r"<[^>]*>", "", heading).endswith(f" {record.conclusion.line}")
    assert f"<title>{record.conclusion.verdict}: 8 × NVIDIA H200" in dom
    assert "What was not tested" in dom


def test_a_browser_shows_two_runs_beside_each_other(browse):
    before, after = samples.rejected(), samples.accepted()
    after = after.model_copy(update={"header": after.header.model_copy(update={"run_id": "20261121-090000-cd34"})})
    comparison = compare(before, after)
    dom, console = browse(build_compare_page(comparison))
    assert console == []
    assert re.sub(r"<[^>]*>", "", re.search(r"<h1>(.*)</h1>", dom)[1]).endswith(comparison.line)


def test_this_test_would_see_a_request_and_a_script(browse):
    """The policy of the page refuses both, and the console says so."""
    planted = '<img src="https://example.invalid/a.png"><script>document.title = "owned"</script></main>'
    dom, console = browse(build_page(samples.rejected()).replace("</main>", planted))
    assert len(console) >= 2
    assert "Content Security Policy" in " ".join(console)
    assert "<title>owned" not in dom


AXE = """
for (const one of document.querySelectorAll("details")) one.open = true;
axe.run().then(found => {
  const grave = found.violations.filter(one => ["serious", "critical"].includes(one.impact));
  const told = document.createElement("pre");
  told.id = "axe";
  told.textContent = JSON.stringify(grave.map(one => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200)]));
  document.body.replaceChildren(told);
});
"""


def faults(browse, page, *more):
    """What axe-core finds that is serious or critical, all unfolded. The page's own policy would refuse its script."""
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    scripts = f"<script>{axe}</script><script>{AXE}</script></body>"
    unguarded, num_policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert num_policies == 1
    dom, _ = browse(unguarded.replace("</body>", scripts), "--virtual-time-budget=60000", *more)
    return json.loads(html.unescape(re.search(r'<pre id="axe">(.*?)</pre>', dom, re.DOTALL)[1]))


@pytest.mark.parametrize(("name", "scheme"), [("rejected", "1"), ("incomplete", "0"), ("trained", "0")])
def test_everybody_can_read_the_page(browse, name, scheme):
    """In light (1) and dark (0)."""
    page = build_page(samples.ALL[name]())
    assert faults(browse, page, f"--blink-settings=preferredColorScheme={scheme}", "--window-size=390,800") == []


def test_everybody_can_read_a_comparison(browse):
    after = samples.accepted()
    after = after.model_copy(update={"header": after.header.model_copy(update={"run_id": "20261121-090000-cd34"})})
    assert faults(browse, build_compare_page(compare(samples.rejected(), after)), "--window-size=390,800") == []


def test_this_test_would_see_a_picture_without_words(browse):
    planted = '<img src="data:,"><p style="color: #999; background: #aaa">pale words</p></main>'
    page = build_page(samples.rejected()).replace("</main>", planted)
    assert {name for name, *_ in faults(browse, page)} == {"image-alt", "color-contrast"}
