"""Real ranks on gloo: a script of tests/measure that each of them runs, `SCRIPT RANK STORE_FILE`, and that prints one JSON object."""

import functools
import json
import os
from pathlib import Path
from typing import Any

from waiting import HANG_S
from warm import Forked, Server

ROOT = Path(__file__).parents[1]
_ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def answers_of(script: str, num_ranks: int, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return what each rank printed. `folder`: where they meet. `arguments`: more for the script."""
    path = str(ROOT / "tests" / "measure" / script)
    request = {"script": path, "cwd": str(Path.cwd()), "environment": {**os.environ, **_ENVIRONMENT}}
    said = [(folder / f"{rank}.output", folder / f"{rank}.errors") for rank in range(num_ranks)]
    ranks = [
        Forked(_server(), {**request, "arguments": [str(rank), str(folder / "store"), *arguments]}, *files)
        for rank, files in enumerate(said)
    ]
    try:
        codes = [rank.wait(timeout=HANG_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * num_ranks, "\n".join(errors.read_text() for _, errors in said)
    return [json.loads(output.read_text()) for output, _ in said]


@functools.cache
def _server() -> Server:
    """With what most scripts import, which takes longer than what many of them do."""
    return Server({**os.environ, **_ENVIRONMENT}, ("torch.distributed.fsdp", "transformers.models.qwen2", "peft"), ("-W", "error"))
