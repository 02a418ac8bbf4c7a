"""What a model is made of, and what a step of it costs, counted from the model itself."""

import functools

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.shapes import ResNet, Shape

_META = torch.device("meta")
_NUM_SAMPLES = 2  # normalisation over a batch wants more than one


@functools.cache
def flops_per_sample(shape: Shape) -> int:
    """Of forward and backward, over one sequence or image: torch counts two for each multiplication of the matrix products it runs.

    Attention counts whole, without the half that causality spares, and nothing is recomputed: of a decoder that is
    6 (N - N_embedding) + 12 L d s for a token (PaLM, appendix B). Counted on `meta`, where nothing runs.
    """
    inputs, targets = _samples(shape)
    with FlopCounterMode(display=False) as counter:
        build(shape, _META)(inputs, targets).backward()
    return int(counter.get_total_flops()) // _NUM_SAMPLES


def num_parameters(shape: Shape) -> int:
    return sum(parameter.numel() for parameter in build(shape, _META).parameters())


def _samples(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(shape, ResNet):
        size = shape.image_size
        return torch.empty(_NUM_SAMPLES, 3, size, size, device=_META), torch.empty(_NUM_SAMPLES, dtype=torch.int64, device=_META)
    tokens = torch.empty(_NUM_SAMPLES, shape.sequence, dtype=torch.int64, device=_META)
    return tokens, tokens
