"""What `make accept` runs: one torchrun, and then the verdict of its run. `accept.py VENV REPORTS RANKS [ARGUMENT...]`.

A shell in its place would be ended by SIGTERM (of `docker stop`, of a CI job that is cancelled) and leave torchrun behind, on the GPUs.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from gpu_acceptance.folder.run_files import new_run_id


def main(venv: Path, reports: Path, ranks: str, arguments: list[str]) -> None:
    run_id = new_run_id()
    launcher = [venv / "bin" / "python", "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--max-restarts=0"]
    suite = ["-m", "pytest", "acceptance/", f"--report-dir={reports}", f"--run-id={run_id}", *arguments]
    run_to_its_end([*map(str, launcher), f"--nproc-per-node={ranks}", *suite])
    if not (reports / run_id).is_dir():
        print("no run: see the error above", file=sys.stderr)
        sys.exit(4)
    program = str(venv / "bin" / "gpu-acceptance")
    sys.exit(subprocess.call([program, "verdict", str(reports / run_id)]))


def run_to_its_end(command: list[str]) -> None:
    """Whatever we are told meanwhile: its own end is what the verdict is of."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    signal.signal(signal.SIGINT, lambda *_: None)  # of a terminal, which sends it to torchrun as well
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"})
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    if told:
        process.terminate()
    process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
