"""Variables of debuggers and profilers in the environment. A run with one is refused: its figures say nothing about the machine."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import parse

_OFF = re.compile(r"\s*(0|off|no|none|false|disabled?)?\s*", re.IGNORECASE)
_ANYTHING = re.compile(r".*", re.DOTALL)
_MOST_SHOWN = 200  # characters of a value


class Debugging(Model):
    """An entry of debugging_variables.yaml, which describes the fields."""

    names: list[str]
    effect: str
    source: str
    values: re.Pattern[str] = _ANYTHING
    off: re.Pattern[str] = _OFF
    only_with: dict[str, re.Pattern[str]] = Field(default_factory=dict)

    def is_on(self, name: str, environ: Mapping[str, str]) -> bool:
        value = environ.get(name, "")
        works = all(values.fullmatch(environ.get(other, "")) for other, values in self.only_with.items())
        return works and not self.off.fullmatch(value) and self.values.fullmatch(value) is not None


@cache
def debugging_variables() -> list[Debugging]:
    """Return the table."""
    table = parse(Path(__file__).with_suffix(".yaml").read_bytes()).data["variables"]
    return [Debugging.model_validate(entry) for entry in table]


def find_debugging(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name each variable that is on, with its effect and how to unset it; None where no one is set."""
    found = [(name, one) for one in debugging_variables() for name in one.names if one.is_on(name, environ)]
    if not found:
        return None
    effects = "; ".join(f"{name}={environ[name][:_MOST_SHOWN]}: {one.effect}" for name, one in found)
    return f"left in the environment from debugging, and no figure under it counts: {effects}; unset {' '.join(name for name, _ in found)}"
