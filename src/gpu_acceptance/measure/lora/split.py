"""Which dialogues are trained, and which are held out: by a hash of what each says, so that every rank of every job splits alike."""

import hashlib
from collections.abc import Sequence

from gpu_acceptance.measure.lora.dialogue import Dialogue, DialogueError

_HASHES = 2**64


def split(dialogues: Sequence[Dialogue], part: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """To train, and held out: about `part` of them, in their order. Raises DialogueError where a side has no call.

    The hash is of the words up to the first answer, so that one prompt is never on both sides, however it is spaced and whichever
    functions are offered with it.
    """
    assert 0 < part < 1, part
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        sides[_hash(dialogue) < part * _HASHES].append(dialogue)
    for name, side in zip(("to train", "held out"), sides, strict=True):
        if not any(message.calls for dialogue in side for message in dialogue.messages):
            raise DialogueError(
                f"{len(dialogues):,} dialogues, {len(side):,} of them {name}, and no call in those: more dialogues are needed"
            )
    return sides


def _hash(dialogue: Dialogue) -> int:
    said = "\n".join(" ".join(f"{message.role} {message.content}".split()) for message in dialogue.messages[: dialogue.first_answer])
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8])
