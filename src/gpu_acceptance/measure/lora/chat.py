"""A site's own checkpoint, fine-tuned on dialogues over all ranks: its answers before and after, and again after saving and loading."""

import gc
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from gpu_acceptance.measure.collectives import over_ranks
from gpu_acceptance.measure.lora import packing
from gpu_acceptance.measure.lora.calls import Dialogue, Message
from gpu_acceptance.measure.lora.model_folder import Checkpoint
from gpu_acceptance.measure.lora.packing import IGNORED, Scribe
from gpu_acceptance.measure.lora.tuning import Share, Tuned, tune
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.models import replicated
from gpu_acceptance.measure.train.shapes import Adapter
from gpu_acceptance.measure.train.step import Schedule, TrainingMemoryError, peak_bytes, prepared

_ADAPTER_BYTES = 16  # of a parameter: itself, its gradient, and AdamW's two moments, in fp32
_LOGIT_BYTES = 8  # of one logit in fp32, for the loss, and its gradient
_AT_ONCE = 32  # prompts of one generation
_SEED = 0  # of the adapters, the same on all ranks


class MissingWeightsError(ValueError):
    """A checkpoint whose files lack tensors that its config promises."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a fine-tuning. A step has `num_parts` micro-batches over all ranks, of `batch_size` sequences of so many tokens each."""

    adapter: Adapter
    schedule: Schedule
    sequence: int
    batch_size: int
    num_parts: int
    num_prompts: int  # most held-out dialogues whose first answer is generated
    num_new: int  # most tokens of an answer
    recomputes: bool  # activations in the backward
    host_bytes: int  # the part of the host's memory for this rank, where it trains on a CPU


class TokenLoss(nn.Module):
    """The sum of the loss over all learned tokens, in nats. Inputs [2, B, T] are tokens and their positions; targets [B, T]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        tokens_BT, positions_BT = inputs
        logits_BTV = self.model(input_ids=tokens_BT, position_ids=positions_BT, use_cache=False).logits
        return nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def load(checkpoint: Checkpoint, device: torch.device, *, in_bf16: bool) -> TokenLoss:
    """Load its weights in bf16 or fp32, on the device. Raises MissingWeightsError where transformers would draw some at random."""
    logging.disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(
        str(checkpoint.folder),
        dtype=torch.bfloat16 if in_bf16 else torch.float32,
        device_map={"": device},
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    if missing := sorted(info["missing_keys"]):
        raise MissingWeightsError(
            f"{checkpoint.folder}: its config wants {len(missing):,} tensors that are not in its files, such as {missing[0]}"
        )
    model.generation_config = GenerationConfig()  # its own would be mixed into ours, and a repetition penalty, for one, is not greedy
    return TokenLoss(cast(nn.Module, model).train())


def refuse_too_large(checkpoint: Checkpoint, sizes: Sizes, device: torch.device) -> None:
    """Raise TrainingMemoryError, before loading, where weights, adapters and logits have no room. Activations are not counted."""
    parts = {
        "weights": checkpoint.num_parameters * (2 if sizes.adapter.in_bf16 else 4),
        "adapters": checkpoint.num_ends * sizes.adapter.rank * _ADAPTER_BYTES,
        "logits": sizes.batch_size * sizes.sequence * checkpoint.vocabulary * _LOGIT_BYTES,
    }
    wanted, free_bytes = sum(parts.values()), sizes.host_bytes
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        free_bytes = torch.cuda.mem_get_info(device)[0]
    if wanted > free_bytes:
        shown = ", ".join(f"{name} {size / 1e9:,.1f}" for name, size in parts.items())
        raise TrainingMemoryError(
            f"too little memory: {checkpoint.folder} wants at least {wanted / 1e9:,.1f} GB on each rank ({shown}), and "
            f"{free_bytes / 1e9:,.1f} GB are free; lower lora_model.batch_size or lora_model.sequence, or use larger GPUs"
        )


@dataclass(frozen=True)
class Answered:
    """The model's results on held-out dialogues."""

    loss: float  # nats for each token of an assistant, over all ranks
    answers: tuple[str, ...]  # of this rank: to every world_size-th prompt, from its own on


