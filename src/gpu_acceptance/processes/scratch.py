"""Where the workers of one rank write what nobody keeps: a folder for each under TMPDIR, gone once it has ended, however it did."""

import secrets
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from gpu_acceptance.processes.janitor import remove_folder

SCRATCH = "GPU_ACCEPTANCE_SCRATCH"  # the variable that tells a worker its folder, which it makes itself


class Scratch:
    """Names that nobody else can guess. `stem` is what they begin with: the janitor looks for it when this process was killed itself."""

    def __init__(self) -> None:
        self.stem = Path(tempfile.gettempdir(), f"gpu-acceptance-{secrets.token_hex(8)}-")
        self._num_named = 0
        self._in_use: list[Path] = []

    def name_next(self) -> Path:
        """For the next worker."""
        self._num_named += 1
        self._in_use.append(Path(f"{self.stem}{self._num_named}"))
        return self._in_use[-1]

    def remove(self, within_s: float) -> None:
        """Those of workers that have ended, and of whom nothing runs any more. Waits no longer than this; the removal goes on meanwhile."""
        ended, self._in_use = self._in_use, []
        if ended:
            remover = threading.Thread(target=_remove, args=(ended,), name="scratch", daemon=True)
            remover.start()
            remover.join(within_s)


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        remove_folder(folder)
