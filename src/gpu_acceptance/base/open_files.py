"""How many files a process may open that others connect to; one that hosts the control store has several connections of every rank.

The usual soft limit of 1,024 is used up by some 250 ranks. Those that come later are let in and dropped, and hear nothing.
"""

import contextlib
import resource

_OF_A_RANK = 8  # its supervisor has five connections, its worker one; two workers where one generation follows another
_ITS_OWN = 1024  # whatever else a launcher has open


def num_files_of_store(num_ranks: int) -> int:
    """Open files of the process that hosts the control store of so many ranks."""
    return _ITS_OWN + _OF_A_RANK * num_ranks


def let_open(pid: int, num_files: int) -> None:
    """Raises the soft limit of a process of this user (0: this one) as far as its hard limit goes. It is never lowered."""
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        if soft != resource.RLIM_INFINITY and wanted > soft:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (wanted, hard))
