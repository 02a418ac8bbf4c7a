"""What every measurement of a multiplication begins with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpu_acceptance.measure.gemm.availability import refuse
from gpu_acceptance.measure.gemm.dtypes import backend_flags
from gpu_acceptance.measure.gemm.operands import Multiplication
from gpu_acceptance.measure.gemm.shape import Shape


@contextmanager
def prepared(shape: Shape, dtype: str, device: torch.device) -> Iterator[Multiplication]:
    """Random operands on the device, and the backend flags of the dtype until the block ends.

    Raises a ValueError for an unknown dtype, one that the device lacks, and a shape that it cannot multiply.
    """
    refuse(dtype, device, shape)
    with backend_flags(dtype):
        yield Multiplication(shape, dtype, device)
