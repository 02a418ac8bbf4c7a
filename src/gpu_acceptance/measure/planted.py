"""Faults that a drill plants around a whole validation, in the process of one rank or of all: results that are spoiled as they are made.

What is spoiled is one element of a result, another one each time, by one bit of its highest byte: as a fault of the hardware would, behind
the back of what measures. Everything is as it was once the validation has ended.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_acceptance.measure.collectives import Buffers

_STRIDE = 7_919  # from one spoiled element to the next: a prime, so that two results are not spoiled alike
_BIT = 0x20


class _Spoiling(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Spoils one element of each result of these operators of torch."""

    def __init__(self, operators: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._num_spoiled = re.compile(operators), 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if self._operators.match(str(operator)):
            self._num_spoiled += 1
            for tensor in _made(result):
                if not tensor.is_cuda and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # a copy to the host may still be on its way
                    torch.cuda.synchronize()
                spoil(tensor, self._num_spoiled * _STRIDE)
        return result


def _made(result: Any) -> list[Tensor]:
    return [one for one in (result if isinstance(result, list | tuple) else [result]) if isinstance(one, Tensor)]


def spoil(tensor: Tensor, number: int) -> None:
    """Invert a bit in the highest byte of one element, that with this number modulo all; of an empty tensor, or one with gaps, nothing."""
    if not tensor.numel() or not tensor.is_contiguous():
        return
    itemsize = tensor.element_size()
    tensor.view(-1).view(torch.uint8)[(number % tensor.numel()) * itemsize + itemsize - 1].bitwise_xor_(_BIT)


@contextmanager
def _replaced(owner: type, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, change(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def _spoil_weights(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    from gpu_acceptance.measure.train.step import local  # it imports DTensor, for which nobody has to wait who only asks for names

    weight = local(optimizer.param_groups[0]["params"][0].detach())
    if weight.numel():
        weight[(0,) * weight.ndim].mul_(1.01)


@contextmanager
def _after_each_step(spoil: Callable[..., None]) -> Iterator[None]:
    handle = register_optimizer_step_post_hook(spoil)
    try:
        yield
    finally:
        handle.remove()


def _spoils_output(run: Callable[[Buffers], None]) -> Callable[[Buffers], None]:
    def spoiling(buffers: Buffers) -> None:
        run(buffers)
        spoil(buffers.output, _STRIDE)

    return spoiling


def _never_reduces(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(self: DistributedDataParallel, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.require_backward_grad_sync = False

    return made


# By name, as the marker `drill` of a validation names them.
PLANTS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "products": lambda: _Spoiling(r"aten\.(mm|addmm|bmm|baddbmm|_scaled_mm)\."),
    "arrays": lambda: _Spoiling(r"aten\.(mul|add|add_|sum|fill_|copy_)\."),
    "collectives": lambda: _replaced(Buffers, "run", _spoils_output),
    "weights": lambda: _after_each_step(_spoil_weights),
    "no reduction": lambda: _replaced(DistributedDataParallel, "__init__", _never_reduces),
}
