"""Well-known models with random weights, built from the configurations of transformers; and such a model over several ranks (DDP, FSDP2).

Nothing is downloaded. A decoder returns the loss of the next token, a residual network that of the class. Both are called with a batch
alone, so that model and loss compile together.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.resnet.modeling_resnet import ResNetBasicLayer, ResNetBottleNeckLayer

from gpu_acceptance.measure.collectives import Group
from gpu_acceptance.measure.corruption import hashing
from gpu_acceptance.measure.train.shapes import NUM_CLASSES, Decoder, ResNet, Shape
from gpu_acceptance.measure.train.step import whole

RESNETS = {  # He et al. 2015, table 1
    18: ("basic", [2, 2, 2, 2]),
    34: ("basic", [3, 4, 6, 3]),
    50: ("bottleneck", [3, 4, 6, 3]),
    101: ("bottleneck", [3, 4, 23, 3]),
    152: ("bottleneck", [3, 8, 36, 3]),
}
_BLOCKS = (GPT2Block, LlamaDecoderLayer, Qwen2DecoderLayer, ResNetBasicLayer, ResNetBottleNeckLayer)
_ATTENTION = "causal_without_mask"
# torch's 25 MB cut GPT-2 into twenty parts that are compiled one by one: on 2 H200 512,921 tokens/s for one GPU, and 522,390 with these
# (reports/evidence/h200-training/x2-tuning.jsonl).
_BUCKET_MB = 130
# Statistics of a batch stay with the rank that saw it: to broadcast them at each step would train nothing. Renamed in torch 2.13.
_IS_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_LOCAL_STATISTICS: dict[str, Any] = {"forward_sync_buffers" if _IS_RENAMED else "broadcast_buffers": False}
_STATE_BYTES = 3 * 4  # of a parameter: itself and AdamW's two moments, in fp32
_COUNT_BYTES = 4  # of each tensor: AdamW's count of its steps
_IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attend without a mask, which whole sequences of one length do not need.

    transformers' own `sdpa` makes a mask while it is compiled, which loses the fused kernel, and otherwise waits for the GPU in every step.
    """
    attended = nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=options.get("scaling"), enable_gqa=key.shape[1] != query.shape[1]
    )
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(_ATTENTION, _attend)


class CrossEntropy(nn.Module):
    """The mean over all classes or tokens, in fp32 for logits of any dtype."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


class Loss(nn.Module):
    """A model and its loss in one: takes inputs and targets, returns a scalar."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.criterion = model, CrossEntropy()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.criterion(self.model(inputs).logits, targets))


def build(shape: Shape, device: torch.device) -> Loss:
    """Build a model of this shape, its weights in fp32, drawn on the device by that device's generator of torch.

    On `meta` it has no weights. A shape with an adapter needs peft.
    """
    with device:
        model: nn.Module = _resnet(shape) if isinstance(shape, ResNet) else _decoder(shape)
        if isinstance(shape, Decoder) and shape.adapter:
            from gpu_acceptance.measure.train.adapters import adapted  # it imports peft, which takes seconds

            model = adapted(model, shape.adapter)
    if isinstance(shape, ResNet):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Loss(model.train())


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers that repeat, in order: these are sharded one by one."""
    return [layer for layer in module.modules() if isinstance(layer, _BLOCKS)]


def compile_by_blocks(module: nn.Module) -> None:
    """Compile each layer, and the loss, by itself: equal layers share the compiled code."""
    for part in module.modules():
        if isinstance(part, (*_BLOCKS, CrossEntropy)):
            part.compile()


def _decoder(shape: Decoder) -> nn.Module:
    common = {"vocab_size": shape.vocabulary, "initializer_range": shape.initial_std, "use_cache": False, "attn_implementation": _ATTENTION}
    if shape.kind == "gpt2":
        sizes = {"n_positions": shape.sequence, "n_embd": shape.width, "n_layer": shape.num_layers, "n_head": shape.num_heads}
        without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
        return cast(nn.Module, transformers.GPT2LMHeadModel(transformers.GPT2Config(**common, **sizes, **without)))
    model, config, theta = _ROTARY[shape.kind]
    return model(
        config(
            **common,
            max_position_embeddings=shape.sequence,
            hidden_size=shape.width,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            intermediate_size=shape.mlp_width,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
            tie_word_embeddings=False,
        )
    )


_ROTARY: dict[str, tuple[Callable[..., nn.Module], Callable[..., object], float]] = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, 500_000.0),  # theta of Llama 3
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, 1_000_000.0),  # of Qwen2-7B
}


def _resnet(shape: ResNet) -> nn.Module:
    layer_type, depths = RESNETS[shape.depth]
    widths = [shape.width * 2**stage for stage in range(4)]
    config = transformers.ResNetConfig(
        embedding_size=shape.width,
        hidden_sizes=[4 * width for width in widths] if layer_type == "bottleneck" else widths,
        depths=depths,
        layer_type=layer_type,
        num_labels=NUM_CLASSES,
    )
    return cast(nn.Module, transformers.ResNetForImageClassification(config))


@dataclass(frozen=True)
class Sharding:
    """The mesh of ranks, and the way to shard. A mesh of two dimensions shards over the second, and replicates over the first."""

    mesh: DeviceMesh
    by_block: bool = True  # each layer by itself, or the whole model at once
    reshards: bool = True  # after the forward: the backward gathers again
    offloads: bool = False  # sharded tensors lie in the memory of the host
    in_bf16: bool = True  # parameters and activations; gradients are reduced in fp32

    def promised_bytes(self, shape: torch.Size) -> int:
        """Return the bytes that this rank holds of a parameter of this shape and of its moments."""
        return shard_bytes(shape, self.mesh.get_local_rank(self.mesh.ndim - 1), self.mesh.size(self.mesh.ndim - 1))


def shard_bytes(shape: torch.Size, shard: int, num_shards: int) -> int:
    """Return the bytes of one shard of a parameter and of its moments.

    Each is cut along its first dimension, as torch.chunk cuts: the last may be smaller, or empty.
    """
    rows = math.ceil(shape[0] / num_shards)
    return _STATE_BYTES * min(rows, max(0, shape[0] - shard * rows)) * math.prod(shape[1:]) + _COUNT_BYTES


def replicated(module: nn.Module, *, group: Group = None) -> DistributedDataParallel:
    """Wrap a module with DDP, over all ranks unless a group is given. Collective there."""
    return DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=_BUCKET_MB, **_LOCAL_STATISTICS)


def sharded(module: nn.Module, sharding: Sharding) -> nn.Module:
    """Shard the parameters of a module, and return it. Collective in the mesh."""
    offload = CPUOffloadPolicy(pin_memory=sharding.mesh.device_type == "cuda") if sharding.offloads else OffloadPolicy()
    precision = _IN_BF16 if sharding.in_bf16 else MixedPrecisionPolicy()
    for part in [*blocks_of(module), module] if sharding.by_block else [module]:
        fully_shard(part, mesh=sharding.mesh, reshard_after_forward=sharding.reshards, mp_policy=precision, offload_policy=offload)
    return module


def digest(tensors: Iterable[Tensor]) -> str:
    """Return the hash of all tensors, bit for bit, gathered from shards if there are any. Collective where they are sharded."""
    return hashing.digest(whole(tensor.detach()) for tensor in tensors)
