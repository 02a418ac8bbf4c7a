"""What every verb says of trouble."""

import sys

from gpu_acceptance.base.text import one_line

INTERRUPTED = 2
UNREADABLE = 3


def fail(error: object, exit_code: int) -> int:
    """Tells it on standard error, in one line; returns the exit code."""
    print(f"gpu-acceptance: {one_line(str(error))}", file=sys.stderr)
    return exit_code
