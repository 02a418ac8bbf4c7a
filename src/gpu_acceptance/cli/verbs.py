"""Judge this machine, and ask about finished runs, shipped profiles, and this machine. Only `run` touches a GPU.

Every verb prints its answer on standard output, and a problem as one line on standard error.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from gpu_acceptance import __version__
from gpu_acceptance.cli import build, compare, evidence, init, machine, meet, pods, remedies, run, verdict
from gpu_acceptance.cli.said import UNREADABLE, fail
from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.folder.never_began import NothingRanError
from gpu_acceptance.report.formatting import count
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir

USAGE = 4


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2, which here means interrupted."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    if rest and not hasattr(options, "takes_rest"):  # `run` hands on what it does not know
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    verb: Callable[[argparse.Namespace], int] = options.verb
    try:
        return verb(options)
    except NothingRanError as error:
        return fail(error, error.exit_code)
    except RecordError as error:
        return fail(error, UNREADABLE)
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}", UNREADABLE)
    except ValueError as error:
        return fail(error, USAGE)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(prog="gpu-acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"gpu-acceptance {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    run.add_verb(verbs)
    verdict.add_verb(verbs)
    report = verbs.add_parser("report", help="work with the report of a run", description="Work with the report of a run.")
    report_verbs = report.add_subparsers(required=True, metavar="VERB")
    build.add_verbs(report_verbs)
    compare.add_verbs(report_verbs)
    evidence.add_verbs(report_verbs)
    init.add_verbs(verbs)
    machine.add_verbs(verbs)
    pods.add_verbs(verbs)
    meet.add_verbs(verbs)
    remedies.add_verbs(verbs)
    profiles = verbs.add_parser("profiles", help="list the shipped profiles", description="List the shipped profiles.")
    profiles.set_defaults(verb=_profiles)
    return parser


def _profiles(options: argparse.Namespace) -> int:
    directory = shipped_dir()
    profiles = [load_profile(name, directory) for name in profile_names(directory)]
    width = max((len(profile.name) for profile in profiles), default=0)
    for profile in profiles:
        print(f"{profile.name:{width}}  {count(len(profile.limits), 'limit'):>10}  {profile.device_name or '-'}")
    return 0
