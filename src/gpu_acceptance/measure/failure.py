"""A job under torchrun in which the last rank dies: time until its launcher has ended, the rank it names, and processes left.

All processes of the job carry a mark in their environment. By it they are found anywhere on the host, and killed where they do not end.
"""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

EXIT_CODE = 41
WAYS = {"exit": EXIT_CODE, "kill": -signal.SIGKILL}  # to die -> the exit code that a launcher sees
START_S = 60.0  # until all ranks have met: importing torch, opening GPUs, connecting
END_S = 40.0  # after the death: torchrun sends SIGKILL 30 s after SIGTERM
_KILL_S = 10.0
_LINGERS_S = 1.0  # a process that is just ending does not count as left
_POLL_S = 0.02
_MOST_SHOWN = 300  # characters
_TAIL_BYTES = 1 << 16
_MARK = "GPU_ACCEPTANCE_JOB"
_RANK = "gpu_acceptance.measure.failure_rank"
# Variables that torchrun sets for a rank, which the new job must not inherit. A user's settings of NCCL stay.
_PREFIXES = ("TORCHELASTIC_", "PET_", "GPU_ACCEPTANCE_", "TORCH_NCCL_", "GROUP_", "ROLE_", "MASTER_")
_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NCCL_ASYNC_ERROR_HANDLING"}
_BLOCKING = {"CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG"}  # a rank would wait within a call, where it cannot handle a signal
_ERROR = re.compile(r"(\[rank\d+\]: )?\S*(Error|python[\d.]*): .")
_ROOT_CAUSE = re.compile(r"Root Cause.*?\brank\s*:\s*(\d+) .*?\bexitcode\s*:\s*(-?\d+)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """One host of the job; the launcher of node 0 listens at `address` and `port`."""

    node: int
    num_nodes: int
    num_ranks: int  # on this host
    address: str
    port: int


@dataclass(frozen=True)
class Ended:
    """The end of the job on this host."""

    end_s: float | None  # from the death until the launcher had ended; None: no rank died
    num_left: int  # processes of the job once its launcher has ended, or was killed
    blamed: str  # by the launcher: `rank 7, exit code 41`; empty where it names none
    problem: str  # the reason why there is no time, or no valid one; empty where the launcher ended by itself


def blame(rank: int, way: str) -> str:
    """Return the text by which a launcher must name this rank."""
    return f"rank {rank}, exit code {WAYS[way]}"


@contextlib.contextmanager
def held_port(family: socket.AddressFamily = socket.AF_INET) -> Iterator[int]:
    """Hold a TCP port on all addresses of this host for a launcher alone, until the job has ended.

    A port that is free at one address may not be free at all, where torchrun listens: closed connections linger for a minute. Linux lets
    torchrun listen beside a socket that does not, since both set SO_REUSEADDR, and gives the port to no other process.
    """
    with socket.socket(family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


def measure(way: str, place: Place, folder: Path, *, devices: str = "", end_s: float = END_S) -> Ended:
    """Run this host's part of the job. Every host of it calls this, in a process that is a child subreaper.

    `folder`: an empty one for files of the job.
    `devices`: the GPUs, as CUDA_VISIBLE_DEVICES names them; empty where there are none, and gloo takes the place of NCCL.
    A launcher that has not ended `end_s` after the death is killed, with all processes that it started.
    """
    mark = secrets.token_hex(16)
    environment = {**_environment(os.environ, place, devices), _MARK: mark}
    with contextlib.ExitStack() as at_end:
        with (folder / "output").open("wb") as output:
            launcher = subprocess.Popen(
                _command(way, "nccl" if devices else "gloo", place, folder),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        at_end.callback(launcher.wait)
        at_end.callback(_kill_all, mark)
        death_s = _death(folder, place.num_ranks, launcher)
        if death_s is None:
            return Ended(None, 0, "", f"not all ranks met within {START_S:g} s, or the job ended before: {_error(_tail(folder))}")
        has_ended = True
        try:
            launcher.wait(max(0.0, death_s + end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            has_ended = False
        taken_s = time.monotonic() - death_s
        found = _ROOT_CAUSE.search(_tail(folder))
        return Ended(
            end_s=taken_s,
            num_left=_num_left(mark, _LINGERS_S if has_ended else 0),
            blamed=f"rank {found[1]}, exit code {found[2]}" if found else "",
            problem="" if has_ended else "the launcher had not ended by then, and was killed",
        )


def _command(way: str, backend: str, place: Place, folder: Path) -> list[str]:
    meeting = [f"--nnodes={place.num_nodes}", f"--node-rank={place.node}", f"--nproc-per-node={place.num_ranks}"]
    meeting += [f"--master-addr={place.address}", f"--master-port={place.port}", "--max-restarts=0"]
    return [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", _RANK, way, backend, str(folder)]


def _environment(base: Mapping[str, str], place: Place, devices: str) -> dict[str, str]:
    kept = {name: value for name, value in base.items() if name not in _NAMES | _BLOCKING and not name.startswith(_PREFIXES)}
    own = {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
    own["NCCL_RAS_ENABLE"] = "0"  # it has one port on a host, which is that of the outer job
    # A rank that dies while peers read its memory over NVLink was reported to leave GPUs that need a reset: no NVLink here.
    own |= {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    own["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # torchrun's 1 lets torch's watchdog end a rank; here the rank decides (failure_rank.py)
    own["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"  # this failure is intended
    inside = {"GLOO_SOCKET_IFNAME": "lo"} if place.num_nodes == 1 else {}
    return {"OMP_NUM_THREADS": "1", **kept, **own, **inside}


def _death(folder: Path, num_ranks: int, launcher: subprocess.Popen[bytes]) -> float | None:
    """Return when the rank dies, by all ranks of this host; None where not all of them met."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        has_ended = launcher.poll() is not None
        notes = [path.read_text(encoding="ascii") for path in folder.glob("rank-*") if path.suffix != ".part"]
        if len(notes) == num_ranks:
            return max(map(float, notes))
        if has_ended:
            break
        time.sleep(_POLL_S)
    return None


def _tail(folder: Path) -> str:
    """Return the end of the output of launcher and ranks."""
    return (folder / "output").read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")


def _error(output: str) -> str:
    """Return the first line that names an error, else the last one; the launcher's own output comes after that of ranks."""
    lines = output.splitlines() or ["it printed nothing"]
    return next(filter(_ERROR.match, lines), lines[-1])[:_MOST_SHOWN]


def _num_left(mark: str, patience_s: float) -> int:
    end = time.monotonic() + patience_s
    while (found := _marked(mark)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return len(found)


def _marked(mark: str) -> list[int]:
    """Return the living processes that have the mark; a zombie has no environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _kill_all(mark: str) -> None:
    """Kill all processes that have the mark. Wait for those whose parents are gone, which are then children of this process."""
    killed: set[int] = set()
    end = time.monotonic() + _KILL_S
    while (found := _marked(mark)) and time.monotonic() < end:
        killed |= set(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    for pid in killed:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
