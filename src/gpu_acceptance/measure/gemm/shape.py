"""The size of a matrix multiplication, and its work."""

from typing import NamedTuple


class Shape(NamedTuple):
    """M x K times K x N."""

    M: int
    N: int
    K: int

    def __str__(self) -> str:
        return f"{self.M}x{self.N}x{self.K}"


def square(size: int) -> Shape:
    return Shape(size, size, size)


def num_flops(M: int, N: int, K: int) -> int:
    """Floating-point operations of one M x K by K x N multiplication: a multiplication and an addition each."""
    return 2 * M * N * K


def tflop_per_s(shape: Shape, operation_s: float) -> float:
    return num_flops(*shape) / operation_s / 1e12
