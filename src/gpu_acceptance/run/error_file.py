"""The verdict in torchrun's own words: torchrun flattens every exit code to 1, but prints this file of each rank that failed.

What it prints last is of the rank whose file has the earliest time (ChildFailedError.format_msg of torch.distributed.elastic).
"""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_acceptance.report.ending import MOST_ROWS

_LATER_S = 60  # than any time in the file of the rank that has more to say


def write_error_file(verdict: str, lines: Sequence[str] = ()) -> None:
    """Writes $TORCHELASTIC_ERROR_FILE where torchrun asked for one; a torchrun that is gone took its folder along.

    `lines`: the last screen, of the rank that shows it; torchrun then prints them last. The other ranks leave the verdict alone.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    above = [""] * (MOST_ROWS + 1 - len(lines))  # so that what torchrun says of the rank is out of sight
    rows = [*above, *lines] if lines else [verdict]
    extra = {"py_callstack": "\n".join(rows), "timestamp": str(int(time.time()) + (0 if lines else _LATER_S))}
    with contextlib.suppress(OSError):
        Path(path).write_text(json.dumps({"message": {"message": verdict, "extraInfo": extra}}), encoding="utf-8")
