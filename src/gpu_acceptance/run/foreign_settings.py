"""Settings of pytest and of its plugins that no acceptance run may have, wherever they were set: an option, a variable or an ini value.

Read as the plugin itself reads them: the first place that has a value counts. A plugin that is not loaded reads nothing.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

_OFF = ("", "0", "0.0", "no", "false", "none", "[]")


@dataclass(frozen=True)
class Setting:
    """One setting. `flag`, `variable` and `ini` are its names in the three places, empty where it has none."""

    option: str  # its name in config.option, which is there where its plugin is loaded
    flag: str
    why: str  # what it would do, and what to do instead
    variable: str = ""
    ini: str = ""
    off: tuple[str, ...] = ()  # more values with which it does nothing
    is_of_several: bool = False  # harmless in a world of one


_TIMEOUT = "pytest-timeout would end one rank alone: leave out {}; use the deadline marker or deadline_s of the profile"
_RERUN = "{} would run a validation until it passes: leave it out; repeats are announced and recorded by the suite itself"
_REPEAT = "{} would multiply the validations, and no worker knows the copies: leave it out; --confirm=N measures a missed limit again"
_SHARE = "{} would share out an acceptance run, in which every rank runs every validation: leave it out"
_XDIST = "pytest-xdist may not share out an acceptance run, every rank runs every validation: leave out -n and --dist"
SETTINGS = (
    Setting("numprocesses", "-n", _XDIST),
    Setting("dist", "--dist", _XDIST),
    Setting("looponfail", "--looponfail", _XDIST),
    Setting("workers", "--workers", _SHARE, ini="workers"),  # pytest-parallel
    Setting("tests_per_worker", "--tests-per-worker", _SHARE, ini="tests_per_worker"),
    Setting("parallel_threads", "--parallel-threads", _SHARE, off=("1",)),  # pytest-run-parallel
    Setting("iterations", "--iterations", _REPEAT, off=("1",)),
    Setting("forever", "--forever", _REPEAT),
    Setting("forked", "--forked", "{} would run validations in processes of its own: leave it out; each has a worker already"),
    Setting("count", "--count", _REPEAT, off=("1",)),  # pytest-repeat
    Setting("hours", "--hours", _REPEAT),  # pytest-stress
    Setting("minutes", "--minutes", _REPEAT),
    Setting("seconds", "--seconds", _REPEAT),
    Setting("leaks", "-R", _REPEAT),  # pytest-leaks
    Setting("flake_finder_enable", "--flake-finder", _REPEAT),
    Setting("reruns", "--reruns", _RERUN, ini="reruns"),  # pytest-rerunfailures
    Setting("force_reruns", "--force-reruns", _RERUN),
    Setting("max_suite_reruns", "--max-suite-reruns", _RERUN),
    Setting("retries", "--retries", _RERUN, ini="retries"),  # pytest-retry
    Setting("force_flaky", "--force-flaky", _RERUN),
    Setting("timeout", "--timeout", _TIMEOUT, variable="PYTEST_TIMEOUT", ini="timeout", is_of_several=True),
    Setting("session_timeout", "--session-timeout", _TIMEOUT, ini="session_timeout", is_of_several=True),
)
_EXIT_ON_TIMEOUT = ("faulthandler_exit_on_timeout", "faulthandler_timeout")  # of pytest itself, from 9.0 on


def forbidden_settings(config: pytest.Config, world_size: int, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """One sentence for each setting that is on."""
    for setting in SETTINGS:
        place = _where_set(setting, config, environ)
        if place and not (setting.is_of_several and world_size == 1):
            yield setting.why.format(place)
    if world_size > 1 and all(_is_on(_ini(config, name)) for name in _EXIT_ON_TIMEOUT):
        yield f"{_EXIT_ON_TIMEOUT[0]} would end one rank alone: leave it out; use the deadline marker or deadline_s of the profile"


def _where_set(setting: Setting, config: pytest.Config, environ: Mapping[str, str]) -> str:
    """`--timeout`, `PYTEST_TIMEOUT=5 of the environment`, `the ini value timeout=40`; empty where the setting is off."""
    if not hasattr(config.option, setting.option):
        return ""
    ini = _ini(config, setting.ini) if setting.ini else None
    places = (
        (getattr(config.option, setting.option), setting.flag),
        (environ.get(setting.variable), f"{setting.variable}={environ.get(setting.variable)} of the environment"),
        (ini, f"the ini value {setting.ini}={ini} (or -o)"),
    )
    value, place = next(((value, place) for value, place in places if value not in {None, ""}), (None, ""))
    return place if _is_on(value) and str(value) not in setting.off else ""


def _is_on(value: object) -> bool:
    return str(value).strip().lower() not in _OFF


def _ini(config: pytest.Config, name: str) -> object:
    try:
        return config.getini(name)
    except (KeyError, ValueError):
        return None  # no plugin that is loaded has it
