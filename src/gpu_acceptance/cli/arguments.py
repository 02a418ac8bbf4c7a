"""Arguments of the verbs: their types, their errors, and the exit codes."""

import argparse
import inspect
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from gpu_acceptance.base.budget import seconds_of
from gpu_acceptance.base.text import did_you_mean, one_line

Verbs: TypeAlias = "argparse._SubParsersAction[Any]"
REJECTED = 1
INTERRUPTED = 2
UNREADABLE = 3
USAGE = 4
NOTHING_RAN = 5
INCOMPLETE = 6


def fail(error: object, exit_code: int) -> int:
    """Print an error as one line on standard error, and return the exit code."""
    print(f"gpu-acceptance: {one_line(str(error))}", file=sys.stderr)
    return exit_code


def note(text: object) -> None:
    """Print a remark that changes no exit code as one line on standard error."""
    fail(text, 0)


class Parser(argparse.ArgumentParser):
    """The parser of one verb. argparse would exit with 2 (here: interrupted), accept half of an option's name, and print a page."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self.set_defaults(parser=self, verb=self._ask_for_a_verb)  # the innermost verb replaces these

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse the command line. Exits with 4 over unknown arguments; a verb that `takes_rest` gets them instead, without a `--`."""
        found, rest = self.parse_known_args(arguments)
        if "--" in rest:
            rest.remove("--")
        if rest and not hasattr(found, "takes_rest"):
            found.parser.refuse_unknown(rest[0])
        found.rest = rest
        return found

    def _ask_for_a_verb(self, _options: argparse.Namespace) -> NoReturn:
        self.error(f"name a verb; known: {', '.join(str(name) for action in self._actions for name in action.choices or ())}")

    def refuse_unknown(self, argument: str) -> NoReturn:
        """Exit with 4, naming the nearest option of this verb."""
        if not argument.startswith("-"):
            self.error(f"{argument}: one argument too many; --help shows those that there are")
        known = [name for name in self._option_string_actions if name.startswith("--")]
        self.error(f"{argument}: unknown option; known: {', '.join(known)}{did_you_mean(argument.partition('=')[0], known)}")

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {one_line(message.removeprefix('argument '))}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown verb; argparse calls this."""
        known = [str(choice) for choice in action.choices or ()]
        if known and value not in known:
            what = str(action.metavar or "value").lower()
            raise argparse.ArgumentError(None, f"unknown {what} {value!r}; known: {', '.join(known)}{did_you_mean(value, known)}")


def add_verb(verbs: Verbs, name: str, verb: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Add a verb. Its docstring is its help: the list of verbs shows the first sentence, and its own page what follows."""
    summary, _, rest = (inspect.getdoc(verb) or "").partition("\n\n")
    listed = summary[0].lower() + summary[1:].removesuffix(".")
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=listed, description=" ".join((rest or summary).split()))
    parser.set_defaults(verb=verb)
    return parser


def add_overlays(parser: argparse.ArgumentParser, what: str = "an overlay") -> None:
    """Let a verb read overlays of limits."""
    parser.add_argument("--limits", metavar="FILE", type=Path, action="append", default=[], help=f"{what}; may be given several times")


def not_allowed(text: str, allowed: str) -> argparse.ArgumentTypeError:
    """Return the error `--nodes: '0' is not allowed; allowed: 1 to 99999`."""
    return argparse.ArgumentTypeError(f"{one_line(text)!r} is not allowed; allowed: {allowed}")


def whole_number(most: int = 99_999) -> Callable[[str], int]:
    """Return an argparse type: a whole number from 1."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text) or int(text) > most:
            raise not_allowed(text, f"1 to {most}")
        return int(text)

    return read


def seconds(text: str) -> int:
    """Return the seconds of a duration, for argparse."""
    if not (found := seconds_of(text)):
        raise not_allowed(text, "more than 0 seconds, as 90, 90s, 15m or 2h")
    return found


def matching(pattern: str | re.Pattern[str], allowed: str) -> Callable[[str], str]:
    """Return an argparse type: a text of this form."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise not_allowed(text, allowed)
        return text

    return read


def existing_file(text: str) -> Path:
    """Return a file that can be opened, for argparse."""
    path = Path(text)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))  # a pipe must not block us
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(f"{text}: no such file") from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: cannot be read: {error.strerror}") from None
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a folder; allowed: a file")
    return path


def new_file(text: str) -> Path:
    """Return a path where a file may be written or replaced, for argparse."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder: {path.parent}")
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise argparse.ArgumentTypeError(f"{text}: not a regular file, so it is not replaced")
    return path


def existing_folder(text: str) -> Path:
    """Return an existing folder, for argparse."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return Path(text)
