"""What everything that is read back from disk or from another rank is made of."""

from pydantic import BaseModel, ConfigDict

CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Model(BaseModel):
    """Frozen, strict, and closed: an unknown key, a NaN or a number in quotes is an error, not a guess."""

    model_config = ConfigDict(frozen=True, **CLOSED)
