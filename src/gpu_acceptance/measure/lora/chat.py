"""A checkpoint of somebody's, fine-tuned on dialogues over all ranks: what it says of others before and after, and whether that lasts."""

import gc
import statistics
from collections.abc import Collection, Sequence
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
from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.lora import packing
from gpu_acceptance.measure.lora.packing import IGNORED, Fitting, Packed, Scribe, Talk, Tokens
from gpu_acceptance.measure.lora.samples import Course, Share, Tuning
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.models import blocks_of
from gpu_acceptance.measure.train.parallel import replicated
from gpu_acceptance.measure.train.shapes import Adapter
from gpu_acceptance.measure.train.tuned import Schedule, TrainingMemoryError, peak_bytes, prepared

_ADAPTER_BYTES = 16  # of a parameter: itself, its gradient, and AdamW's two moments, in fp32
_LOGIT_BYTES = 8  # of one: in fp32, as the loss takes it, and its gradient
_AT_ONCE = 32  # prompts
_SEED = 0  # of the adapters, the same on all ranks


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


@torch.no_grad()
def answers(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    *,
    ends: Collection[int],
    num_new: int,
    device: torch.device,
) -> list[str]:
    """To each prompt, which are tokens: at most `num_new` more, up to the first of `ends`."""
    how = GenerationConfig(do_sample=False, num_beams=1, max_new_tokens=num_new, eos_token_id=sorted(ends), pad_token_id=min(ends))
    was_training = model.training
    model.eval()
    groups = [prompts[begin : begin + _AT_ONCE] for begin in range(0, len(prompts), _AT_ONCE)]
    found = [tokens for group in groups for tokens in _generated(model, group, how, device)]
    model.train(was_training)
    return [cast(str, tokenizer.decode(_up_to(tokens, ends), skip_special_tokens=False)) for tokens in found]


def _generated(model: nn.Module, prompts: Sequence[Sequence[int]], how: GenerationConfig, device: torch.device) -> list[list[int]]:
    longest = max(map(len, prompts))
    padded_BT, mask_BT = torch.full((len(prompts), longest), how.pad_token_id), torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):  # on the left, so that answers begin in one place
        padded_BT[row, longest - len(prompt) :], mask_BT[row, longest - len(prompt) :] = torch.tensor(prompt), 1
    generated: Tensor = cast(Any, model).generate(input_ids=padded_BT.to(device), attention_mask=mask_BT.to(device), generation_config=how)
    return cast(list[list[int]], generated[:, longest:].tolist())


def _up_to(tokens: Sequence[int], ends: Collection[int]) -> Sequence[int]:
    return tokens[: next((place for place, token in enumerate(tokens) if token in ends), len(tokens))]


@dataclass(frozen=True)
class Dialogues:
    """What is trained, what is held out of it, and what is asked: of those held out, as far as their first answer."""

    trained: Sequence[Talk]
    held_out: Sequence[Talk]
    asked: Sequence[Talk]


@dataclass(frozen=True)
class Sizes:
    """Of a fine-tuning. A step has `num_parts` micro-batches over all ranks, of `batch_size` sequences of so many tokens each."""

    adapter: Adapter
    schedule: Schedule
    sequence: int
    batch_size: int
    num_parts: int
    num_new: int  # tokens of an answer, at most
    recomputes: bool  # activations in the backward
    host_bytes: int  # that this rank may use of its host, where it trains on a CPU


@dataclass(frozen=True)
class Said:
    """Of dialogues that nobody trained."""

    loss: float  # nats for each token that an assistant says, over all ranks
    answers: tuple[str, ...]  # of this rank: those to every world_size-th prompt, from its own on


@dataclass(frozen=True)
class ChatResult:
    """One fine-tuning. The same on all ranks, but answers, digest, `base_changed`, scale and memory are this rank's own."""

    before: Said
    after: Said
    loaded_loss: float  # held out, of the adapters that were saved, on the base as it is loaded again
    num_bytes: int  # of the files of adapters
    losses: tuple[float, ...]  # nats for each token that is learned, by step
    gradient_norms: tuple[float, ...]  # before clipping
    learning_rates: tuple[float, ...]
    learned_share: float  # tokens that are learned, of those that assistants say as counted apart from these
    packing_error: float  # of the loss of dialogues in one sequence to that of each by itself
    part_too_long: float  # of the dialogues that were to be trained, or held out
    tokens_per_s: float  # of one rank, without what fills sequences up
    num_trainable: int
    scale: float  # of B A x, as measured
    base_changed: bool  # whether a bit of the frozen weights is another one in the end
    digest: str  # of this rank's adapters, bit for bit
    peak_bytes: int


