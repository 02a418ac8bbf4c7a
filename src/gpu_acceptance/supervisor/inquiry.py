"""What a stuck worker can still tell before it is killed: its stack, its last collectives, NCCL's view. Asked once, then polled.

Nothing here waits: the worker may be stopped, hold the GIL, or get no CPU time. A signal may disturb it: only just before a kill.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from gpu_acceptance.base.facts import process_state, signal_main_thread
from gpu_acceptance.base.text import MAX_TEXT, clip
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.record.row import MOST_COLLECTIVES, LastCollective
from gpu_acceptance.supervisor.nccl_ras import RasQuery

_COLLECTIVES = TypeAdapter(Annotated[tuple[LastCollective, ...], Field(max_length=MOST_COLLECTIVES)])
_MOST_DUMPED_BYTES = 1 << 20  # faulthandler writes at most 100 frames
LONGEST_S = 4.0  # a worker in torch.cuda.synchronize() answered within 0.5 s; one on a crowded machine needs longer
_MOST_BETWEEN_POLLS_S = 0.5  # what is longer, the supervisor did not run: then its worker may not have run either
_SIGUSR1_BIT = 1 << (signal.SIGUSR1 - 1)
_MASK = re.compile(r"^(SigPnd|ShdPnd|SigBlk):\s*([0-9a-f]+)$", re.MULTILINE)
_STOPPED = {"T": "stopped (SIGSTOP, a debugger)", "t": "stopped (a debugger)"}
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


class Inquiry:
    """Asks process `pid`, whose faulthandler writes to `stack_file` and whose listener (worker/last_collectives.py) reads `bell_fd`.

    And NCCL's RAS service at `ras_address`, where there is one.
    """

    def __init__(
        self, pid: int, stack_file: Path, collectives_file: Path, bell_fd: int, ras_address: tuple[str, int] | None = None
    ) -> None:
        self._pid = pid
        self._stack_file, self._start = stack_file, _size(stack_file)
        self._collectives_file = collectives_file
        self._native_file = stack_file.with_suffix(".native")
        self._native: subprocess.Popen[bytes] | None = None
        self._asked_native = False
        self._left_s, self._polled = LONGEST_S, time.monotonic()
        self._ras = RasQuery(ras_address, pid) if ras_address else None
        self._first_state = process_state(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(bell_fd, b"?")
        with contextlib.suppress(ProcessLookupError):
            signal_main_thread(pid, signal.SIGUSR1)  # another thread, of gloo or CUDA, has no Python stack to write

    def poll(self) -> bool:
        """Whether all has been told, or nothing more will be. To be called again until then."""
        now = time.monotonic()
        self._left_s -= min(now - self._polled, _MOST_BETWEEN_POLLS_S)
        self._polled = now
        ras_told = self._ras is None or self._ras.poll()
        if not (self._answered() and ras_told) and self._left_s > 0:
            return False
        if not self._asked_native:
            self._asked_native = True
            self._ask_native()
        return self._native is None or self._native.poll() is not None or self._left_s <= 0

    @property
    def state(self) -> tuple[Cause | None, str]:
        """Of a process that cannot run, and in words; of one that can nothing. Many are in D for a moment: it counts if it lasts.

        One that waits for a server of FUSE is in S until a signal comes, and in D from then on.
        """
        if self._first_state in _STOPPED:
            return Cause.STOPPED, _STOPPED[self._first_state]
        if self._has_told() or process_state(self._pid) != "D":
            return None, ""
        return Cause.IN_THE_KERNEL, f"in the kernel and cannot be interrupted (D){self._waits_in()}"

    def _waits_in(self) -> str:
        """The kernel's function, where this user may know it: who waits there waits for a file system, or for a driver."""
        name = _read(f"/proc/{self._pid}/wchan")
        return f", in {name}" if _SYMBOL.fullmatch(name) else ""

    @property
    def stack(self) -> str:
        """What faulthandler wrote, then what py-spy said; empty where nobody could tell."""
        native = tail(self._native_file, 0) if self._native else ""
        return clip("\n".join(filter(None, [_python_stack(self._stack_file, self._start), native])))

    @property
    def ras(self) -> str:
        """What NCCL knows of the job of this process; empty where it was not asked or did not answer."""
        return self._ras.told if self._ras else ""

    @property
    def collectives(self) -> tuple[LastCollective, ...]:
        """The last collective on each group; empty where the process has no group or could not answer."""
        try:
            return _COLLECTIVES.validate_json(self._collectives_file.read_bytes())
        except (OSError, ValueError):
            return ()

    def close(self) -> None:
        if self._ras:
            self._ras.close()
        if self._native:
            self._native.kill()
            self._native.wait()

    def _answered(self) -> bool:
        return process_state(self._pid) in {"T", "t", ""} or self._has_told()

    def _has_told(self) -> bool:
        return self._has_stack() and self._collectives_file.exists()

    def _has_stack(self) -> bool:
        """The handler runs with its signal blocked: written to the end once SIGUSR1 is neither pending nor blocked any more."""
        masks = dict(_MASK.findall(_read(f"/proc/{self._pid}/status")))
        return _size(self._stack_file) > self._start and not any(int(mask, 16) & _SIGUSR1_BIT for mask in masks.values())

    def _ask_native(self) -> None:
        """py-spy, where the extra `debug` is installed and can be started: the frames inside C code, without the help of the process."""
        command = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if command is None:
            return
        with contextlib.suppress(OSError), self._native_file.open("wb") as output:
            dump = [command, "dump", "--native", "--pid", str(self._pid)]
            self._native = subprocess.Popen(dump, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._left_s = LONGEST_S


def _python_stack(path: Path, start: int) -> str:
    """What faulthandler wrote of the main thread since `start`, innermost frame first."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(_MOST_DUMPED_BYTES).decode("utf-8", "replace")[: MAX_TEXT // 2]


def tail(path: Path, start: int) -> str:
    """The end of what a file holds from `start` on, cut to what a record takes."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - MAX_TEXT // 2))
        return clip(file.read(MAX_TEXT // 2).decode("utf-8", "replace"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
