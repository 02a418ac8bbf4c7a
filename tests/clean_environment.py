"""The environment of a run that a test starts."""

import os

_OF_PYTEST = ("PYTEST_", "TORCHELASTIC_", "PYTHONDONTWRITEBYTECODE")
# What its command line set, make hands on.
_OF_MAKE = ("MAKE", "MFLAGS=", "RANKS=", "REPORTS=", "ARGS=", "VENV=", "OFFLINE=", "PY=", "PLATFORM=")


# As a launcher of several nodes makes it; on one node rank 0 hands out a secret of its own where this is empty.
KEY = {"GPU_ACCEPTANCE_KEY": "a key of tests, the same for every node"}
NO_KEY = {"GPU_ACCEPTANCE_KEY": ""}


def clean_environment() -> dict[str, str]:
    """Ours, without what the outer pytest and make put there.

    The store asks DNS for each peer's name: a server that is slow must not count.

    Byte code is kept: pytest would rewrite all of its plugins anew in every rank where Python may not write it. Of plugins there are those
    that `make accept` installs, and not those of our own tests, whose import takes its part of each run.
    """
    kept = {name: value for name, value in os.environ.items() if not f"{name}=".startswith((*_OF_PYTEST, *_OF_MAKE))}
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**kept, **plugins, **KEY, "RES_OPTIONS": "timeout:1 attempts:1"}
