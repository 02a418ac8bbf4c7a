"""Work on files that may fail on one rank while the others wait for it: then all fail, and say the same."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_MOST_TOLD = 400  # characters of what one rank says; those of 1,000 ranks go through one message of the control store
_MOST_NAMED = 4  # ranks


def together(work: Callable[[], T], share: Callable[[str], Sequence[str]]) -> T:
    """Runs `work`, and returns what it returned, once all ranks are through with theirs. Collective.

    `work` waits for no other rank. Where it raised on some: OSError on all, which says on which of them and what. `share`: gives a text to
    all ranks, and returns that of each.
    """
    done, problem = list[T](), ""
    try:
        done.append(work())
    except Exception as error:  # of whatever kind: nobody may go on alone
        problem = _told(error)
    told = [f"rank {rank}: {text}" for rank, text in enumerate(share(problem)) if text]
    if told:
        more = [f"{len(told) - _MOST_NAMED} ranks more"] if len(told) > _MOST_NAMED else []
        raise OSError("; ".join([*told[:_MOST_NAMED], *more]))
    return done[0]


def _told(problem: Exception) -> str:
    """In ASCII, of which a character is one byte."""
    return f"{type(problem).__name__}: {problem}".encode("ascii", "backslashreplace").decode()[:_MOST_TOLD]
