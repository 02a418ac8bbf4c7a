"""An agreed verdict as pytest reports: every rank feeds the same ones to pytest, so terminal, -x and exit codes agree.

Always the full set-up, call, teardown, as plugins of pytest expect it.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import pytest

from gpu_acceptance.base.text import visible
from gpu_acceptance.record.outcome import Means, Outcome

_When = Literal["setup", "call", "teardown"]
_What = Literal["passed", "failed", "skipped"]


def reports(
    item: pytest.Item, outcome: Outcome, message: str, duration_s: float, properties: Mapping[str, str]
) -> Iterator[pytest.TestReport]:
    """What rejects is a failure, what proves nothing is an error; only a declared absence may be a skip."""
    if outcome is Outcome.NOT_APPLICABLE:
        yield _report(item, "setup", "skipped", (str(item.path), 0, f"Skipped: not applicable: {visible(message)}"), 0.0, properties)
    elif outcome is Outcome.PASSED:
        yield _report(item, "setup", "passed", None, 0.0, properties)
        yield _report(item, "call", "passed", None, duration_s, properties)
    elif outcome.means is Means.REJECTS:
        yield _report(item, "setup", "passed", None, 0.0, properties)
        yield _report(item, "call", "failed", _text(outcome, message), duration_s, properties)
    else:
        yield _report(item, "setup", "failed", _text(outcome, message), duration_s, properties)
    yield _report(item, "teardown", "passed", None, 0.0, properties)


def _text(outcome: Outcome, message: str) -> str:
    return visible(message if message.startswith(outcome) else f"{outcome}: {message}")


def _report(
    item: pytest.Item,
    when: _When,
    outcome: _What,
    longrepr: str | tuple[str, int, str] | None,
    duration_s: float,
    properties: Mapping[str, str],
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        duration=duration_s,
        user_properties=list(properties.items()),
    )
