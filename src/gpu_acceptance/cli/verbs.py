"""Judge this machine, and ask about finished runs, shipped profiles, and this machine. Only `run` touches a GPU.

Every verb prints its answer on standard output, and a problem as one line on standard error.

Exit codes:

- 0: ACCEPTED, or done and nothing speaks against it
- 1: REJECTED; a file of a run changed; the later run is worse
- 2: interrupted
- 3: the files of a run, or a snapshot, are damaged or contradict each other; something could not be written
- 4: usage: an unknown verb, option, profile, metric or kind; a value that is not allowed; a path that is not there, cannot be
  opened, or holds something else; an overlay that is wrong
- 5: nothing ran
- 6: INCOMPLETE
"""

import argparse
from collections.abc import Callable, Sequence

from gpu_acceptance import __version__
from gpu_acceptance.cli import build, compare, evidence, explain, init, machine, meet, pods, remedies, run, verdict
from gpu_acceptance.cli.arguments import USAGE, Parser
from gpu_acceptance.cli.said import INTERRUPTED, UNREADABLE, fail
from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.folder.journal import NothingRanError
from gpu_acceptance.report.formatting import count
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code."""
    options = make_parser().read(arguments)
    verb: Callable[[argparse.Namespace], int] = options.verb
    try:
        return verb(options)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except NothingRanError as error:
        return fail(error, error.exit_code)
    except RecordError as error:
        return fail(error, UNREADABLE)
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}", UNREADABLE)
    except ValueError as error:
        return fail(error, USAGE)


def make_parser() -> Parser:
    """The parser of all verbs."""
    parser = Parser(prog="gpu-acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"gpu-acceptance {__version__}")
    verbs = parser.add_subparsers(metavar="VERB")

    run.add_verb(verbs)
    verdict.add_verb(verbs)
    report = verbs.add_parser("report", help="work with the report of a run", description="Work with the report of a run.")
    report_verbs = report.add_subparsers(metavar="VERB")
    build.add_verbs(report_verbs)
    compare.add_verbs(report_verbs)
    evidence.add_verbs(report_verbs)
    init.add_verbs(verbs)
    machine.add_verbs(verbs)
    pods.add_verbs(verbs)
    meet.add_verbs(verbs)
    remedies.add_verbs(verbs)
    explain.add_verb(verbs)
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
