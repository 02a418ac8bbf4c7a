"""The terminal of rank 0: a header with profile, job and expected time; the time that is left; no summary of pytest.

pytest's summary counts passes: it would be green where every validation passed without proof. The last screen takes its place.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from gpu_acceptance.base.text import one_line, plural, visible
from gpu_acceptance.report.words import duration
from gpu_acceptance.run.plan import network_lines
from gpu_acceptance.run.run import Run
from gpu_acceptance.thresholds.limit import first_of, level_text, subject_of
from gpu_acceptance.verdict.coverage import judge_run, make_coverage
from gpu_acceptance.verdict.rows import announcement

_MOST_HOSTS = 4
_MOST_REASONS = 2


class RunTerminal:
    """Hooks of a real run on pytest's terminal."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._aside: tuple[str, Counter[str]] = "", Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        # The suite may be in site-packages: files are named relative to it, and not to the current folder.
        self._config.cwd_relative_nodeid = lambda nodeid: nodeid  # type: ignore[method-assign]
        reporter = self._reporter
        if reporter is None:
            return
        reporter.startpath = self._config.rootpath
        reporter.summary_stats = lambda: None  # type: ignore[method-assign]
        shown = getattr(reporter, "_get_progress_information_message", None)  # pytest has no hook for it
        if callable(shown) and self._run.place.rank == 0:
            reporter._get_progress_information_message = lambda: self._time_left + shown()  # type: ignore[method-assign]

    def pytest_report_collectionfinish(self) -> list[str]:
        return list(header_lines(self._run)) if self._run.leader else []

    def note_aside(self, nodeid: str, reason: str) -> None:
        """Count a validation that is not applicable. With -v a subject gets one line for all of them, once the next one begins."""
        subject = subject_of(nodeid)
        if self._aside[0] != subject:
            self.tell_aside()
            self._aside = subject, Counter()
        self._aside[1][reason] += 1

    def tell_aside(self) -> None:
        subject, reasons = self._aside
        self._aside = "", Counter()
        if reasons and self._reporter:
            text = "; ".join(one_line(reason) for reason, _ in reasons.most_common(_MOST_REASONS))
            self._reporter.ensure_newline()
            self._reporter.write_line(f"{subject}: {plural(reasons.total(), 'validation')} not applicable: {text}")

    @property
    def tells_each(self) -> bool:
        """True with -v: pytest writes a line for each validation. With -vv also for validations that are not applicable."""
        return bool(self._reporter and self._reporter.verbosity == 1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Hide a skip: without letter and word pytest counts a report and does not show it."""
        if not (report.skipped and self.tells_each):
            return None
        reported: set[str] = getattr(self._reporter, "_progress_nodeids_reported", set())
        reported.add(report.nodeid)  # else 100 % would never be reached
        return "skipped", "", ""

    def note(self, line: str) -> None:
        """Show a line while a validation runs."""
        if self._reporter:
            self._reporter.ensure_newline()
            self._reporter.write_line(visible(line))

    @property
    def _time_left(self) -> str:
        return f" {self._run.leader.time_left}" if self._run.leader and self._run.leader.time_left else ""

    @property
    def _reporter(self) -> pytest.TerminalReporter | None:
        reporter: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        return reporter


def header_lines(run: Run) -> Iterator[str]:
    """Yield lines about the run, before its first validation."""
    assert run.plan
    assert run.leader
    profile, job = run.plan.profile, run.leader.job
    why = f"chosen by the name of the GPU, {profile.device}" if profile.device_name is not None else "since there is no GPU"
    if run.settings.hardware:
        why = "named by --hardware"
    if overlays := sorted({change.file for change in profile.changes}):
        why += f"; {plural(len(profile.changes), 'change')} by {', '.join(overlays)}"
    yield f"profile   {profile.name}, {why}; level {level_text(profile.level, profile.parameters)}"
    existing = sum(ranks[0].num_gpus for ranks in job.by_node.values())
    gpus = f"{job.world_size} of {plural(existing, 'GPU')}" if existing else "no GPU"
    hosts = first_of([one_line(ranks[0].host) for ranks in job.by_node.values()], _MOST_HOSTS)
    yield f"job       {plural(job.num_nodes, 'node')} x {plural(job.gpus_per_node, 'rank')}, {gpus}: {hosts}"
    yield from (f"network   {line}" for line in network_lines(profile, job, job.num_nodes))
    yield f"run       {run.files.folder.name}, its report will be in {run.files.folder.absolute()}"
    seconds = run.leader.expected_s
    end = datetime.now().astimezone() + timedelta(seconds=seconds)
    coverage = make_coverage(judge_run((), profile, job, run.plan.waivers), profile.requires, job)
    # "Up to": a limit that compares two nodes or GPUs, as `uniform` does, may turn out not to apply.
    work = f"{plural(len(run.validations) - 1, 'validation')} and up to {plural(coverage.limits_expected, 'limit')}"
    yield f"expected  {duration(seconds)} for {work}; end about {end:%H:%M %Z}"
    yield from (f"missing   {announcement(unmet)}" for unmet in run.unmet)
