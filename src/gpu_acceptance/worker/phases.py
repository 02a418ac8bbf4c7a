"""What one phase of pytest means for the verdict."""

import pytest

from gpu_acceptance.record.outcome import Outcome


def phase_outcome(report: pytest.TestReport, call: pytest.CallInfo[None]) -> tuple[Outcome, str]:
    """What one phase means for the verdict. A phase can pass in ways that prove nothing; those are errors."""
    if hasattr(report, "wasxfail"):
        return Outcome.ERROR, f"xfail is not allowed in an acceptance run, it would hide a failure: {report.wasxfail or 'no reason given'}"
    if report.passed:
        return Outcome.PASSED, ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.when == "setup":
            return Outcome.SKIPPED, str(reason)
        return Outcome.ERROR, f"skip raised inside the {report.when} phase, where other ranks may wait: {reason}"
    failed = report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
    return Outcome.FAILED if failed else Outcome.ERROR, report.longreprtext
