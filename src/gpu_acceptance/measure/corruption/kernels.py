"""Kernels whose outputs have the same bits at every call: made once from a seed, then called again and again.

"large" and "wide" fill all SMs of a GPU, "ragged" fits no tile; a CPU gets the same kernels at small shapes.
Attention runs in the flash backend, which has a kernel of its own; the math backend is made of multiplications and softmax, which are here
anyway. Under deterministic algorithms torch makes its backward deterministic, with one order of the sums for dQ (attention_backward.cu).
The backend must be named, for torch would choose by shape, and cuDNN's is another one.
Tensor suffixes: M, N, K of a matrix; B batch, H heads, S sequence, D width of one head.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

SEED = 20_261_120
_CHUNK = 2**24  # elements at a time: 128 MiB of int64, and as much again while they are mixed
_MOST = 2**40  # elements of one tensor

Draw = Callable[..., Tensor]
NUM_STEPS = 4
_LEARNING_RATE = 1.0
_EXPANSION = 4
Shape = tuple[int, ...]
Outputs = tuple[Tensor, ...]
_Shapes = tuple[Shape, Shape, Shape]  # by SIZES
SIZES = ("large", "wide", "ragged")


def drawing(seed: int, device: torch.device) -> Draw:
    """Return a function `draw(*shape, dtype=)` that gives another tensor at each call: numbers spread evenly over [-1, 1).

    A number is the top 53 bits (fp64) or 24 bits (all others) of an integer, exactly; a narrower dtype rounds to nearest even.
    """
    num_drawn = 0

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        nonlocal num_drawn
        num_drawn += 1
        digits, exact = (53, torch.float64) if dtype == torch.float64 else (24, torch.float32)
        drawn = torch.empty(math.prod(shape), dtype=dtype, device=device)
        for start in range(0, drawn.numel(), _CHUNK):
            part, first = drawn[start : start + _CHUNK], num_drawn * _MOST + start
            bits = _splitmix64(torch.arange(first, first + len(part), device=device), seed)
            part.copy_(_shifted(bits, 64 - digits).to(exact).mul_(math.ldexp(1, 1 - digits)).sub_(1))
        return drawn.view(shape)

    return draw


def _splitmix64(index: Tensor, seed: int) -> Tensor:
    """Return output number `index` of the generator that starts from `seed`, mod 2**64."""
    state = (index + 1) * _signed(0x9E3779B97F4A7C15) + _signed(seed)
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shift to the right, filled with zeros: torch's own shift repeats the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def draw_inputs(draw: Draw, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Draw input, target, and the parameters of attention in, attention out, MLP up, MLP down. Shape: B, S, H, D."""
    B, S, H, D = shape
    E = H * D
    scale = 2.0 ** -round(math.log2(E) / 2)  # a power of two, so that scaling is exact: about 1 / sqrt(E)
    parameters = [draw(*size) * scale for size in ((3, H, D, E), (E, E), (_EXPANSION * E, E), (E, _EXPANSION * E))]
    return draw(B, S, E), draw(B, S, E), *parameters


