"""What one phase of pytest means for the verdict."""

from collections.abc import Iterator

import pytest

from gpu_acceptance.record.outcome import Outcome


def phase_outcome(report: pytest.TestReport, call: pytest.CallInfo[None], against_passed: str = "") -> tuple[Outcome, str]:
    """What one phase means for the verdict. A phase can pass in ways that prove nothing; those are errors.

    `against_passed`: what was seen of the call that a report which says passed contradicts.
    """
    if hasattr(report, "wasxfail"):
        return Outcome.ERROR, f"xfail is not allowed in an acceptance run, it would hide a failure: {report.wasxfail or 'no reason given'}"
    if report.passed:
        if call.excinfo is not None and not against_passed:
            against_passed = f"its report says passed, and the {report.when} raised {call.excinfo.exconly()}"
        return (Outcome.ERROR, against_passed) if against_passed else (Outcome.PASSED, "")
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.when == "setup":
            return Outcome.SKIPPED, str(reason)
        return Outcome.ERROR, f"skip raised inside the {report.when} phase, where other ranks may wait: {reason}"
    failed = report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
    return Outcome.FAILED if failed else Outcome.ERROR, _text(report, call)


def _text(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    """Pytest's text. Of several exceptions at once, as fixtures raise them, it marks no line as the error, so that these come first."""
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(error, BaseExceptionGroup):
        return report.longreprtext
    lines = [f"E   {type(one).__name__}: {line}" for one in _leaves(error) for line in (str(one).splitlines() or [""])[:1]]
    return "\n".join([*lines, report.longreprtext, f"{type(error).__name__} of {len(lines)} exceptions"])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
