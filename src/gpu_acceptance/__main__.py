"""`python -m gpu_acceptance` is `gpu-acceptance`."""

import os
import signal
import sys

_INTERRUPTED = 2


def main() -> int:
    """Run one verb; returns its exit code. Ctrl-C is answered from the start: the imports take a second."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from gpu_acceptance.cli.verbs import main as run_verb

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_verb()


if __name__ == "__main__":
    sys.exit(main())
