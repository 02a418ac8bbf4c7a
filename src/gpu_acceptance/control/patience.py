"""How long the ranks of a job are waited for."""

from collections.abc import Callable
from dataclasses import dataclass

JOIN_S = 60.0  # for all ranks to say hello, unless --join-timeout says more: nodes of one job start within seconds of each other


@dataclass(frozen=True)
class Patience:
    """How long ranks that are there wait for those that are not, and who tells people meanwhile."""

    join_s: float = JOIN_S
    say: Callable[[str], None] = lambda line: None
