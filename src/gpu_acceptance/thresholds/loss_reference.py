"""The curve of a sound run, as a profile names it: one loss for each step, in nats, with a blank between them. Pure."""

import math
import re

NO_REFERENCE = "none"
_NUMBER = re.compile(r"\d+(\.\d+)?")


def reference_of(words: str, num_steps: int) -> list[float]:
    """Its losses; empty where there is none. Raises ValueError where they are no losses, or not of so many steps."""
    if words == NO_REFERENCE:
        return []
    losses = [float(word) if _NUMBER.fullmatch(word) else math.nan for word in words.split()]
    if len(losses) != num_steps or not all(map(math.isfinite, losses)):
        found = f"{len(losses)} words, {sum(map(math.isnan, losses))} of them no numbers"
        raise ValueError(f"{found}; wants {NO_REFERENCE!r}, or one loss for each of {num_steps} steps")
    return losses
