"""A command line that pytest cannot read: one line with the nearest option in place of argparse's page.

pytest reads it after the plugins and conftests are there, and calls no hook of theirs when that fails. It runs what was added to the
config's cleanup then, while the error is on its way: that is where its text is replaced.
"""

import re
import sys
from collections.abc import Iterator

import pytest

from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.run.offered import NAMES, has_value
from gpu_acceptance.run.suite import FOLDER

_UNKNOWN = "unrecognized arguments: "  # argparse
_OF_THE_PROGRAM = {"--ranks": " of pytest: it belongs to `gpu-acceptance run`; torchrun takes --nproc-per-node=N"}
_ARGUMENT = re.compile(r"argument (?P<names>\S+): (?P<fault>.+)", re.DOTALL)


def usage_mistakes(parser: pytest.Parser) -> list[str]:
    """One line for each mistake that pytest has just found in its command line; none where there is no such error."""
    error = sys.exception()
    text = str(error) if isinstance(error, pytest.UsageError) else ""
    if not text.startswith("usage: "):
        return []
    message = text.partition(": error: ")[2].partition("\n  ")[0].strip()
    return list(_unknown(message.removeprefix(_UNKNOWN), parser)) if message.startswith(_UNKNOWN) else [_wrong(message)]


def _unknown(arguments: str, parser: pytest.Parser) -> Iterator[str]:
    for argument in arguments.split():
        name, value = argument.partition("=")[::2]
        if name.startswith("-"):
            hint = _OF_THE_PROGRAM.get(name) or did_you_mean(name, _names(parser)) or "; --help lists all"
            yield f"{argument}: unknown option{hint}" if value else f"{name}: unknown option{hint}"


def _wrong(message: str) -> str:
    """`--gpus: no value; write --gpus=VALUE`."""
    found = _ARGUMENT.fullmatch(message)
    if not found:
        return " ".join(message.split())
    name, fault = found["names"].split("/")[-1], " ".join(found["fault"].split())
    if name in NAMES:
        return f"{name}: no value; write {name}=VALUE" if has_value(name) else f"{name} takes no value"
    return f"{name}: {fault}"


def refuse_missing_paths(config: pytest.Config) -> None:
    """Raises pytest.UsageError, with a line for each file or folder of the command line that is not there."""
    if config.option.pyargs:
        return
    lines = [_missing(argument, config) for argument in config.args]
    if any(lines):
        raise pytest.UsageError(*filter(None, lines))


def _missing(argument: str, config: pytest.Config) -> str:
    """`acceptance/test_hbn.py: no such file or folder; did you mean 'acceptance/test_hbm.py'?`, and nothing where it is there."""
    name = argument.partition("::")[0]
    if (config.invocation_params.dir / name).exists():
        return ""
    folder = config.rootpath / FOLDER
    names = [FOLDER, *(f"{FOLDER}/{path.name}" for path in sorted(folder.glob("*.py")))]
    return f"{name}: no such file or folder{did_you_mean(name.rstrip('/'), names)}"


def _names(parser: pytest.Parser) -> list[str]:
    """Our options and all others; those of pytest and of other plugins are in no public place."""
    groups = [*getattr(parser, "_groups", ()), *filter(None, [getattr(parser, "_anonymous", None)])]
    return [*NAMES, *(name for group in groups for option in group.options for name in option.names())]