@dataclass(frozen=True)
class ChatResult:
    """One fine-tuning. The same on all ranks, except answers and those expected, what `tuned` has of this rank, and memory."""

    expected: tuple[Message, ...]  # the right answers to the prompts of this rank
    before: Answered
    after: Answered
    loaded_loss: float  # held out, of the saved adapters on a base that is loaded again
    num_bytes: int  # of the files of adapters
    losses: list[float]  # nats for each learned token, by step, over all ranks
    tuned: Tuned
    learned_share: float  # learned tokens, as a part of the assistants' tokens, which are counted in another way
    packing_error: float  # relative error of the loss of dialogues in one sequence against each by itself
    part_too_long: float  # of the dialogues to train and held out
    tokens_per_s: float  # of one rank, without padding
    peak_bytes: int


def measure(
    checkpoint: Checkpoint, dialogues: Sequence[Dialogue], held_out: Sequence[Dialogue], sizes: Sizes, folder: Path, device: torch.device
) -> ChatResult:
    """Train with DDP, and save the adapters of each rank into `folder`, which must be empty. Collective.

    Raises FitError, TrainingMemoryError, MissingWeightsError.
    """
    refuse_too_large(checkpoint, sizes, device)
    wanted = f"{checkpoint.folder} with a batch of {sizes.batch_size} sequences of {sizes.sequence} tokens on each rank"
    with prepared(wanted, "lora_model.batch_size or lora_model.sequence", device):
        exam = _Exam(checkpoint, held_out, sizes, device)
        result = _trained(checkpoint, dialogues, exam, folder)
        loaded = load(checkpoint, device, in_bf16=sizes.adapter.in_bf16)
        adapters.load(loaded, folder, in_bf16=sizes.adapter.in_bf16)
        return replace(result, loaded_loss=exam.loss(loaded))


def _trained(checkpoint: Checkpoint, dialogues: Sequence[Dialogue], exam: "_Exam", folder: Path) -> ChatResult:
    """Train and save; the model is gone when this returns. Collective."""
    sizes, device, scribe, share = exam.sizes, exam.device, exam.scribe, Share(exam.sizes.num_parts, dist.get_rank(), dist.get_world_size())
    fitting = (tokens for _, parts in scribe.fitting(dialogues, packing.shuffled(len(dialogues))) for tokens in parts)
    num_rows = sizes.schedule.num_steps * sizes.num_parts * sizes.batch_size  # of all steps of all ranks
    rows = list(islice(packing.pack(fitting, sizes.sequence), num_rows))
    module = load(checkpoint, device, in_bf16=sizes.adapter.in_bf16)
    packing_error, before = exam.packing_error(module), exam.answered(module)
    torch.manual_seed(_SEED)
    module.model = adapters.adapted(module.model, sizes.adapter)
    if sizes.recomputes:
        adapters.recompute(module)
    parts = packing.batches(rows, sizes.batch_size, sizes.sequence, exam.padding)
    steps, autocast = packing.steps(parts, share), sizes.adapter.in_bf16
    tuned = tune(module, replicated, steps, sizes.schedule, divisor=share.divisor, autocast=autocast, device=device)
    after, num_bytes = exam.answered(module), adapters.save(module, folder)
    seconds, *of_ranks = over_ranks([statistics.median(tuned.steps_s), *tuned.losses], device)
    num_tokens = sum(len(tokens.ids) for row in rows for tokens in row)
    return ChatResult(
        expected=exam.expected,
        before=before,
        after=after,
        loaded_loss=math.nan,
        num_bytes=num_bytes,
        losses=list(map(statistics.fmean, of_ranks)),
        tuned=tuned,
        learned_share=packing.num_learned(parts) / sum(tokens.num_said for row in rows for tokens in row),
        packing_error=packing_error,
        part_too_long=scribe.num_too_long / scribe.num_seen,
        tokens_per_s=num_tokens / sizes.schedule.num_steps / max(seconds) / share.world_size,
        peak_bytes=peak_bytes(device),
    )


