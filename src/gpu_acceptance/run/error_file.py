"""The verdict in torchrun's own words: torchrun flattens every exit code to 1, but prints this file of the rank that failed first."""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path


def write_error_file(verdict: str, lines: Sequence[str]) -> None:
    """Writes $TORCHELASTIC_ERROR_FILE where torchrun asked for one; a torchrun that is gone took its folder along."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    text = "\n".join([verdict, *[line for line in lines if line != verdict]])
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError):
        Path(path).write_text(json.dumps({"message": {"message": verdict, "extraInfo": extra}}), encoding="utf-8")
