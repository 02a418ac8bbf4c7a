"""A planted fault: one wrong bit, put there on purpose to prove that the comparisons find it. Nothing plants one unless it is asked to."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_acceptance.measure.corruption.hashing import flat_bytes


@dataclass(frozen=True)
class Flip:
    """Inverts `bit` of `element` of output number `output`, after the kernel, on the device."""

    repetition: int | None  # None: at every one, as a GPU that is always wrong
    element: int  # index in the flattened output
    bit: int  # 0 is the least significant
    output: int = 0
    every: int | None = None  # and again after as many repetitions; None: never again

    def is_due(self, repetition: int) -> bool:
        """Whether the outputs of this repetition are spoiled."""
        if self.repetition is None:
            return True
        later = repetition - self.repetition
        return later == 0 if self.every is None else later >= 0 and later % self.every == 0

    def apply(self, repetition: int, outputs: Sequence[Tensor]) -> None:
        """Spoils the outputs of this repetition, if it is meant. ValueError where there is no such bit."""
        if not self.is_due(repetition):
            return
        self._refuse_what_is_not_there(outputs)
        tensor = outputs[self.output]
        byte = self.element * tensor.element_size() + self.bit // 8  # little endian
        flat_bytes(tensor)[byte].bitwise_xor_(1 << self.bit % 8)

    def _refuse_what_is_not_there(self, outputs: Sequence[Tensor]) -> None:
        if not 0 <= self.output < len(outputs):
            raise ValueError(f"output {self.output} to flip a bit of: the kernel has {len(outputs)}")
        tensor = outputs[self.output]
        if not 0 <= self.element < tensor.numel():
            raise ValueError(f"element {self.element} to flip a bit of: the output has {tensor.numel()}")
        if not 0 <= self.bit < 8 * tensor.element_size():
            raise ValueError(f"bit {self.bit} to flip: an element has {8 * tensor.element_size()}")
