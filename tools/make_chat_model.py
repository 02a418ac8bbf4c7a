"""Makes a small chat model and dialogues for it, to try `--lora-model` and `--lora-data` with: `make_chat_model.py FOLDER`.

FOLDER/model is a whole checkpoint in the format of Hugging Face: a Qwen2 of a million parameters, a tokenizer, a chat template with
functions. FOLDER/dialogues.jsonl are requests, most of which are to be answered with a call. The model has learned to answer them in plain
words that name what was asked for, and has never seen a call: that is what a fine-tuning has to teach it. Takes about a minute of one CPU core.
"""

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gpu_acceptance.dialogues.made import made

_SEED = 0
_VOCABULARY = 1024
_SEQUENCE = 256  # the longest that the model takes
_NUM_PRETRAINED = 6_000  # dialogues
_BATCH, _NUM_STEPS, _WARMUP, _LEARNING_RATE = 32, 600, 40, 4e-3
_END, _PAD = "<|im_end|>", "<|endoftext|>"
_MARKS = ("<|im_start|>", _END, _PAD)
_FENCES = ("<tool_call>", "</tool_call>")
_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }})
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def main(folder: Path, num_dialogues: int, num_steps: int) -> None:
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder}: is there and not empty; wanted: a new folder")
    (folder / "model").mkdir(parents=True)
    lines = made(_NUM_PRETRAINED + num_dialogues, _SEED)
    kept, others = lines[:num_dialogues], lines[num_dialogues:]
    with (folder / "dialogues.jsonl").open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
    tokenizer = _tokenizer(lines)
    tokenizer.save_pretrained(folder / "model")
    model = _pretrained(tokenizer, [_in_words(line) for line in others], num_steps)
    model.save_pretrained(folder / "model")
    print(f"{folder}: {sum(weights.numel() for weights in model.parameters()):,} parameters, {len(kept):,} dialogues")


def _tokenizer(lines: Sequence[dict[str, Any]]) -> PreTrainedTokenizerFast:
    """Bytes in pairs, learned from these dialogues with their calls, and digits one by one."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[*_MARKS, *_FENCES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((json.dumps(line) for line in lines), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=_END, pad_token=_PAD, chat_template=_TEMPLATE)
    return tokenizer


def _in_words(line: dict[str, Any]) -> dict[str, Any]:
    """The same request, answered by what was asked for in plain words."""
    messages = line["messages"][:2]
    answer = dict(messages[1])
    calls = answer.pop("tool_calls", ())
    if calls:
        function = calls[0]["function"]
        answer["content"] = " ".join([function["name"], *(f"{name} {value}" for name, value in function["arguments"].items())])
    return {**line, "messages": [messages[0], answer]}


def _pretrained(tokenizer: PreTrainedTokenizerFast, lines: Sequence[dict[str, Any]], num_steps: int) -> nn.Module:
    torch.manual_seed(_SEED)
    model = Qwen2ForCausalLM(_config(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95))
    samples = [_encoded(tokenizer, line) for line in lines]
    for step, batch in enumerate(itertools.islice(_batches(samples, tokenizer.pad_token_id), num_steps)):
        rate = min((step + 1) / _WARMUP, (1 + math.cos(math.pi * step / num_steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * rate
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == num_steps - 1:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    return model


def _config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=_SEQUENCE,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )


def _encoded(tokenizer: PreTrainedTokenizerFast, line: dict[str, Any]) -> tuple[list[int], int]:
    """Tokens, and how many of them are the prompt."""
    how = {"tools": line["tools"], "tokenize": False}
    prompt = tokenizer.apply_chat_template(line["messages"][:1], add_generation_prompt=True, **how)
    whole = tokenizer.apply_chat_template(line["messages"], **how)
    tokens = tokenizer(whole, add_special_tokens=False)["input_ids"]
    return tokens, len(tokenizer(prompt, add_special_tokens=False)["input_ids"])


def _batches(samples: Sequence[tuple[list[int], int]], pad: int) -> Iterator[dict[str, Tensor]]:
    """Without end; the answers alone count."""
    draw = random.Random(_SEED)  # noqa: S311 - nothing here is a secret
    while True:
        chosen = draw.sample(samples, _BATCH)
        longest = max(len(tokens) for tokens, _ in chosen)
        inputs = torch.full((_BATCH, longest), pad)
        labels = torch.full((_BATCH, longest), -100)
        for row, (tokens, begin) in enumerate(chosen):
            inputs[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, begin : len(tokens)] = inputs[row, begin : len(tokens)]
        yield {"input_ids": inputs, "labels": labels}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dialogues", type=int, default=600, metavar="N", help="how many to write (600)")
    parser.add_argument("--steps", type=int, default=_NUM_STEPS, metavar="N", help=f"of training ({_NUM_STEPS})")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.dialogues, arguments.steps)
