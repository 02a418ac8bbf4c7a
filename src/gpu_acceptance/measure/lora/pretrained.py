"""A checkpoint of somebody's, loaded from its folder: nothing is asked of a hub, no code of it is run, nothing is unpickled."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from gpu_acceptance.measure.lora.packing import IGNORED
from gpu_acceptance.measure.train.tuned import TrainingMemoryError

_ADAPTER_BYTES = 16  # of a parameter: itself, its gradient, and AdamW's two moments, in fp32
_LOGIT_BYTES = 8  # of one: in fp32, as the loss takes it, and its gradient


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint to fine-tune, by what its files say."""

    folder: Path
    num_parameters: int
    vocabulary: int
    ends: int  # rows and columns of all matrices that get adapters


class MissingWeightsError(ValueError):
    """A checkpoint whose files do not have what its config promises."""


class TokenLoss(nn.Module):
    """The sum over all tokens that are to be learned, in nats. Inputs [2, B, T] are tokens and their positions; targets [B, T]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        tokens_BT, positions_BT = inputs
        logits_BTV = self.model(input_ids=tokens_BT, position_ids=positions_BT, use_cache=False).logits
        return nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def load(pretrained: Pretrained, device: torch.device, *, in_bf16: bool) -> TokenLoss:
    """Its weights in bf16 or fp32, on the device. Raises MissingWeightsError where transformers would draw some at random."""
    logging.disable_progress_bar()
    model, told = AutoModelForCausalLM.from_pretrained(
        str(pretrained.folder),
        dtype=torch.bfloat16 if in_bf16 else torch.float32,
        device_map={"": device},
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    if missing := sorted(told["missing_keys"]):
        raise MissingWeightsError(
            f"{pretrained.folder}: its config wants {len(missing):,} tensors that are not in its files, such as {missing[0]}"
        )
    model.generation_config = GenerationConfig()  # its own would be mixed into ours, and such as a repetition penalty is not greedy
    return TokenLoss(cast(nn.Module, model).train())


def tokenizer_of(pretrained: Pretrained) -> PreTrainedTokenizerBase:
    """As its tokenizer.json says: AutoTokenizer of transformers 5 cuts words anew for a model of type qwen2, whatever that file says."""
    return cast(PreTrainedTokenizerBase, PreTrainedTokenizerFast.from_pretrained(str(pretrained.folder), local_files_only=True))


def refuse_too_large(pretrained: Pretrained, *, rank: int, num_tokens: int, in_bf16: bool, device: torch.device, host_bytes: int) -> None:
    """Before anything is loaded: whether what cannot be done without has room. `num_tokens` are those of a micro-batch; `host_bytes` what
    a rank may use of its host, where it trains on a CPU. Activations are not reckoned. Raises TrainingMemoryError.
    """
    parts = {
        "weights": pretrained.num_parameters * (2 if in_bf16 else 4),
        "adapters": pretrained.ends * rank * _ADAPTER_BYTES,
        "logits": num_tokens * pretrained.vocabulary * _LOGIT_BYTES,
    }
    wanted, free_bytes = sum(parts.values()), _free_bytes(device) if device.type == "cuda" else host_bytes
    if wanted > free_bytes:
        shown = ", ".join(f"{name} {size / 1e9:,.1f}" for name, size in parts.items())
        raise TrainingMemoryError(
            f"too little memory: {pretrained.folder} wants at least {wanted / 1e9:,.1f} GB on each rank ({shown}), and "
            f"{free_bytes / 1e9:,.1f} GB are free; lower lora_model.batch_size or lora_model.sequence, or use larger GPUs"
        )


def _free_bytes(device: torch.device) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    free_bytes: int = torch.cuda.mem_get_info(device)[0]
    return free_bytes
