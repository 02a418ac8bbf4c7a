"""The end of a process in which threads of C++ still run: after every exit function, in place of Python's own end."""

import atexit
import ctypes
import gc
import io
import os
import sys
from typing import Any

_UNSET = 3
_LOST_OUTPUT = 120  # as Python ends where it cannot write what was said
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class ProcessExit:
    """To be made before anything else registers an exit function: the first one registered is the last to run.

    A thread of gloo, or NCCL's watchdog, may need the GIL to free the last tensor of a collective that is long over. While Python ends,
    it answers such a thread with pthread_exit, and C++ answers that with std::terminate: SIGABRT of a worker that had said goodbye
    (cpython#87135, pytorch#38228, hung threads instead since Python 3.14; 73 of 120 processes in a trial with 200 collectives in flight).

    Destructors of C and C++ do not run, nor their exit functions: a crash in one of them is not seen any more.
    """

    def __init__(self) -> None:
        self.code = _UNSET  # what a process that never came to set it ends with
        self._pid = os.getpid()
        atexit.register(self._leave)

    def belong_to_this_process(self) -> None:
        """In a fork that goes on as a process of its own."""
        self._pid = os.getpid()

    def _leave(self) -> None:
        if os.getpid() != self._pid:
            return  # a copy, which a test forked
        gc.unfreeze()  # else files that were open then are not found
        files = [one for one in gc.get_objects() if type(one) in _FILES]
        kept = [_flushed(file) for file in [*files, sys.stdout, sys.stderr]]
        libc = ctypes.CDLL(None)
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))  # of all files a thread of C may hold one for ever
        os._exit(self.code if all(kept) else self.code or _LOST_OUTPUT)


def _flushed(stream: Any) -> bool:
    """False where something was said and cannot be written."""
    try:
        stream.flush()
    except OSError:
        return False
    except BaseException:  # closed, or replaced by whatever: nothing was waiting in it
        return True
    return True
