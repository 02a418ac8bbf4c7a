"""LoRA by peft: a frozen base in bf16 or fp32, and trained adapters in fp32 on all seven projections of each layer."""

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

from gpu_acceptance.measure.train.shapes import PROJECTIONS, Adapter

_NUM_INPUTS = 64  # of one layer; rounding errors of bf16 average out over them


def adapted(model: nn.Module, adapter: Adapter) -> nn.Module:
    """Add adapters to a model. Untrained they change nothing: B begins as zeros."""
    if adapter.in_bf16:
        _to_bf16(model)
    config = LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, target_modules=list(PROJECTIONS), bias="none")
    with _deprecated():
        return cast(nn.Module, get_peft_model(model, config))


@contextmanager
def _deprecated() -> Iterator[None]:
    """Ignore a deprecated name by which peft 0.21 asks transformers 5.23."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def save(module: nn.Module, folder: Path) -> int:
    """Save the adapters alone, as safetensors, beside their configuration; return their bytes."""
    _adapted_model(module).save_pretrained(str(folder))
    return (folder / SAFETENSORS_WEIGHTS_NAME).stat().st_size


def load(module: nn.Module, folder: Path, *, in_bf16: bool) -> None:
    """Load saved adapters onto a base without adapters, in place, without unpickling and without a network."""
    if in_bf16:
        _to_bf16(module)
    with _deprecated():
        module.model = PeftModel.from_pretrained(cast(nn.Module, module.model), str(folder), local_files_only=True)


def recompute(module: nn.Module) -> None:
    """Keep only the inputs of layers from here on, and compute them again in the backward (gradient checkpointing)."""
    model = _adapted_model(module)
    # transformers 5.17 has the old name alone, and 5.23 warns of it
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _adapted_model(module: nn.Module) -> PeftModel:
    return next(part for part in module.modules() if isinstance(part, PeftModel))


def _to_bf16(model: nn.Module) -> None:
    for parameter in model.parameters():  # not buffers, such as the frequencies of rotary positions
        parameter.data = parameter.data.bfloat16()


def frozen(module: nn.Module) -> list[Tensor]:
    """Return the weights of the base in order of their names: all weights outside adapters, even if something trains them."""
    return [parameter.detach() for name, parameter in sorted(module.named_parameters()) if "lora_" not in name]


def trained(module: nn.Module) -> list[Tensor]:
    """Return the weights of the adapters in order of their names."""
    return [parameter.detach() for name, parameter in sorted(module.named_parameters()) if "lora_" in name]


@torch.no_grad()
def scale(module: nn.Module, blocks: Sequence[nn.Module]) -> float:
    """Return the factor of B A x that an adapter of one layer adds: alpha / rank is promised. NaN where it adds nothing.

    Collective where the blocks are sharded one by one.
    """
    block = next(iter(blocks), module)  # other architectures are not sharded
    if isinstance(block, FSDPModule):
        block.unshard()
    layer = next(part for part in block.modules() if isinstance(part, LoraLayer))
    (name,) = layer.lora_A.keys()
    down, up = (cast(Tensor, matrices[name].weight).double() for matrices in (layer.lora_A, layer.lora_B))
    inputs = torch.eye(down.shape[1], device=down.device)[:_NUM_INPUTS]
    base = cast(nn.Linear, layer.get_base_layer())
    rounded = inputs.to(base.weight.dtype)
    added = cast(Tensor, cast(nn.Module, layer)(rounded)).double() - base(rounded).double()
    promised = inputs.double() @ down.T @ up.T
    found = float((added * promised).sum() / promised.square().sum())
    if isinstance(block, FSDPModule):
        block.reshard()
    return found
