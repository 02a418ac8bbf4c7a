"""How a process ended."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class ExitStatus:
    """By a code of its own, or by a signal: subprocess counts those below zero."""

    returncode: int
    num_oom_kills: int = 0  # by the kernel on this machine while the process was there

    @property
    def signal(self) -> int:
        """0: by none."""
        return max(-self.returncode, 0)

    def __str__(self) -> str:
        if not self.signal:
            return f"exit code {self.returncode}"
        if self.signal == signal.SIGKILL and self.num_oom_kills:
            kills = f"{self.num_oom_kills} processes of this machine for want of memory"
            return f"signal SIGKILL; since it started the kernel has killed {kills}"
        known = self.signal in set(signal.Signals)
        return f"signal {signal.Signals(self.signal).name if known else self.signal}"