def train(x_BSE: Tensor, target_BSE: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Return the parameters after all steps, the gradients of the last step, and its loss."""
    leaves, gradients = list(parameters), list[Tensor]()
    for _ in range(NUM_STEPS):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        loss = (_forward(x_BSE, leaves) - target_BSE).square().mean()
        gradients = list(torch.autograd.grad(loss, leaves))
        with torch.no_grad():
            leaves = [leaf - _LEARNING_RATE * gradient for leaf, gradient in zip(leaves, gradients, strict=True)]
    return tuple(tensor.detach().contiguous() for tensor in (*leaves, *gradients, loss))


def _forward(x_BSE: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    qkv, out, up, down = (parameter.bfloat16() for parameter in parameters)
    x_BSE = x_BSE + functional.linear(_attended(_normed(x_BSE), qkv), out)
    return x_BSE + functional.linear(functional.gelu(functional.linear(_normed(x_BSE), up)), down)


def _normed(x_BSE: Tensor) -> Tensor:
    return functional.layer_norm(x_BSE, x_BSE.shape[-1:]).bfloat16()


def _attended(x_BSE: Tensor, qkv_3HDE: Tensor) -> Tensor:
    B, S, E = x_BSE.shape
    _, H, D, _ = qkv_3HDE.shape
    q_BHSD, k_BHSD, v_BHSD = functional.linear(x_BSE, qkv_3HDE.view(-1, E)).view(B, S, 3, H, D).permute(2, 0, 3, 1, 4)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attended_BHSD = functional.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, is_causal=True)
    return attended_BHSD.transpose(1, 2).reshape(B, S, E)


@dataclass(frozen=True)
class Kernel:
    """One kernel at one shape. `run` returns new contiguous tensors and changes no input; call it inside `deterministic`."""

    name: str
    shape: str  # `8191x8193x4099`
    inputs: Outputs
    run: Callable[[], Outputs]


def make(name: str, size: str, device: torch.device, seed: int = SEED) -> Kernel:
    """Return the kernel with its inputs, whose bits depend on name, size, seed and the type of the device alone.

    The device must support it (`unsupported`).
    """
    recipe = _RECIPES[name]
    shape = (recipe.small if device.type == "cpu" else recipe.full)[SIZES.index(size)]
    inputs = recipe.draw(drawing(seed, device), shape)
    return Kernel(name, "x".join(map(str, shape)), inputs, partial(recipe.run, *inputs))


def unsupported(name: str, device: torch.device) -> str:
    """Return the reason why this device cannot run the kernel; empty where it can."""
    needed = _RECIPES[name].capability
    if needed is None:
        return ""
    if device.type == "cpu":
        return "" if _RECIPES[name].on_cpu else "a CPU has no TF32"
    seen = torch.cuda.get_device_capability(device)
    return "" if seen >= needed else f"needs compute capability {needed[0]}.{needed[1]}, this GPU has {seen[0]}.{seen[1]}"


@dataclass(frozen=True)
class _Recipe:
    full: _Shapes
    small: _Shapes
    draw: Callable[[Draw, Shape], Outputs]
    run: Callable[..., Outputs]
    capability: tuple[int, int] | None = None  # compute capability that a GPU must have
    on_cpu: bool = True


# --- multiplications -----------------------------------------------------------------------------------------------------------

_MATRICES = ((8192, 8192, 8192), (16384, 4096, 4096), (8191, 8193, 4099))
_SMALL_MATRICES = ((128, 128, 128), (256, 64, 64), (127, 129, 67))


def _mm(dtype: torch.dtype, precision: str = "ieee", **device: object) -> _Recipe:
    return _Recipe(_MATRICES, _SMALL_MATRICES, partial(_operands, dtype), partial(_multiplied, precision), **device)  # type: ignore[arg-type]


def _operands(dtype: torch.dtype, draw: Draw, shape: Shape) -> Outputs:
    M, N, K = shape
    return draw(M, K, dtype=dtype), draw(N, K, dtype=dtype)


def _multiplied(precision: str, A_MK: Tensor, B_NK: Tensor) -> Outputs:
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        return (torch.mm(A_MK, B_NK.t()),)
    finally:
        matmul.fp32_precision = before


def _multiplied_fp8(A_MK: Tensor, B_NK: Tensor) -> Outputs:
    one = torch.ones((), device=A_MK.device)
    # Fast accumulation gives another result, and so does the output's dtype: both are set.
    return (torch._scaled_mm(A_MK, B_NK.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=False),)


# --- attention -----------------------------------------------------------------------------------------------------------------


def _attention(q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, gradient_BHSD: Tensor) -> Outputs:
    """Return the output, and the gradients of q, k and v."""
    q, k, v = leaves = [tensor.detach().requires_grad_() for tensor in (q_BHSD, k_BHSD, v_BHSD)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        output_BHSD = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradients = torch.autograd.grad(output_BHSD, leaves, gradient_BHSD)
    return tuple(tensor.detach().contiguous() for tensor in (output_BHSD, *gradients))


# --- one pass over memory, and a convolution -----------------------------------------------------------------------------------

_TABLES: _Shapes = ((8192, 8192), (32768, 1024), (8191, 8193))
_SMALL_TABLES: _Shapes = ((128, 128), (512, 16), (127, 129))


def _of_table(run: Callable[..., Outputs]) -> _Recipe:
    return _Recipe(_TABLES, _SMALL_TABLES, lambda draw, shape: (draw(*shape),), run)


_RECIPES: Mapping[str, _Recipe] = {
    "mm_bf16": _mm(torch.bfloat16),
    "mm_fp16": _mm(torch.float16),
    "mm_tf32": _mm(torch.float32, "tf32", capability=(8, 0), on_cpu=False),
    "mm_fp32": _mm(torch.float32),
    "mm_fp64": _mm(torch.float64),
    "mm_fp8": _Recipe(
        ((8192, 8192, 8192), (16384, 4096, 4096), (8191, 8208, 4112)),  # cuBLAS wants N and K to be multiples of 16
        ((128, 128, 128), (256, 64, 64), (127, 144, 80)),
        partial(_operands, torch.float8_e4m3fn),
        _multiplied_fp8,
        capability=(8, 9),
    ),
    "attention": _Recipe(
        ((4, 32, 2048, 128), (1, 16, 8192, 64), (3, 31, 2047, 128)),
        ((2, 2, 64, 16), (1, 3, 128, 8), (1, 3, 61, 16)),
        lambda draw, shape: tuple(draw(*shape, dtype=torch.bfloat16) for _ in range(4)),
        _attention,
        capability=(8, 0),
    ),
    "layer_norm": _Recipe(
        _TABLES,
        _SMALL_TABLES,
        lambda draw, shape: (draw(*shape), draw(shape[1]), draw(shape[1])),
        lambda x_MN, weight_N, bias_N: (functional.layer_norm(x_MN, weight_N.shape, weight_N, bias_N),),
    ),
    "softmax": _of_table(lambda x_MN: (functional.softmax(x_MN, 1),)),
    "gelu": _of_table(lambda x_MN: (functional.gelu(x_MN),)),
    "sum": _of_table(lambda x_MN: (x_MN.sum(1), x_MN.sum(0), x_MN.sum())),
    "sort": _of_table(lambda x_MN: tuple(torch.sort(x_MN, stable=True))),  # stable: equal values have a fixed order of indices
    "conv2d": _Recipe(
        # batch, channels in, channels out, height, width
        ((64, 256, 256, 56, 56), (256, 64, 128, 56, 56), (63, 255, 257, 55, 57)),
        ((2, 8, 8, 14, 14), (4, 4, 8, 14, 14), (3, 7, 9, 13, 15)),
        lambda draw, shape: tuple(draw(*size, dtype=torch.bfloat16) for size in ((*shape[:2], *shape[3:]), (shape[2], shape[1], 3, 3))),
        lambda images, filters: (functional.conv2d(images, filters, padding=1).contiguous(),),
    ),
    "block": _Recipe(
        ((4, 2048, 16, 128), (8, 1024, 32, 64), (3, 2047, 15, 120)),
        ((2, 16, 2, 16), (4, 8, 4, 8), (1, 17, 3, 8)),
        draw_inputs,
        train,
        capability=(8, 0),
    ),
}
NAMES = tuple(_RECIPES)
