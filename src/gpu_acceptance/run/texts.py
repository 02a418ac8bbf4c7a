"""What an option says, read from its text. Each raises pytest.UsageError over a value that is not allowed."""

import os
import time
from pathlib import Path

import pytest

from gpu_acceptance.base.budget import Budget, read_budget, seconds_of
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.folder.run_files import RUN_ID
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, LEVELS, SOAK

_MOST = 9_999  # of what is counted: more is a typing error


def not_allowed(option: str, text: str, allowed: str) -> pytest.UsageError:
    """`--gpus=0: allowed: 1 to 9999 (GPUs of each node under test)`."""
    return pytest.UsageError(f"{option}={text}: allowed: {allowed}")


def overlay_of(folder: Path, name: str) -> Path:
    """A path as the user meant it, from where pytest was started; a bare name is left for the profiles' folder."""
    not_empty("--limits", name, "a file, or the name of a shipped overlay")
    path = folder / name
    try:
        is_there = path.exists()
    except OSError as error:
        raise pytest.UsageError(f"--limits={name}: cannot be read: {error.strerror}") from None
    return path if is_there or "/" in name or name.endswith(".yaml") else Path(name)


def not_empty(option: str, text: str | None, meaning: str) -> str | None:
    if text is not None and not text.strip():
        raise not_allowed(option, text, meaning)
    return text


def waiver_of(text: str) -> tuple[str, str]:
    glob, _, reason = text.partition("=")
    if not glob.strip() or not reason.strip():
        raise not_allowed("--waive", text, "METRIC-GLOB=reason, as in --waive='hbm.read.*=agreed with the vendor on 2026-11-20'")
    return glob.strip(), reason.strip()


def count_of(option: str, text: str | None, meaning: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) and int(text) >= 1):
        raise not_allowed(option, text, f"1 to {_MOST} ({meaning})")
    return int(text)


def level_of(text: str | None, soak: str | None) -> str:
    """Refused before anything is collected: a profile may have fewer, and never more."""
    if soak is not None and text not in {None, SOAK}:
        raise pytest.UsageError(f"--soak={soak} --level={text}: --soak is level {SOAK}; leave one of them out")
    if text is None:
        return DEFAULT_LEVEL if soak is None else SOAK
    if text not in LEVELS:
        raise not_allowed("--level", text, f"{', '.join(LEVELS)}{did_you_mean(text, LEVELS)}")
    return text


def seconds_of_option(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (seconds := seconds_of(text)):
        raise not_allowed(option, text, "more than 0 seconds, as 90, 90s, 15m or 2h")
    return seconds


def budget_of(text: str | None) -> Budget | None:
    try:
        return read_budget(text, os.environ, time.time())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def run_id_of(text: str | None) -> str | None:
    if text is not None and not RUN_ID.fullmatch(text):
        raise not_allowed("--run-id", text, "1 to 100 letters, digits, '.', '_' and '-', of which the first is a letter or digit")
    return text
