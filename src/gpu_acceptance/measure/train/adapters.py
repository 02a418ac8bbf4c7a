"""LoRA by peft: a frozen base in bf16 or fp32, and adapters in fp32 on all seven projections of each layer, which alone are trained."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from gpu_acceptance.measure.train.shapes import PROJECTIONS, Adapter, Decoder

_NUM_INPUTS = 64  # of one layer; what bf16 rounds off its results averages out


def adapted(model: nn.Module, adapter: Adapter) -> nn.Module:
    """The same with adapters, which change nothing as long as they are not trained: B begins as zeros."""
    if adapter.in_bf16:
        _to_bf16(model)
    config = LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, target_modules=list(PROJECTIONS), bias="none")
    with _deprecated():
        return cast(nn.Module, get_peft_model(model, config))


@contextmanager
def _deprecated() -> Iterator[None]:
    """A name by which peft 0.21 asks transformers 5.23."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def save(module: nn.Module, folder: Path) -> int:
    """The adapters alone, as safetensors, beside their configuration; returns how many bytes."""
    _adapted_model(module).save_pretrained(str(folder))
    return (folder / SAFETENSORS_WEIGHTS_NAME).stat().st_size


def load(module: nn.Module, folder: Path, *, in_bf16: bool) -> None:
    """What was saved there, onto a base without adapters, in place. Nothing is unpickled, and nothing asked for over a network."""
    if in_bf16:
        _to_bf16(module)
    with _deprecated():
        module.model = PeftModel.from_pretrained(cast(nn.Module, module.model), str(folder), local_files_only=True)


def recompute(module: nn.Module) -> None:
    """From here on the backward computes again what layers do, and keeps what goes into them alone (gradient checkpointing)."""
    model = _adapted_model(module)
    # transformers 5.17 has the old name alone, and 5.23 warns of it
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _adapted_model(module: nn.Module) -> PeftModel:
    return next(part for part in module.modules() if isinstance(part, PeftModel))


def _to_bf16(model: nn.Module) -> None:
    for parameter in model.parameters():  # buffers stay: the frequencies of rotary positions
        parameter.data = parameter.data.bfloat16()


def num_trainable(shape: Decoder) -> int:
    """Of A [rank, in] and B [out, rank] of each projection, as the shape promises; ValueError for a shape without an adapter."""
    if shape.adapter is None:
        raise ValueError("a shape without an adapter trains no adapter")
    queries, keys = shape.width, shape.num_kv_heads * (shape.width // shape.num_heads)
    ends = [(shape.width, out) for out in (queries, keys, keys)] + [(queries, shape.width)]
    ends += [(shape.width, shape.mlp_width), (shape.width, shape.mlp_width), (shape.mlp_width, shape.width)]
    return shape.num_layers * shape.adapter.rank * sum(map(sum, ends))


def frozen(module: nn.Module) -> list[Tensor]:
    """The weights of the base, by name: all that is not of an adapter, whether somebody trains it or not."""
    return [parameter.detach() for name, parameter in sorted(module.named_parameters()) if "lora_" not in name]


def trained(module: nn.Module) -> list[Tensor]:
    """The weights of the adapters."""
    return [parameter.detach() for name, parameter in sorted(module.named_parameters()) if "lora_" in name]


@torch.no_grad()
def scale(module: nn.Module, blocks: Sequence[nn.Module]) -> float:
    """How many times B A x an adapter adds to what its base gives: alpha / rank is promised. Of one layer; NaN where it adds nothing.

    Collective where the blocks are sharded one by one.
    """
    block = next(iter(blocks), module)  # any other architecture is not sharded
    if not isinstance(block, FSDPModule):
        return _scale(block)
    block.unshard()
    found = _scale(block)
    block.reshard()
    return found


def _scale(block: nn.Module) -> float:
    layer = next(part for part in block.modules() if isinstance(part, LoraLayer))
    (name,) = layer.lora_A.keys()
    down, up = (cast(Tensor, matrices[name].weight).double() for matrices in (layer.lora_A, layer.lora_B))
    inputs = torch.eye(down.shape[1], device=down.device)[:_NUM_INPUTS]
    base = cast(nn.Linear, layer.get_base_layer())
    rounded = inputs.to(base.weight.dtype)
    added = cast(Tensor, cast(nn.Module, layer)(rounded)).double() - base(rounded).double()
    promised = inputs.double() @ down.T @ up.T
    return float((added * promised).sum() / promised.square().sum())