class _Exam:
    """The loss of held-out dialogues and the answers to prompts, for a model at any time. Collective throughout."""

    def __init__(self, checkpoint: Checkpoint, held_out: Sequence[Dialogue], sizes: Sizes, device: torch.device) -> None:
        # As tokenizer.json is: AutoTokenizer of transformers 5 replaces the word splitting of that file for a model of type qwen2.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(checkpoint.folder), local_files_only=True)
        self._tokenizer = cast(PreTrainedTokenizerBase, tokenizer)
        self.scribe, self.sizes, self.device = (
            Scribe(self._tokenizer, checkpoint.template, checkpoint.vocabulary, sizes.sequence),
            sizes,
            device,
        )
        fitting = list(self.scribe.fitting(held_out, range(len(held_out)), sizes.num_new))
        self._alone = [tokens for _, parts in fitting for tokens in parts]
        rank, world_size = dist.get_rank(), dist.get_world_size()
        asked = [dialogue for dialogue, _ in fitting[: sizes.num_prompts]]
        if not any(dialogue.messages[dialogue.answers[0]].calls for dialogue in asked):
            seen = f"the first answer to none of {len(asked):,} held-out prompts that fit into {sizes.sequence:,} tokens is a call"
            raise packing.FitError(f"{seen}; raise lora_model.sequence, held_out or num_prompts")
        self.expected = tuple(dialogue.messages[dialogue.answers[0]] for dialogue in asked[rank::world_size])
        self._prompts = [self.scribe.prompt(dialogue) for dialogue in asked[rank::world_size]]
        last = {[target for target in tokens.targets if target != IGNORED][-1] for tokens in self._alone}
        # A mark of several tokens ends no generation: its last one may stand anywhere in an answer.
        self._ends = (last & self._tokenizer.added_tokens_decoder.keys()) | {self._tokenizer.eos_token_id} - {None}
        self.padding: int = min(self._ends, default=0)
        rows = list(packing.pack(self._alone, sizes.sequence))[rank::world_size]
        self._together = packing.batches(rows, sizes.batch_size, sizes.sequence, self.padding)

    @torch.no_grad()
    def answered(self, module: TokenLoss) -> Answered:
        """Return the loss, and a generated answer to each prompt of this rank, up to the first token that ends one."""
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=self.sizes.num_new,
            eos_token_id=sorted(self._ends) or None,
            pad_token_id=self.padding,
        )
        was_training = module.model.training
        module.model.eval()
        texts = []
        for begin in range(0, len(self._prompts), _AT_ONCE):
            group = self._prompts[begin : begin + _AT_ONCE]
            longest = max(map(len, group))
            missing = [longest - len(prompt) for prompt in group]  # on the left, so that answers begin in one place
            ids = [[self.padding] * num + prompt for num, prompt in zip(missing, group, strict=True)]
            options = {"input_ids": ids, "attention_mask": [[0] * num + [1] * (longest - num) for num in missing]}
            tensors = {name: torch.tensor(rows, device=self.device) for name, rows in options.items()}
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.sizes.adapter.in_bf16):
                generated: Tensor = cast(Any, module.model).generate(**tensors, generation_config=config)
            for tokens in generated[:, longest:].tolist():
                end = next((place for place, token in enumerate(tokens) if token in self._ends), len(tokens))
                texts.append(cast(str, self._tokenizer.decode(tokens[:end], skip_special_tokens=False)))
        module.model.train(was_training)
        return Answered(self.loss(module), tuple(texts))

    def loss(self, module: TokenLoss) -> float:
        """Return the loss of all held-out dialogues, over all ranks."""
        own = [self._summed(module, self._together), float(packing.num_learned(self._together))]
        totals, numbers = over_ranks(own, self.device)
        return sum(totals) / sum(numbers)

    def packing_error(self, module: TokenLoss) -> float:
        """Return the relative error of the first held-out sequence against its dialogues one by one."""
        first = next(packing.pack(self._alone, self.sizes.sequence))
        together = packing.batches([first], 1, self.sizes.sequence, self.padding)
        alone = [batch for tokens in first for batch in packing.batches([[tokens]], 1, len(tokens.ids), 0)]
        return abs(self._summed(module, together) / self._summed(module, alone) - 1)

    @torch.no_grad()
    def _summed(self, module: nn.Module, batches: Sequence[Batch]) -> float:
        """Return the loss of all learned tokens on this rank."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.sizes.adapter.in_bf16):
            for inputs, targets in batches:
                total += module(inputs.to(self.device), targets.to(self.device))
        return float(total)
