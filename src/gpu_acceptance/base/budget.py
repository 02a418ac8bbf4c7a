"""The time that a whole run may take. A validation that no longer fits is not started, and the report is written before the end."""

import re
import time
from collections.abc import Mapping

RESERVE_S = 30.0  # for ending the workers and writing the report
_DURATION = re.compile(r"([0-9]{1,7})([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


class Budget:
    """Counts down from its creation. `text` names the source of the limit."""

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

    def refuses(self, needed_s: float, what: str = "it") -> str | None:
        """Return why what takes about `needed_s` is not started, or None if it fits."""
        left_s = self.left_s
        return None if needed_s <= left_s else f"{self.text}; {max(left_s, 0):.0f} s left, {what} takes about {needed_s:.0f} s"


def read_budget(option: str | None, environ: Mapping[str, str], now: float) -> Budget | None:
    """Return the budget of `--budget=`, or of the Slurm job if that ends earlier; `now` is seconds since the epoch. Raises ValueError."""
    limits: list[tuple[float, str]] = []
    if option is not None:
        if (seconds := seconds_of(option)) <= RESERVE_S:
            allowed = f"more than {RESERVE_S:g} seconds, as 90, 90s, 30m or 2h ({RESERVE_S:g} s are kept for the report)"
            raise ValueError(f"--budget={option}: allowed: {allowed}")
        limits.append((seconds, f"--budget={option}"))
    end = environ.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal():
        limits.append((int(end) - now, "the end of the Slurm job"))
    return Budget(*min(limits)) if limits else None


def seconds_of(text: str) -> int:
    """Return the seconds of `90`, `90s`, `30m` or `2h`; 0 for any other text."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else 0
