"""all_reduce_perf of nccl-tests, where it is installed: what the vendor's own tool reads on the same GPUs, minutes from our figure.

It runs as one process with a thread for each GPU, and with the NCCL library that torch brings, so that both read the same software.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

PROGRAM = "all_reduce_perf"
_TIMEOUT_S = 120.0
_MOST_TOLD = 200  # characters of what it printed
# size, count, type, redop, root; time, algbw, busbw, #wrong out of place; the same in place
_ROW = re.compile(r"\s*(?P<bytes>\d+)\s+\d+\s+float\s+sum\s+-1(?:\s+\S+){4}\s+\S+\s+\S+\s+(?P<busbw>\d+(?:\.\d+)?)\s+\S+\s*", re.ASCII)


class NativeError(Exception):
    """The program is there, and gave no figure."""


def ask(num_bytes: int, num_gpus: int, num_nodes: int) -> float | str:
    """GB/s of bus bandwidth in place, as `nccl.measure` works, or why there is none. One rank calls it, while the others rest."""
    if num_nodes > 1 or num_gpus < 2:
        return f"{PROGRAM} is asked on one node of 2 GPUs or more, not on {num_nodes} of {num_gpus} GPUs"
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not on PATH"
    try:
        return busbw_gb_per_s(num_bytes, num_gpus)
    except NativeError as error:
        return str(error)


def busbw_gb_per_s(num_bytes: int, num_gpus: int) -> float:
    """Of one run of the program. Raises NativeError."""
    size = str(num_bytes)
    command = [PROGRAM, "--minbytes", size, "--maxbytes", size, "--ngpus", str(num_gpus), "--iters", "20", "--warmup_iters", "5"]
    try:
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"{PROGRAM}: {type(error).__name__}: {error}"[:_MOST_TOLD]) from None
    if done.returncode:
        raise NativeError(f"{PROGRAM}: exit code {done.returncode}: {done.stderr[-_MOST_TOLD:].strip()}")
    return in_place(done.stdout, num_bytes)


def in_place(text: str, num_bytes: int) -> float:
    """The figure of this size in what the program printed. Raises NativeError."""
    rows = [match for match in map(_ROW.fullmatch, text.splitlines()) if match]
    found = [float(row["busbw"]) for row in rows if int(row["bytes"]) == num_bytes]
    if len(found) != 1:
        raise NativeError(f"{PROGRAM}: {len(found)} rows of {num_bytes} bytes, not 1")
    return found[0]


def _environment() -> dict[str, str]:
    """This process's own, with torch's NCCL before any other."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    folders = [str(Path(place) / "lib") for place in spec.submodule_search_locations or ()] if spec else []
    paths = [*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, **({"LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else {})}
