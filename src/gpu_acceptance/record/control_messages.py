"""How far the messages between the ranks of a run can be trusted."""

from pydantic import Field

from gpu_acceptance.base.model import Model


class DisputedRecord(Model):
    """A record that a rank told otherwise than rank 0 judged it: outcome and digest on both sides, or `nothing`."""

    rank: int
    nodeid: str
    attempt: int
    told: str
    judged: str


class ControlMessages(Model):
    """What is known of the control messages of a run, over all ranks; counts are by kind of message."""

    is_authenticated: bool  # whether each carried a code that only the run's own processes can make
    dropped: dict[str, int] = Field(default_factory=dict)  # not authentic, or repeated: what strangers wrote
    lost: dict[str, int] = Field(default_factory=dict)  # sent, and deleted or overwritten before they were read
    disputed: tuple[DisputedRecord, ...] = ()  # the first of each rank that objects
