"""What everything that is read back from disk or from another rank is made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpu_acceptance.text.clip import MAX_TEXT

CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Text = Annotated[str, Field(max_length=MAX_TEXT)]


class Model(BaseModel):
    """Frozen, strict, and closed: an unknown key, a NaN or a number in quotes is an error, not a guess."""

    model_config = ConfigDict(frozen=True, **CLOSED)