def measure(checkpoint: Pretrained, dialogues: Dialogues, sizes: Sizes, folder: Path, device: torch.device) -> ChatResult:
    """Trains with DDP, and saves on each rank what that came to into `folder`, which must be empty. Collective.

    Raises TemplateError, TrainingMemoryError, MissingWeightsError.
    """
    in_bf16 = sizes.adapter.in_bf16
    num_tokens = sizes.batch_size * sizes.sequence
    refuse_too_large(
        checkpoint, rank=sizes.adapter.rank, num_tokens=num_tokens, in_bf16=in_bf16, device=device, host_bytes=sizes.host_bytes
    )
    wanted = f"{checkpoint.folder} with a batch of {sizes.batch_size} sequences of {sizes.sequence} tokens on each rank"
    with prepared(wanted, "lora_model.batch_size or lora_model.sequence", device):
        exam = _Exam(checkpoint, dialogues, sizes, device)
        share = Share(sizes.num_parts, dist.get_rank(), dist.get_world_size())
        fitting = Fitting(exam.scribe, sizes.sequence)
        lessons = _lessons(fitting, dialogues.trained, sizes)
        module = load(checkpoint, device, in_bf16=in_bf16)
        packing_error = exam.packing_error(module)
        before = exam.taken(module)
        torch.manual_seed(_SEED)
        module.model = adapters.adapted(module.model, sizes.adapter)
        base = _digest(adapters.frozen(module))
        if sizes.recomputes:
            adapters.recompute(module)
        parts = packing.batches(lessons, sizes.batch_size, sizes.sequence, exam.padding)
        course = _tuned(module, parts, share, sizes, device)
        after, num_bytes = exam.taken(module), adapters.save(module, folder)
        seconds, *of_ranks = over_ranks([statistics.median(course.steps_s), *course.losses], device)
        result = ChatResult(
            before=before,
            after=after,
            loaded_loss=0,
            num_bytes=num_bytes,
            losses=tuple(map(statistics.fmean, of_ranks)),
            gradient_norms=tuple(course.gradient_norms),
            learning_rates=tuple(map(sizes.schedule.rate, range(sizes.schedule.num_steps))),
            learned_share=sum(int((targets != IGNORED).sum()) for _, targets in parts) / sum(packed.num_said for packed in lessons),
            packing_error=packing_error,
            part_too_long=(fitting.num_too_long + exam.fitting.num_too_long) / (fitting.num_seen + exam.fitting.num_seen),
            tokens_per_s=sum(len(packed.ids) for packed in lessons) / sizes.schedule.num_steps / max(seconds) / dist.get_world_size(),
            num_trainable=sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad),
            scale=adapters.scale(module, blocks_of(module)),
            base_changed=_digest(adapters.frozen(module)) != base,
            digest=_digest(adapters.trained(module)),
            peak_bytes=peak_bytes(device),
        )
        del module
        loaded = load(checkpoint, device, in_bf16=in_bf16)
        adapters.load(loaded, folder, in_bf16=in_bf16)
        return replace(result, loaded_loss=exam.loss(loaded))


def _lessons(fitting: Fitting, talks: Sequence[Talk], sizes: Sizes) -> list[Packed]:
    """As many sequences as all steps of all ranks train."""
    num = sizes.schedule.num_steps * sizes.num_parts * sizes.batch_size
    return list(islice(packing.pack(fitting.of(talks, packing.shuffled(len(talks))), sizes.sequence), num))


def _tuned(module: TokenLoss, parts: Sequence[Batch], share: Share, sizes: Sizes, device: torch.device) -> Course:
    steps = packing.steps(parts, share)
    autocast = sizes.adapter.in_bf16
    return Tuning(replicated(module), steps, sizes.schedule, divisor=share.divisor, autocast=autocast, device=device).rest()


class _Exam:
    """The same questions at each time: what it costs to say what is held out, and what is answered to prompts. Collective throughout."""

    def __init__(self, checkpoint: Pretrained, dialogues: Dialogues, sizes: Sizes, device: torch.device) -> None:
        self._tokenizer: PreTrainedTokenizerBase = tokenizer_of(checkpoint)
        self.scribe, self._sizes, self._device = Scribe(self._tokenizer, checkpoint.vocabulary), sizes, device
        self.fitting = Fitting(self.scribe, sizes.sequence)
        self._alone = list(self.fitting.of(dialogues.held_out, range(len(dialogues.held_out))))
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._prompts = [self.scribe.prompt(talk) for talk in dialogues.asked[rank::world_size]]
        last = {tokens.ids[max(place for place, one in enumerate(tokens.learned) if one)] for tokens in self._alone}  # ends what is said
        self._ends = last | {self._tokenizer.eos_token_id} - {None}
        self.padding: int = min(self._ends)
        packed = list(packing.pack(self._alone, sizes.sequence))
        self._together = packing.batches(packed[rank::world_size], sizes.batch_size, sizes.sequence, self.padding)

    def taken(self, module: TokenLoss) -> Said:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._sizes.adapter.in_bf16):
            said = answers(module.model, self._tokenizer, self._prompts, ends=self._ends, num_new=self._sizes.num_new, device=self._device)
        return Said(self.loss(module), tuple(said))

    def loss(self, module: TokenLoss) -> float:
        """Of all that is held out, over all ranks."""
        totals, numbers = over_ranks(list(self._summed(module, self._together)), self._device)
        return sum(totals) / sum(numbers)

    def packing_error(self, module: TokenLoss) -> float:
        """Of the first sequence that is held out."""
        first = next(packing.pack(self._alone, self._sizes.sequence))
        num = first.positions.count(0)
        together = packing.batches([first], 1, self._sizes.sequence, self.padding)
        alone = [batch for packed in map(_by_itself, self._alone[:num]) for batch in packing.batches([packed], 1, len(packed.ids), 0)]
        return abs(self._summed(module, together)[0] / self._summed(module, alone)[0] - 1)

    @torch.no_grad()
    def _summed(self, module: nn.Module, batches: Sequence[Batch]) -> tuple[float, int]:
        """The loss of all tokens that are to be learned, and how many they are, on this rank."""
        total, number = torch.zeros((), dtype=torch.float64, device=self._device), 0
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._sizes.adapter.in_bf16):
            for inputs, targets in batches:
                total += module(inputs.to(self._device), targets.to(self._device))
                number += int((targets != IGNORED).sum())
        return float(total), number


def _by_itself(tokens: Tokens) -> Packed:
    packed = Packed()
    packed.add(tokens)
    return packed


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    return as_text(hash_tensors([tensor.contiguous() for tensor in tensors]))
