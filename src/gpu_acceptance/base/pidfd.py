"""Descriptors of processes (pidfd_open(2)), also in a Python that has no such functions.

Stand-alone builds of Python are made with headers older than Linux 5.3, and lack them on any kernel. Standard library only: the processes
that clean up import it.
"""

import os
import signal

_SEND_SIGNAL, _OPEN = 424, 434  # asm-generic/unistd.h; the same on x86-64 and on 64-bit Arm


def pidfd_open(pid: int) -> int:
    """Return a descriptor that can be read once the process has ended. Raises OSError."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _syscall(_OPEN, pid, 0)


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process of a descriptor, and to no other that has its pid by now. Raises OSError."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        _syscall(_SEND_SIGNAL, pidfd, number, None, 0)


def _syscall(number: int, *arguments: int | None) -> int:
    import ctypes  # here: few Pythons need it

    libc = ctypes.CDLL(None, use_errno=True)
    if (result := int(libc.syscall(number, *arguments))) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def find_unusable() -> str | None:
    """Why this machine has no such descriptors, on which each rank and what cleans up after it depend; None where it has."""
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        seen = f"this kernel ({os.uname().release}) or its container gives no descriptor of a process (pidfd_open: {error.strerror})"
        return f"{seen}; needed: Linux 5.3"
    return None
