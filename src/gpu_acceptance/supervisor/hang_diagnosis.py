"""Diagnosis of a stuck worker before it is killed: its stacks, its state in the kernel, and NCCL's RAS service."""

import contextlib
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AliasPath, BaseModel, Field, NonNegativeInt, TypeAdapter, ValidationError

from gpu_acceptance.base.process import process_state, signal_main_thread
from gpu_acceptance.base.text import MAX_TEXT, clip, named, one_line
from gpu_acceptance.record.outcome import Cause
from gpu_acceptance.record.row import MOST_COLLECTIVES, LastCollective

_DEFAULT = "localhost:28028"
_QUESTION = b"CLIENT PROTOCOL 2\nTIMEOUT 2\nSET FORMAT json\nVERBOSE STATUS\n"  # it waits so many seconds for the other processes
_CONNECT_S = 0.2  # to this host
_LOCALHOST = ("127.0.0.1", "::1")
_MOST_BYTES = 1 << 20  # some 500 bytes a rank; to read this may take a second, in which the supervisor does nothing else
_MOST_COMMUNICATORS = 4
# NCCL 2.28.9 leaves the comma out where a rank is missing. The pattern never backtracks: a stranger may send only blanks.
_NO_COMMA = re.compile(rb'(?<=[\w"\]}])(?=[^\S\n]*\n\s*+"\w++":)')
_COLLECTIVES = TypeAdapter(Annotated[tuple[LastCollective, ...], Field(max_length=MOST_COLLECTIVES)])
_MOST_DUMPED_BYTES = 1 << 20  # faulthandler writes at most 100 frames
LONGEST_S = 4.0  # a worker in torch.cuda.synchronize() answered within 0.5 s; one on a crowded machine needs longer
_MOST_BETWEEN_POLLS_S = 0.5  # after a longer pause the supervisor itself did not run, and perhaps neither did its worker
_SIGUSR1_BIT = 1 << (signal.SIGUSR1 - 1)
_MASK = re.compile(r"^(SigPnd|ShdPnd|SigBlk):\s*([0-9a-f]+)$", re.MULTILINE)
_STOPPED = {"T": "stopped (SIGSTOP, a debugger)", "t": "stopped (a debugger)"}
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)


class _Missing(BaseModel):
    rank: NonNegativeInt


class _Rank(_Missing):
    pid: int
    async_error: int = Field(0, validation_alias=AliasPath("status", "async_error"))
    collective_counts: dict[str, int] = {}


class _Communicator(BaseModel):
    size: int
    ranks: list[_Rank]
    missing_ranks: list[_Missing] = []


class _Answer(BaseModel):
    communicators: list[_Communicator]


