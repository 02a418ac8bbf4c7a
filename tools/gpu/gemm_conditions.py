"""Read what the sustained rate of a bf16 multiplication depends on: data, shape, layout and library, in one sitting on one GPU.

    python tools/gpu/gemm_conditions.py [--seconds=8] [--device=cpu]

Each condition runs back to back for so long, and then for half of it while it is timed: at the power limit what makes a multiplication
dearer makes the clock lower, and random data are dearer than regular ones. Prints a JSON line for each: rate, clock, power, heat. The first
condition is that of `gemm`, and comes again at the end. pytest does not collect this file.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
from readings import name, say  # first: it finds the checkout
from torch import Tensor

from gpu_acceptance.inventory import versions
from gpu_acceptance.inventory.answer import then
from gpu_acceptance.inventory.telemetry_sampler import Sampler
from gpu_acceptance.measure.gemm.operands import Shape, square
from gpu_acceptance.measure.timing import Span, time_block

BF16 = torch.bfloat16
CHANNELS = ("sm_clock_mhz", "power_w", "gpu_temperature_c", "memory_temperature_c")
DATA: dict[str, Callable[[Tensor], object]] = {
    "normal": lambda tensor: tensor.normal_(),
    "uniform, -1 to 1": lambda tensor: tensor.uniform_(-1, 1),
    "uniform, 0 to 1": lambda tensor: tensor.uniform_(0, 1),
    "-1, 0 and 1": lambda tensor: tensor.random_(-1, 2),
    "1, 2, 3, ... 7": lambda tensor: tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) % 7 + 1).view(tensor.shape)),
    "ones": lambda tensor: tensor.fill_(1),
    "zeros": lambda tensor: tensor.zero_(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a sustained bf16 multiplication under several conditions; print JSON lines.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    device = torch.device(options.device, *([0] if options.device == "cuda" else []))
    say({"versions": versions.read(), "device": name(device)})
    sampler = Sampler(f"GPU-{torch.cuda.get_device_properties(device).uuid}") if device.type == "cuda" else None
    if sampler:
        sampler.start()
    for condition in conditions(square(8192 if device.type == "cuda" else 256)):
        read(*condition, options.seconds, device, sampler)
    if sampler:
        sampler.stop()


def conditions(usual: Shape) -> Iterator[tuple[str, Shape, bool, str]]:
    """Yield data, shape, whether the second operand is transposed, and torch's library."""
    normal = next(iter(DATA))
    yield from ((data, usual, False, "cublas") for data in DATA)
    half = usual.M // 2
    for shape in (square(half), square(2 * usual.M), Shape(usual.M, usual.N, half), Shape(2 * usual.M, usual.N, 1280)):
        yield normal, shape, False, "cublas"
    yield normal, usual, True, "cublas"
    yield normal, usual, False, "cublaslt"
    yield "zeros", usual, False, "cublaslt"
    yield normal, usual, False, "cublas"


def read(data: str, shape: Shape, is_transposed: bool, library: str, seconds: float, device: torch.device, sampler: Sampler | None) -> None:
    torch.manual_seed(0)
    one_MK = torch.empty(shape.M, shape.K, dtype=BF16, device=device)
    other = torch.empty(*((shape.N, shape.K) if is_transposed else (shape.K, shape.N)), dtype=BF16, device=device)
    for operand in (one_MK, other):
        DATA[data](operand)
    other_KN, product_MN = other.t() if is_transposed else other, torch.empty(shape.M, shape.N, dtype=BF16, device=device)
    if device.type == "cuda":
        torch.backends.cuda.preferred_blas_library(library)

    def multiply() -> None:
        torch.mm(one_MK, other_KN, out=product_MN)

    multiply()  # loads kernels
    operation_s = time_block(multiply, 3, device).elapsed_s / 3
    block(seconds, operation_s, multiply, device)
    num_operations, span = block(seconds / 2, operation_s, multiply, device)
    spans = sampler.window(span.begin_s, span.end_s).spans if sampler else {}
    means = {channel: str(then(spans[channel], lambda one: f"{one.mean:.1f}")) for channel in CHANNELS if spans}
    rate = num_operations * shape.num_flops / span.elapsed_s / 1e12
    kind = {"data": data, "M": shape.M, "N": shape.N, "K": shape.K, "transposed": is_transposed, "library": library}
    say({**kind, "tflop_per_s": round(rate, 1), **means})


def block(seconds: float, operation_s: float, operation: Callable[[], object], device: torch.device) -> tuple[int, Span]:
    """Return the number of operations in a block of about so long, and the block."""
    num_operations = max(1, round(seconds / operation_s))
    return num_operations, time_block(operation, num_operations, device)


if __name__ == "__main__":
    main()
