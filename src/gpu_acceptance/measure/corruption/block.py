"""A few training steps of one transformer block: forward, backward and SGD, as a kernel among the others.

Parameters and updates are fp32 and the multiplications bf16: a gradient added to bf16 would mostly be rounded away, and
what went wrong in it too. Tensor suffixes: B batch, S sequence, E = H D width of the model, H heads, D width of one head.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_acceptance.measure.corruption.inputs import Draw

NUM_STEPS = 4
_LEARNING_RATE = 1.0
_EXPANSION = 4


def draw_inputs(draw: Draw, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Input, target, and the parameters: those of attention in, attention out, MLP up, MLP down. Shape: B, S, H, D."""
    B, S, H, D = shape
    E = H * D
    scale = 2.0 ** -round(math.log2(E) / 2)  # a power of two, so that scaling is exact: about 1 / sqrt(E)
    parameters = [draw(*size) * scale for size in ((3, H, D, E), (E, E), (_EXPANSION * E, E), (E, _EXPANSION * E))]
    return draw(B, S, E), draw(B, S, E), *parameters


def train(x_BSE: Tensor, target_BSE: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """The parameters after all steps, the gradients of the last step, and its loss."""
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
