"""How many files the process that hosts the control store may open: one for each connection, of which every rank has several.

The usual soft limit of 1,024 is used up by some 250 ranks. Those that come later are let in and dropped, and hear nothing.
"""

import contextlib
import resource

_OF_A_RANK = 8  # its supervisor has at most four connections, its worker one; twice as many where one generation follows another
_ITS_OWN = 1024  # whatever else that process has open


def let_open(pid: int, num_ranks: int) -> None:
    """Raises the soft limit of a process of this user (0: this one) as far as its hard limit goes. It is never lowered."""
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        wanted = _ITS_OWN + _OF_A_RANK * num_ranks
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and wanted > soft:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (wanted, hard))
