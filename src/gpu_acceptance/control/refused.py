"""A run that may not start, said before any GPU is touched."""

USAGE, NOT_WRITABLE, INTERRUPTED, INCOMPLETE = 4, 3, 2, 6  # exit codes


def interrupted(reason: str) -> "RefusedError":
    return RefusedError(f"interrupted by {reason} before the ranks had agreed on what to run", INTERRUPTED)


class RefusedError(ValueError):
    """The run may not start, said before any GPU is touched, with the same text and exit code on every rank.

    `run_id`: of the folder in which all ranks leave that they heard it, where rank 0 knew that ranks are missing.
    """

    def __init__(self, message: str, exit_code: int = USAGE, run_id: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.run_id = run_id


class UnmetError(RefusedError):
    """What a rank says to itself where nobody can tell it: it cannot reach the others, or their leader is gone."""

    def __init__(self, message: str, *, is_cut_off: bool) -> None:
        super().__init__(message, INCOMPLETE)
        self.is_cut_off = is_cut_off