def ras_address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address of the service; None where a host name would have to be looked up, which can take long."""
    host, _, port = environment.get("NCCL_RAS_ADDR", _DEFAULT).rpartition(":")
    host = host.strip("[]")
    try:
        is_known = host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        is_known = False
    return (host, int(port)) if is_known and port.isascii() and port.isdigit() and 0 < int(port) < 65536 else None


class RasQuery:
    """One question about the job of process `pid`. Waits only for the connection to this host. Poll it, then close it."""

    def __init__(self, address: tuple[str, int], pid: int) -> None:
        self._pid = pid
        self._answer = b""
        self._socket: socket.socket | None = None
        host, port = address
        for one in _LOCALHOST if host == "localhost" else (host,):  # a name could be a question to a name server
            if self._socket is None:
                with contextlib.suppress(OSError):
                    self._socket = socket.create_connection((one, port), timeout=_CONNECT_S)
        with contextlib.suppress(OSError):
            if self._socket:
                self._socket.sendall(_QUESTION)
                self._socket.setblocking(False)

    def poll(self) -> bool:
        """Return True once the answer is complete, or none will come."""
        try:
            while self._socket and len(self._answer) <= _MOST_BYTES:
                part = self._socket.recv(1 << 16)
                if not part:
                    self.close()
                self._answer += part
        except BlockingIOError:
            return False
        except OSError:
            self.close()
        return True

    @property
    def text(self) -> str:
        """Text about the communicators of `pid`: the service may be that of another job. Empty where it says nothing about them."""
        return describe(self._answer, self._pid)

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None


def describe(answer: bytes, pid: int) -> str:
    """Return `8 ranks: AllReduce 4 on ranks 0-2,4-7, 3 on rank 3` per communicator of process `pid`; empty for an unreadable answer."""
    try:
        parsed = _Answer.model_validate(json.loads(_NO_COMMA.sub(b",", answer[answer.index(b"{") :])))
    except (ValueError, ValidationError, RecursionError):
        return ""
    own = [one for one in parsed.communicators if any(rank.pid == pid for rank in one.ranks)]
    return clip("\n".join(f"{one.size} ranks: {'; '.join(_facts(one)) or 'no collectives'}" for one in own[:_MOST_COMMUNICATORS]))


def _facts(communicator: _Communicator) -> Iterator[str]:
    """Yield silent ranks, errors, and the collectives whose counts differ between ranks; else the counts that all ranks have."""
    if communicator.missing_ranks:
        yield f"no answer from {named('rank', (one.rank for one in communicator.missing_ranks))}"
    for rank in communicator.ranks:
        if rank.async_error:
            yield f"NCCL error {rank.async_error} on rank {rank.rank}"
    launched: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in communicator.ranks:
        for operation, count in rank.collective_counts.items():
            launched[operation][count].append(rank.rank)
    differ = {operation: counts for operation, counts in launched.items() if len(counts) > 1}
    for operation, counts in differ.items():
        most_first = sorted(counts.items(), key=lambda item: -len(item[1]))
        by_count = ", ".join(f"{count} on {named('rank', ranks)}" for count, ranks in most_first)
        yield f"{one_line(operation)} {by_count}"
    same = [f"{one_line(operation)} {next(iter(counts))}" for operation, counts in launched.items() if any(counts)]
    if same and not differ:
        yield f"all have launched the same ({', '.join(same)})"


class HangDiagnosis:
    """Asks process `pid`, whose faulthandler writes to `stack_file` and whose listener (worker/group.py) reads `bell_fd`.

    It also asks NCCL's RAS service at `ras_address`, where there is one.
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
            signal_main_thread(pid, signal.SIGUSR1)  # other threads, of gloo or CUDA, have no Python stack to write

    def poll(self) -> bool:
        """Return True once all answers are there, or no more will come. Call it again until then."""
        now = time.monotonic()
        self._left_s -= min(now - self._polled, _MOST_BETWEEN_POLLS_S)
        self._polled = now
        has_ras = self._ras is None or self._ras.poll()
        has_answered = process_state(self._pid) in {"T", "t", ""} or self._has_dumped()
        if not (has_answered and has_ras) and self._left_s > 0:
            return False
        if not self._asked_native:
            self._asked_native = True
            self._ask_native()
        return self._native is None or self._native.poll() is not None or self._left_s <= 0

    @property
    def state(self) -> tuple[Cause | None, str]:
        """Cause and text for a process that cannot run, else nothing. State D counts if it lasts: many processes have it for a moment.

        A process that waits for a FUSE server is in S until a signal comes, and in D from then on.
        """
        if self._first_state in _STOPPED:
            return Cause.STOPPED, _STOPPED[self._first_state]
        if self._has_dumped() or process_state(self._pid) != "D":
            return None, ""
        function = _read(f"/proc/{self._pid}/wchan")  # of a file system or a driver, where this user may know it
        place = f", in {function}" if _SYMBOL.fullmatch(function) else ""
        return Cause.IN_THE_KERNEL, f"in the kernel and cannot be interrupted (D){place}"

    @property
    def stack(self) -> str:
        """Stack by faulthandler, innermost frame first, then by py-spy; empty where neither could tell."""
        python = ""
        if self._stack_file.exists():
            with self._stack_file.open("rb") as file:
                file.seek(self._start)
                python = file.read(_MOST_DUMPED_BYTES).decode("utf-8", "replace")[: MAX_TEXT // 2]
        native = tail(self._native_file, 0) if self._native else ""
        return clip("\n".join(filter(None, [python, native])))

    @property
    def ras(self) -> str:
        """NCCL's answer about the job of this process; empty where it was not asked or did not answer."""
        return self._ras.text if self._ras else ""

    @property
    def collectives(self) -> tuple[LastCollective, ...]:
        """Last collective on each group; empty where the process has no group or could not answer."""
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

    def _has_dumped(self) -> bool:
        """Return True once stack and collectives are written. The handler of SIGUSR1 runs with that signal blocked."""
        if _size(self._stack_file) <= self._start or not self._collectives_file.exists():
            return False
        masks = dict(_MASK.findall(_read(f"/proc/{self._pid}/status")))
        return not any(int(mask, 16) & _SIGUSR1_BIT for mask in masks.values())

    def _ask_native(self) -> None:
        """Start py-spy, where the extra `debug` is installed: it finds frames inside C code without the help of the process."""
        command = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        if command is None:
            return
        with contextlib.suppress(OSError), self._native_file.open("wb") as output:
            dump = [command, "dump", "--native", "--pid", str(self._pid)]
            self._native = subprocess.Popen(dump, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._left_s = LONGEST_S


def tail(path: Path, start: int) -> str:
    """Return the end of a file's content from `start` on, cut to what a record takes."""
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
