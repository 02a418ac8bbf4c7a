"""Models people know, from the configurations of transformers, with random weights on a device: nothing is downloaded.

A decoder gives the loss of the next token, a residual network that of the class; both are called with a batch alone, so that model and
loss compile together.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.resnet.modeling_resnet import ResNetBasicLayer, ResNetBottleNeckLayer

from gpu_acceptance.measure.train.shapes import NUM_CLASSES, Decoder, ResNet, Shape

RESNETS = {  # He et al. 2015, table 1
    18: ("basic", [2, 2, 2, 2]),
    34: ("basic", [3, 4, 6, 3]),
    50: ("bottleneck", [3, 4, 6, 3]),
    101: ("bottleneck", [3, 4, 23, 3]),
    152: ("bottleneck", [3, 8, 36, 3]),
}
_BLOCKS = (GPT2Block, LlamaDecoderLayer, Qwen2DecoderLayer, ResNetBasicLayer, ResNetBottleNeckLayer)
_ATTENTION = "causal_without_mask"


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **options: Any
) -> tuple[torch.Tensor, None]:
    """Whole sequences of one length need no mask. transformers' own `sdpa` makes one while it is compiled, which costs the fused kernel,
    and otherwise asks the GPU in every step whether it must.
    """
    attended = nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=options.get("scaling"), enable_gqa=key.shape[1] != query.shape[1]
    )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)


class CrossEntropy(nn.Module):
    """In fp32, whatever the logits are in: of all classes or tokens, their mean."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


class Loss(nn.Module):
    """A model and its loss in one: takes the inputs and what they should become, returns a scalar."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.criterion = model, CrossEntropy()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.criterion(self.model(inputs).logits, targets))


def build(shape: Shape, device: torch.device) -> Loss:
    """A model of this shape, its weights in fp32, drawn on the device by torch's generator of it. On `meta` it has no weights.

    One with an adapter needs peft.
    """
    with device:
        model: nn.Module = _resnet(shape) if isinstance(shape, ResNet) else _DECODERS[shape.kind](shape)
        if isinstance(shape, Decoder) and shape.adapter:
            from gpu_acceptance.measure.train.adapters import adapted  # it imports peft, which takes seconds

            model = adapted(model, shape.adapter)
    if isinstance(shape, ResNet):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Loss(model.train())


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The layers that repeat, in order: what is sharded one by one."""
    return [layer for layer in module.modules() if isinstance(layer, _BLOCKS)]


def compile_by_blocks(module: nn.Module) -> None:
    """Each layer, and the loss, for itself: layers that are alike share what was compiled."""
    for part in module.modules():
        if isinstance(part, (*_BLOCKS, CrossEntropy)):
            part.compile()


def _gpt2(shape: Decoder) -> nn.Module:
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.sequence,
        n_embd=shape.width,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=_ATTENTION,
        **no_dropout,
    )
    return cast(nn.Module, GPT2LMHeadModel(config))


def _rotary(shape: Decoder, theta: float) -> dict[str, Any]:
    """Settings of a decoder with rotary positions of this base."""
    return {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.sequence,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.mlp_width,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": False,
        "use_cache": False,
        "attn_implementation": _ATTENTION,
    }


def _llama(shape: Decoder) -> nn.Module:
    return cast(nn.Module, LlamaForCausalLM(LlamaConfig(**_rotary(shape, 500_000.0))))  # theta of Llama 3


def _qwen2(shape: Decoder) -> nn.Module:
    config = Qwen2Config(**_rotary(shape, 1_000_000.0), initializer_range=shape.initial_std)  # theta of Qwen2-7B
    return cast(nn.Module, Qwen2ForCausalLM(config))


_DECODERS = {"gpt2": _gpt2, "llama": _llama, "qwen2": _qwen2}


def _resnet(shape: ResNet) -> nn.Module:
    layer_type, depths = RESNETS[shape.depth]
    widths = [shape.width * 2**stage for stage in range(4)]
    config = ResNetConfig(
        embedding_size=shape.width,
        hidden_sizes=[4 * width for width in widths] if layer_type == "bottleneck" else widths,
        depths=depths,
        layer_type=layer_type,
        num_labels=NUM_CLASSES,
    )
    return cast(nn.Module, ResNetForImageClassification(config))
