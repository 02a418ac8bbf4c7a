"""A real browser opens the report: offline, without a complaint, and the verdict is there to see."""

from importlib import resources

import pytest

from gpu_acceptance.report.build import build_compare_page, build_page
from gpu_acceptance.verdict.comparison import compare
from tests.report import samples

HEADING = "document.querySelector('h1').innerText.replace(/\\s+/g, ' ').trim()"


def compared():
    after = samples.accepted()
    after = after.model_copy(update={"plan": after.plan.model_copy(update={"run_id": "20261121-090000-cd34"})})
    return compare(samples.rejected(), after)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("name", samples.ALL)
def test_a_browser_shows_the_verdict_and_has_no_complaint(browser, name, script):
    record = samples.ALL[name]()
    tab = browser.open(build_page(record), script=script)
    assert tab.complaints == []
    assert tab.ask(HEADING).endswith(f" {record.conclusion.line}")
    assert tab.ask("document.querySelector('h1').checkVisibility()")
    assert tab.ask("document.title").startswith(f"{record.conclusion.verdict}: ")
    assert "What was not tested" in tab.dom()


def test_a_browser_shows_two_runs_beside_each_other(browser):
    tab = browser.open(build_compare_page(compared()))
    assert tab.complaints == []
    assert tab.ask(HEADING).endswith(compared().line)
    assert tab.ask("document.querySelectorAll('th button').length") > 0  # its tables are sorted by the same script


def test_this_test_would_see_a_request_and_a_script(browser):
    """The policy of the page refuses both, and the console says so."""
    planted = '<img src="https://example.invalid/a.png"><script>document.title = "owned"</script></main>'
    tab = browser.open(build_page(samples.rejected()).replace("</main>", planted))
    assert len(tab.complaints) >= 2
    assert "Content Security Policy" in " ".join(tab.complaints)
    assert "owned" not in tab.ask("document.title")


AXE = """
for (const one of document.querySelectorAll("details")) one.open = true;
axe.run().then(found => found.violations.filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200)]));
"""


def faults(tab):
    """Return the serious and critical findings of axe-core, with everything unfolded."""
    tab.ask(resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return tab.ask(AXE)


@pytest.mark.parametrize(("name", "scheme"), [("rejected", "light"), ("incomplete", "dark"), ("trained", "dark")])
def test_everybody_can_read_the_page(browser, name, scheme):
    assert faults(browser.open(build_page(samples.ALL[name]()), scheme=scheme, width=390)) == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_read_what_was_found_and_sorted(browser, scheme, width):
    tab = browser.open(build_page(samples.incomplete()), scheme=scheme, width=width)
    tab.ask("document.querySelector('.finder input').focus()")
    tab.type("nccl")
    tab.ask("document.querySelector('.finder [aria-pressed]').click(); document.querySelector('th button').click()")
    assert tab.ask("document.querySelectorAll('.filtered, [aria-sort], [aria-pressed=true]').length") >= 3
    assert faults(tab) == []


def test_everybody_can_read_a_comparison(browser):
    assert faults(browser.open(build_compare_page(compared()), width=390)) == []


def test_this_test_would_see_a_picture_without_words(browser):
    planted = '<img src="data:,"><p style="color: #999; background: #aaa">pale words</p></main>'
    tab = browser.open(build_page(samples.rejected()).replace("</main>", planted))
    assert {name for name, *_ in faults(tab)} == {"image-alt", "color-contrast"}
