"""Two runs beside each other -> one HTML page, as `report.html` is one: nothing from the network, the same script."""

from gpu_acceptance.report.build import render
from gpu_acceptance.report.words import Mark
from gpu_acceptance.verdict.comparison import NOTHING_WORSE, SOMETHING_WORSE, Comparison

_MARKS = {NOTHING_WORSE: Mark("✓", "NOTHING WORSE", "good"), SOMETHING_WORSE: Mark("✗", "SOMETHING WORSE", "bad")}
_NOT_COMPARABLE = Mark("○", "NOT COMPARABLE", "open")
_NOT_AGAIN = Mark("○", "NOT TESTED AGAIN", "open")


def build_compare_page(comparison: Comparison) -> str:
    """All of it: nothing is shortened."""
    failures = comparison.failures
    sections = [
        ("New failures", Mark("✗", "NEW", "bad"), failures.new),
        ("Failures that cannot be compared", Mark("○", "NOT COMPARED", "open"), failures.not_compared),
        ("Failures that are still there", Mark("✗", "STILL", "bad"), failures.still),
        ("Failures that are gone", Mark("✓", "GONE", "good"), failures.gone),
    ]
    figures = [
        ("Figures that are worse", Mark("✗", "WORSE", "bad"), comparison.worse),
        ("Figures that are better", Mark("✓", "BETTER", "good"), comparison.better),
        ("Figures that moved", Mark("·", "MOVED", "quiet"), comparison.moved),
    ]
    mark = _MARKS.get(comparison.exit_code, _NOT_COMPARABLE)
    return render("compare.html", comparison=comparison, mark=mark, not_again=_NOT_AGAIN, failures=sections, figures=figures)
