"""The known name that is nearest to an unknown one, for every message about a name that nobody knows."""

import difflib
from collections.abc import Iterable

_MOST = 100  # characters that are compared
_LEAST = 3  # with which a longer name must begin


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'quick'?`, and nothing where no known name is near. One that begins so is nearest; capitals do not count."""
    by_folded = {one.casefold(): one for one in known}
    folded = str(name)[:_MOST].casefold()
    longer = [one for one in by_folded if len(folded) >= _LEAST and one.startswith(folded)]
    close = sorted(longer, key=len)[:1] or difflib.get_close_matches(folded, list(by_folded), n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""
