"""The time a whole run may take: what no longer fits is not begun, and the report is written before the end."""

import re
import time
from collections.abc import Mapping

RESERVE_S = 30.0  # for ending the workers and writing the report
_DURATION = re.compile(r"([0-9]{1,7})([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


class Budget:
    """Counts down from the moment it is made. `text` says where the limit comes from."""

    def __init__(self, seconds: float, text: str) -> None:
        self.text = f"out of time: {text}"
        self._ends = time.monotonic() + seconds - RESERVE_S

    @property
    def left_s(self) -> float:
        """Seconds left for validations."""
        return self._ends - time.monotonic()

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0

    def refuses(self, needed_s: float) -> str | None:
        """Why a validation that takes about `needed_s` is not begun, or None where it fits."""
        if needed_s <= self.left_s:
            return None
        return f"{self.text}; {max(self.left_s, 0):.0f} s left, it takes about {needed_s:g} s"


def read_budget(option: str | None, environ: Mapping[str, str], now: float) -> Budget | None:
    """The budget of `--budget=`, or of the Slurm job where that ends earlier; `now` is seconds since the epoch. Raises ValueError."""
    limits = [(parse_duration(option), f"--budget={option}")] if option is not None else []
    end = environ.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal():
        limits.append((int(end) - now, "the end of the Slurm job"))
    return Budget(*min(limits)) if limits else None


def parse_duration(text: str) -> float:
    """Seconds of `90`, `90s`, `30m` or `2h`; above the reserve, or nothing could run."""
    seconds = seconds_of(text)
    if seconds <= RESERVE_S:
        kept = f"{RESERVE_S:g} s are kept for the report"
        raise ValueError(f"--budget={text}: allowed: more than {RESERVE_S:g} seconds, as 90, 90s, 30m or 2h ({kept})")
    return seconds


def seconds_of(text: str) -> int:
    """Of `90`, `90s`, `30m` or `2h`; 0 for anything else."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else 0
