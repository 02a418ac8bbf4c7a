"""How a process ended."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class ExitStatus:
    """By a code of its own, or by a signal: subprocess counts those below zero."""

    returncode: int | None  # None: something else has asked for it, and the kernel tells it once
    num_oom_kills: int = 0  # by the kernel on this machine while the process was there

    @property
    def signal(self) -> int:
        """0: by none."""
        return max(-(self.returncode or 0), 0)

    @property
    def is_want_of_memory(self) -> bool:
        return self.signal == signal.SIGKILL and self.num_oom_kills > 0

    def __str__(self) -> str:
        if self.returncode is None:
            return "unknown exit"
        if not self.signal:
            return f"exit code {self.returncode}"
        if self.is_want_of_memory:
            kills = f"{self.num_oom_kills} processes of this machine for want of memory"
            return f"signal SIGKILL; since it started the kernel has killed {kills}"
        known = self.signal in set(signal.Signals)
        return f"signal {signal.Signals(self.signal).name if known else self.signal}"
