"""Runs examples as a real acceptance suite: its own folder, real YAML files, real torchrun processes."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import yaml
from clean_environment import NO_KEY, clean_environment
from ports import free_port
from waiting import HANG_S
from warm import Forked, fork

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import Conclusion, RunRecord
from gpu_acceptance.thresholds.profile import load_profile
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.verdict import conclude

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "tests" / "examples"
PYTHON = sys.executable
_SUITE = "EXAMPLE_SUITE"  # in the environment of all that a run starts, wherever it goes from there
_NEXT = """

def test_next(check, ranks):
    import torch

    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    check("{example}.value", 5.0 if float(total) == ranks.world_size else 0.0, "GB/s")
"""
_RANK_BLOCK = re.compile(r"rank\s+:\s+(\d+).*?\n\s*exitcode\s+:\s+(-?\d+).*?\n\s*traceback : (.*?)\n\s*(?=\[\d+\]:|---|===)", re.DOTALL)


@dataclass(frozen=True)
class Finished:
    """The end of a run: the launcher's output, the exit code of each rank that failed, and the run's folder if it made one."""

    returncode: int
    output: str
    folder: Path | None
    suite: Path

    @property
    def rank_exit_codes(self) -> dict[int, int]:
        """Exit codes of all ranks that torchrun reports as failed."""
        return {int(rank): int(code) for rank, code, _ in _RANK_BLOCK.findall(self.output)}

    @property
    def rank_errors(self) -> dict[int, str]:
        """The part of torchrun's page about each rank that failed: the text of the rank's error file, its first line first."""
        return {
            int(rank): "\n".join(line.strip() for line in text.strip().split("\n")) for rank, _, text in _RANK_BLOCK.findall(self.output)
        }

    @property
    def has_results(self) -> bool:
        return any(self.suite.glob("reports/*/results.json"))

    @cached_property
    def record(self) -> RunRecord:
        assert self.folder is not None, self.output
        return read_results(self.folder)

    @property
    def verdict_line(self) -> str:
        return self.record.conclusion.line

    @property
    def reasons(self) -> str:
        return "\n".join(self.record.conclusion.reasons)

    def row(self, name: str) -> Row:
        """The one row whose id ends with this: `test_asserts`, `exits.py::test_fault`."""
        (row,) = [row for row in self.record.rows if re.search(rf"(^|[/_:]){re.escape(name)}$", row.nodeid)]
        return row

    def outcomes(self) -> dict[str, str]:
        """Validation -> outcome, without the forming of the world."""
        return {row.nodeid.rsplit("::", 1)[-1]: str(row.outcome) for row in self.record.rows if row.subject != FORMATION}

    def outcomes_by_rank(self, name: str, attempt: int = -1) -> dict[int, str]:
        return {record.rank: str(record.outcome) for record in self.row(name).attempts[attempt].ranks}

    def figures(self, name: str, rank: int = 0) -> dict[str, Figure]:
        """The figures of one rank in the last attempt of a row, by metric without its subject."""
        (record,) = [record for record in self.row(name).attempts[-1].ranks if record.rank == rank]
        return {figure.metric.partition(".")[2]: figure for figure in record.figures}

    def values(self, name: str, rank: int = 0) -> dict[str, Any]:
        """The values of these figures."""
        return {metric: figure.value for metric, figure in self.figures(name, rank).items()}

    def missed(self, name: str) -> dict[str, Judgement]:
        """The limits that a row missed, by metric."""
        return {judgement.metric: judgement for judgement in self.row(name).judgements if judgement.status == "missed"}

    def alone(self, subject: str) -> Conclusion:
        """The verdict of the same rows if this subject had been the whole run: no other situation hides or excuses it."""
        profile = load_profile(self.record.plan.profile.name, self.suite / "thresholds")
        limits = {metric: limit for metric, limit in profile.limits.items() if limit.subject == subject}
        rows = [row for row in self.record.rows if row.subject in {subject, FORMATION}]
        only = replace(profile, requires=frozenset({subject}), limits=limits)
        return conclude(self.record.plan.model_copy(update={"profile": only, "validations": ()}), Job(self.record.ranks), rows)

    def terminal_of(self, rank: int) -> str:
        """The terminal output of pytest on a rank other than 0."""
        assert self.folder is not None
        return (self.folder / "logs" / f"rank-{rank:05d}.pytest.txt").read_text()

    def journal_of(self, rank: int) -> list[dict[str, Any]]:
        """All lines: identity, plan, facts and records."""
        assert self.folder is not None
        return [json.loads(line) for line in (self.folder / "journal" / f"rank-{rank:05d}.jsonl").read_text().splitlines()]


def make_suite(folder: Path, *examples: str, conftest: str = "") -> Path:
    """A suite in which each example is a subject, with the limits of all in one profile. `conftest`: text of acceptance/conftest.py."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("src", "fixtures", "conftest.py", "pytest.ini"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "acceptance").mkdir()
    (folder / "thresholds").mkdir()
    if conftest:
        (folder / "acceptance" / "conftest.py").write_text(conftest)
    profile: dict[str, Any] = {"extends": "base"}
    for example in examples:
        (folder / "acceptance" / f"test_{example}.py").write_text(_text_of(example))
        for key, value in limits_of(example).items():
            profile[key] = {**profile.get(key, {}), **value} if isinstance(value, dict) else [*profile.get(key, []), *value]
    (folder / "thresholds" / "cpu.yaml").write_text(yaml.safe_dump(profile, width=1000))
    (folder / "thresholds" / "base.yaml").write_text("deadline_s: 60\n")
    return folder


def _text_of(example: str) -> str:
    """The example; one with a fault is followed by a validation that must pass: its collective is right again."""
    text = (EXAMPLES / f"{example}.py").read_text()
    return text + _NEXT.format(example=example) if "\ndef test_fault(" in text else text


