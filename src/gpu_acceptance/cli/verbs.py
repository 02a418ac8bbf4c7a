"""Judge this machine, and ask about finished runs, shipped profiles, and this machine. Only `run` touches a GPU.

Every verb prints its answer on standard output, and a problem as one line on standard error.

Exit codes:

- 0: ACCEPTED, or done and nothing speaks against it
- 1: REJECTED; a file of a run changed; the later run is worse; a figure of others would miss its limit
- 2: interrupted
- 3: the files of a run, or a snapshot, are damaged or contradict each other; something could not be written
- 4: usage: an unknown verb, option, profile, metric or kind; a value that is not allowed; a path that is not there, cannot be
  opened, or holds something else; an overlay that is wrong
- 5: nothing ran; `judge`, which runs nothing, found only figures that would hold
- 6: INCOMPLETE; a figure of others has no limit, or cannot be true
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpu_acceptance import __version__
from gpu_acceptance.base.text import did_you_mean, one_line, plural
from gpu_acceptance.cli import fabric, judge, limits, machine, meet, report, run_folder
from gpu_acceptance.cli.arguments import INTERRUPTED, UNREADABLE, USAGE, Parser, add_verb, fail
from gpu_acceptance.folder.files import RecordError
from gpu_acceptance.folder.journal import NothingRanError
from gpu_acceptance.report.remedies import Remedy, table
from gpu_acceptance.run.suite import PARTS, find_suite
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir

_README = Path(__file__).with_name("suite.md")


def _init(options: argparse.Namespace) -> int:
    """Copy the acceptance suite into a folder, to add validations and limits.

    Copy the acceptance suite into DIR: validations, fixtures, limits, and a README that says how to run them and how to add to them. The
    copy runs with the gpu-acceptance that is installed.
    """
    folder: Path = options.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fault = "is not empty" if folder.is_dir() else "is a file"
        raise ValueError(f"{folder} {fault}; allowed: a folder that does not exist yet, or is empty")
    suite = find_suite()
    for place, part in [*((suite / part, part) for part in PARTS), (shipped_dir(), "thresholds")]:
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file() and file.parent.name != "__pycache__":
                target = folder / part / file.relative_to(place)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)  # without the mode: a package may be read-only, and the copy is there to be changed
    (folder / "README.md").write_text(_README.read_text(encoding="utf-8").replace("{version}", __version__), encoding="utf-8")
    print(f"{one_line(str(folder))}: the suite of gpu-acceptance {__version__}; README.md there says how to run it and how to add to it")
    return 0


def _remedy(options: argparse.Namespace) -> int:
    """Print what to do about a kind of failure.

    Print what a kind of failure means, what to do with the node, and three things to check first, with commands. A report names the kind
    of each failure. Without KIND: list all kinds. Nothing on this machine is read or changed.
    """
    remedies = table().remedies
    if options.kind is None:
        width = max(map(len, remedies))
        lines = [f"{kind:{width}}  {remedy.severity:7}  {remedy.title}" for kind, remedy in remedies.items()]
    elif options.kind in remedies:
        lines = list(_lines(options.kind, remedies[options.kind]))
    else:
        hint = did_you_mean(options.kind, remedies)
        raise ValueError(f"no kind of failure {one_line(options.kind)!r:.100}{hint} (gpu-acceptance remedy lists them)")
    print("\n".join(lines))
    return 0


def _lines(kind: str, remedy: Remedy) -> Iterator[str]:
    severity = table().severities[remedy.severity]
    yield f"{kind}: {remedy.title}\n\n{remedy.means}\n\nto do: {remedy.do}"
    for number, (command, look) in enumerate(remedy.checks.items(), start=1):
        yield f"\n{number}. {look}\n     {command}"
    yield f"\n{remedy.severity}: {severity.means}"
    yield from (f"   {changes}\n     {command}" for command, changes in severity.commands.items())
    yield "\nsee also:"
    for reference in (table().references[name] for name in remedy.references):
        yield f"   {reference.title}{f': {reference.url}' if reference.url else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    options = make_parser().read(arguments)
    verb: Callable[[argparse.Namespace], int] = options.verb
    try:
        code = verb(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except NothingRanError as error:
        return fail(error, error.exit_code)
    except RecordError as error:
        return fail(error, UNREADABLE)
    except BrokenPipeError:  # as of `| head`, which has read enough: what is left goes nowhere, or Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE  # what a shell shows of a program that such a signal ended
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, UNREADABLE)
    except ValueError as error:
        return fail(error, USAGE)


def make_parser() -> Parser:
    """Return the parser of all verbs."""
    parser = Parser(prog="gpu-acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"gpu-acceptance {__version__}")
    verbs = parser.add_subparsers(metavar="VERB")
    run_folder.add_verbs(verbs)
    report_verb = verbs.add_parser("report", help="work with the report of a run", description="Work with the report of a run.")
    report_verbs = report_verb.add_subparsers(metavar="VERB")
    report.add_verbs(report_verbs)
    add_verb(verbs, "init", _init).add_argument("folder", metavar="DIR", type=Path, help="a folder that does not exist yet, or is empty")
    machine.add_verbs(verbs)
    meet.add_verbs(verbs)
    kind = "a kind of failure, such as repair_pending"
    add_verb(verbs, "remedy", _remedy).add_argument("kind", metavar="KIND", nargs="?", help=kind)
    limits.add_verbs(verbs)
    fabric.add_verb(verbs)
    judge.add_verb(verbs)
    add_verb(verbs, "profiles", _profiles)
    return parser


def _profiles(options: argparse.Namespace) -> int:
    """List the shipped profiles."""
    directory = shipped_dir()
    profiles = [load_profile(name, directory) for name in profile_names(directory)]
    width = max((len(profile.name) for profile in profiles), default=0)
    for profile in profiles:
        print(f"{profile.name:{width}}  {plural(len(profile.limits), 'limit'):>10}  {profile.device or '-'}")
    return 0
