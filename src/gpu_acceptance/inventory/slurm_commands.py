"""What Slurm's own commands print: each called without a shell, within a time limit, and told nothing by the job that it runs in.

In lines, as every version prints them: Debian 12 builds scontrol 22.05 without --json, whose form differs between versions.
"""

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why

T = TypeVar("T")

_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # where the controller is, and who asks
_OPTIONS = ("SLURM_", "SRUN_", "SCONTROL_")  # the job's own: each is an option of a command that runs in it
_TIMEOUT_S = 60.0  # a controller that is down is given up after MessageTimeout, 10 s, for each that slurm.conf names
_MOST_CHARACTERS = 64 << 20  # a node is 0.8 kB
_MOST_TOLD = 200


def ask(*command: str, environ: Mapping[str, str] = os.environ, codes: tuple[int, ...] = (0,)) -> Answer[str]:
    """What it printed, and why nothing that counts: it is not there, did not end within 60 s, or ended with another of these codes."""
    name = shlex.join(command)[:80]
    try:
        done = subprocess.run(
            command,
            env=_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return Missing(Why.NOT_THERE, f"{command[0]} is not on PATH")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Missing(Why.UNREADABLE, f"{name}: {type(error).__name__}: {error}"[:_MOST_TOLD])
    if done.returncode not in codes or len(done.stdout) > _MOST_CHARACTERS:
        said = " ".join((done.stderr or done.stdout).split())
        return Missing(Why.UNREADABLE, f"{name}: exit code {done.returncode}, {len(done.stdout)} characters: {said}"[:_MOST_TOLD])
    return done.stdout


def parsed(printed: Answer[str], parse: Callable[[str], T]) -> Answer[T]:
    """What `parse` makes of it; it raises ValueError over what is of no such form."""
    if isinstance(printed, Missing):
        return printed
    try:
        return parse(printed)
    except ValueError as error:
        return Missing(Why.UNREADABLE, f"{parse.__name__.strip('_')} of Slurm: {error}"[:_MOST_TOLD])


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Times as seconds since the epoch, whatever the time zone of the node."""
    plain = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_OPTIONS)}
    return {**plain, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
