"""Real ranks on gloo: a script of tests/measure that each of them runs, `SCRIPT RANK STORE_FILE`, and that prints one JSON object."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def answers_of(script: str, num_ranks: int, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What each rank printed. `folder`: where they meet. `arguments`: more for the script."""
    command = [sys.executable, "-W", "error", str(ROOT / "tests" / "measure" / script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([*command, str(rank), str(folder / "store"), *arguments], env=environment, **pipes) for rank in range(num_ranks)
    ]
    try:
        outputs = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()  # so that no pipe stays open where one of them took too long
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, "\n".join(errors for _, errors in outputs)
    return [json.loads(lines) for lines, _ in outputs]
