"""Why a run never began: the last line in the journal of a rank that found no others, or no leader. Pure."""

from typing import Literal

from gpu_acceptance.base.model import Model, Text


class Refusal(Model):
    """Nothing ran, which proves nothing."""

    kind: Literal["refusal"] = "refusal"
    message: Text
    exit_code: Literal[6] = 6  # INCOMPLETE; of what is refused with another code no journal is kept
    ended_at: str  # ISO 8601, UTC
