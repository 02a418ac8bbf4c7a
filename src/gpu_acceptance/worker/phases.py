"""What one phase of pytest means for the verdict."""

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
    return Outcome.FAILED if failed else Outcome.ERROR, report.longreprtext