def environment_suite(folder, *conftest):
    """The shipped environment rows and limits, and nothing else."""
    suite = shipped_suite(folder, "environment")
    extend_conftest(suite, *conftest)
    return suite


def shipped_suite(folder: Path, *subjects: str) -> Path:
    """The shipped rows and limits of some subjects, and no other is required; and all models and networks between nodes."""
    suite = make_suite(folder)
    for subject in subjects:
        shutil.copy(ROOT / "acceptance" / f"test_{subject}.py", suite / "acceptance")
    requires = f"requires: [{', '.join(subjects)}]"
    for name in ("base.yaml", "cpu.yaml"):
        text = (ROOT / "thresholds" / name).read_text()
        (suite / "thresholds" / name).write_text(re.sub(r"^requires:\s+\[[^\]]*\]$", requires, text, flags=re.MULTILINE))
    for pattern in ("fabric-*.yaml", "model-*.yaml"):
        for file in (ROOT / "thresholds").glob(pattern):
            shutil.copy(file, suite / "thresholds")
    return suite


def extend_conftest(suite: Path, *more: str) -> None:
    """Lines for the root conftest of this suite alone: in every process that is a rank's."""
    conftest = suite / "conftest.py"
    text = conftest.read_text()
    conftest.unlink()  # a link to ours
    conftest.write_text("\n".join([text, *more]))


def limits_of(example: str) -> dict[str, Any]:
    """The part of a profile for an example, as `examples/limits.yaml` has it."""
    own: dict[str, Any] = yaml.safe_load((EXAMPLES / "limits.yaml").read_text()).get(example, {})
    common = {"unit": "GB/s", "scope": "rank", "source": "policy: an example of a limit, for the tests of the suite itself"}
    limits = own.get("limits", {f"{example}.value": {"at_least": 1}})
    return {"requires": [example], **own, "limits": {metric: {**common, **limit} for metric, limit in limits.items()}}


def torchrun_command(*arguments: str, ranks: int = 2, launcher: tuple[str, ...] = ()) -> list[str]:
    """`torchrun --nproc-per-node RANKS -m pytest ARGUMENTS`."""
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *launcher, "-m", "pytest", *arguments]


def torchrun(
    suite: Path, *arguments: str, ranks: int = 2, launcher: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Finished:
    """`torchrun --nproc-per-node RANKS -m pytest acceptance/ ARGUMENTS` in the suite's folder."""
    return run(torchrun_command("acceptance/", *arguments, ranks=ranks, launcher=launcher), suite, {**NO_KEY, **(env or {})})


def two_nodes(*nodes: tuple[Path, tuple[str, ...], Mapping[str, str]], ranks: int = 1) -> list[Finished]:
    """A torchrun for each node, all on this machine: the node's suite, what else stands on its command line, and in its environment."""
    port = free_port()
    meeting = (f"--nnodes={len(nodes)}", "--master-addr=127.0.0.1", f"--master-port={port}", f"--nproc-per-node={ranks}")
    launchers = []
    for number, (suite, arguments, env) in enumerate(nodes):
        command = [PYTHON, "-m", "torch.distributed.run", *meeting, f"--node-rank={number}", "-m", "pytest", "acceptance/", *arguments]
        launchers.append(start(command, suite, {"OMP_NUM_THREADS": "1", **env}))
    outputs = [launcher.communicate(timeout=HANG_S)[0] for launcher in launchers]
    ended = zip(launchers, outputs, nodes, strict=True)
    return [finished(launcher.returncode, output, suite) for launcher, output, (suite, _, _) in ended]


def plain_pytest(suite: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Finished:
    """`pytest acceptance/ ARGUMENTS` in the suite's folder: a world of one."""
    return run([PYTHON, "-m", "pytest", "acceptance/", *arguments], suite, env)


def run(
    command: list[str], suite: Path, env: Mapping[str, str] | None = None, *, cwd: Path | None = None, reports: Path | None = None
) -> Finished:
    """Any command in the suite's folder (or `cwd`), with the one run folder it may have made in `reports`."""
    before = _folders(reports or suite / "reports")
    process = start(command, cwd or suite, env)
    output, _ = process.communicate(timeout=HANG_S)
    return finished(process.returncode, output, suite, before, reports)


def start(
    command: list[str], cwd: Path, env: Mapping[str, str] | None = None, *, output: Path | None = None
) -> subprocess.Popen[str] | Forked:
    """Starts it there; what it says goes to `output`, else to a pipe."""
    environment = {**clean_environment(), _SUITE: str(cwd.resolve()), **(env or {})}
    if forked := fork(command, cwd, environment, output):
        return forked
    with contextlib.ExitStack() as stack:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdout=stack.enter_context(output.open("w")) if output else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )


def processes_in(suite: Path) -> list[str]:
    """The living processes that a run in this folder started, in words."""
    return [text for process in psutil.process_iter() if (text := _described(process, str(suite.resolve())))]


def _described(process: psutil.Process, suite: str) -> str:
    try:
        mine = suite in {process.cwd(), process.environ().get(_SUITE)} and process.status() != psutil.STATUS_ZOMBIE
        return f"{process.pid} {' '.join(process.cmdline())}" if mine else ""
    except psutil.Error:
        return ""


def finished(returncode: int, output: str, suite: Path, before: set[Path] = frozenset(), reports: Path | None = None) -> Finished:
    made = sorted(_folders(reports or suite / "reports") - before)
    assert len(made) <= 1, made
    return Finished(returncode, output, made[0] if made else None, suite)


def _folders(reports: Path) -> set[Path]:
    return {path for path in reports.glob("*") if path.is_dir()}
