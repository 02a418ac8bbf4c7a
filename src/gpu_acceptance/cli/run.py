"""`run`: judge this machine, one rank for each GPU, from the launch to the verdict."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance.cli.arguments import INTERRUPTED, UNREADABLE, USAGE, fail, whole_number
from gpu_acceptance.cli.run_folder import read_run, tell_verdict
from gpu_acceptance.control.torchrun import TorchrunProcess
from gpu_acceptance.folder.files import RESULTS, RUN_ID, new_run_id
from gpu_acceptance.folder.manifest import MANIFEST
from gpu_acceptance.report.ending import columns_of, last_screen, takes_colour, where_it_is
from gpu_acceptance.report.summary_text import summary_lines
from gpu_acceptance.run.settings import OPTIONS, declare, given
from gpu_acceptance.run.suite import FOLDER, suite_for

_NOTHING_RAN = 5
_SAID_BY_RANKS = {INTERRUPTED, UNREADABLE, _NOTHING_RAN, 6}  # why there is no run; 1 is REJECTED, and the code of a torchrun that fails

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs


def add_verb(verbs: "Verbs") -> None:
    run = verbs.add_parser(
        "run",
        help="judge this machine: one rank per GPU (2 without a GPU), one verdict, one report",
        description="Judge this machine: start one rank per GPU (2 without a GPU), print the verdict, what to do and where the report is, "
        "and return the run's own exit code (0 ACCEPTED, 1 REJECTED, 6 INCOMPLETE, 2 interrupted, 3 internal error, 4 usage, 5 nothing "
        "ran). What is not listed here goes on to pytest: -k EXPRESSION, -v, -x, acceptance/test_hbm.py.",
    )
    run.add_argument("--ranks", metavar="N", type=whole_number(999), help="start N ranks (default: one for each GPU that torch sees)")
    for title, options in OPTIONS.items():
        declare(options, run.add_argument_group(title).add_argument)
    run.set_defaults(verb=_run, takes_rest=True)


def _run(options: argparse.Namespace) -> int:
    suite = suite_for(Path.cwd())
    pytest_arguments = [*_validations(suite, options.rest), "-c", str(suite / "pytest.ini")]
    if options.plan or not {"--collect-only", "--co"}.isdisjoint(options.rest):
        code = subprocess.call([sys.executable, "-m", "pytest", *pytest_arguments, *given(vars(options))])
        return 0 if code == _NOTHING_RAN else code
    torchrun = TorchrunProcess()
    options.run_id = options.run_id or [new_run_id()]
    options.report_dir = options.report_dir or ["reports"]
    folder = Path(options.report_dir[-1]) / options.run_id[-1]
    if RUN_ID.fullmatch(options.run_id[-1]):  # else the ranks say what is allowed
        _refuse_used(folder)
    ranks = [f"--nproc-per-node={options.ranks}"] if options.ranks else []
    launcher = ["-m", "gpu_acceptance.control.torchrun", *ranks, "--standalone", "--local-addr=127.0.0.1", "--max-restarts=0"]
    code = torchrun.run([sys.executable, *launcher, "-m", "pytest", *pytest_arguments, *given(vars(options))])
    if torchrun.forced or (torchrun.was_asked_to_stop and not folder.is_dir()):
        return fail(f"interrupted{', and ended at once' * torchrun.forced}: there is no verdict", INTERRUPTED)
    return _tell(folder, code)


def _refuse_used(folder: Path) -> None:
    """An earlier run there would answer for this one, where no rank comes to say so."""
    if os.path.lexists(folder):
        raise ValueError(f"--run-id={folder.name}: {folder} exists; a run never overwrites another")


def _validations(suite: Path, arguments: Sequence[str]) -> list[str]:
    """What is to run: names of the suite's own files are looked up in it, wherever this was called; without any, all of it."""
    found = [_seen_from_here(suite / one) if _names_a_file_of(suite, one) else one for one in arguments]
    return found if found != list(arguments) else [_seen_from_here(suite / FOLDER), *found]


def _seen_from_here(path: Path) -> str:
    """Pytest takes a bracket or `::` in the path of a folder for the end of a file's name; the current folder may have one in its own."""
    is_odd = "[" in str(path) or "::" in str(path.parent)
    return os.path.join(os.curdir, os.path.relpath(path)) if is_odd else str(path)  # noqa: PTH118


def _names_a_file_of(suite: Path, argument: str) -> bool:
    path = argument.split("::", 1)[0]
    return path.split("/", 1)[0] == FOLDER and (suite / path).exists()


def _tell(folder: Path, code: int) -> int:
    """Shows the last screen of this launch, after all that its ranks have said, and returns the run's own exit code.

    `code` is torchrun's. Nothing but a whole record that agrees with it makes 0.
    """
    if code == USAGE or (code in _SAID_BY_RANKS and not folder.is_dir()):
        return code
    if not folder.is_dir():
        return fail(f"nothing was judged: {_ending(code)}, and this run left no record; see the lines above", UNREADABLE)
    if not (folder / RESULTS).is_file() or not (folder / MANIFEST).is_file():
        return tell_verdict(folder)
    record = read_run(folder)
    if record.conclusion.exit_code == 0 and code != 0:
        return fail(f"{folder} says {record.conclusion.line}, but {_ending(code)}: this launch proves nothing; run it again", UNREADABLE)
    tail, out = where_it_is(folder.absolute()), sys.stdout
    for row in last_screen(
        record.conclusion.verdict, list(summary_lines(record)), tail, width=columns_of(out), in_colour=takes_colour(out)
    ):
        print(row)
    return record.conclusion.exit_code


def _ending(code: int) -> str:
    return f"torchrun ended with exit code {code}" if code >= 0 else f"torchrun was killed by {signal.Signals(-code).name}"
