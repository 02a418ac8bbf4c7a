"""What a model answers, token by token the likeliest (greedy decoding)."""

from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

_AT_ONCE = 32  # prompts


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
