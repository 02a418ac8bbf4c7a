"""Makes a small chat model and dialogues for it, to try `--lora-model` and `--lora-data` with: `python -m tools.make_chat_model FOLDER`.

FOLDER/model is a whole checkpoint in the format of Hugging Face: a Qwen2 of half a million parameters, a tokenizer, a chat template with
functions. FOLDER/dialogues.jsonl are requests, most of which are to be answered with a call. The model has learned to answer them in plain
words that name what was asked for; one in eight was answered with a call, too few for it to make any: that is for a fine-tuning to teach.

On a GPU it may be larger: `--width=1024 --layers=12` has 1.14e8 parameters. `--steps=0` leaves random weights.
"""

import argparse
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tools.made_dialogues import made

_SEED = 0
_VOCABULARY = 1_280  # at most; the words and numbers of all dialogues are one token each
_SEQUENCE = 256  # the longest that the model takes
_NUM_PRETRAINED = 4_000  # dialogues
_WIDTH, _LAYERS = 128, 3
_CALLS_EVERY = 8  # dialogues; in all others the answer is in words, which is likelier then
_BATCH, _NUM_STEPS, _WARMUP = 32, 200, 20
_LEARNING_RATE, _MATRIX_RATE = 6e-3, 1e-2  # of AdamW, and of Muon
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
{%- for call in message.tool_calls or [] %}{% set function = call.function -%}
<tool_call>{{ {"name": function.name, "arguments": function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def main(folder: Path, num_dialogues: int, num_steps: int, width: int, layers: int) -> None:
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder}: is there and not empty; wanted: a new folder")
    (folder / "model").mkdir(parents=True)
    lines = made(_NUM_PRETRAINED + num_dialogues, _SEED)
    kept, others = lines[:num_dialogues], lines[num_dialogues:]
    with (folder / "dialogues.jsonl").open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
    tokenizer = _tokenizer(lines)
    tokenizer.save_pretrained(folder / "model")
    model = _pretrained(tokenizer, _answered(others), num_steps, width, layers)
    model.save_pretrained(folder / "model")
    print(f"{folder}: {sum(weights.numel() for weights in model.parameters()):,} parameters, {len(kept):,} dialogues")


def _tokenizer(lines: Sequence[dict[str, Any]]) -> PreTrainedTokenizerFast:
    """Pairs of bytes inside words, and inside what is between them: a word is the same token in a request and in a call."""
    bpe = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r"\w+|\W+"), behavior="isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[*_MARKS, *_FENCES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(lines), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=_END, pad_token=_PAD, chat_template=_TEMPLATE)
    return tokenizer


def _texts(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    template = jinja2.Template(_TEMPLATE)
    for line in lines:
        yield template.render(messages=line["messages"], tools=line["tools"])
        yield template.render(messages=_in_words(line)["messages"])


def _answered(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the model learns to answer them: mostly in words."""
    return [line if number % _CALLS_EVERY == 0 else _in_words(line) for number, line in enumerate(lines)]


def _in_words(line: dict[str, Any]) -> dict[str, Any]:
    """A request answered in plain words by what was asked for."""
    messages = line["messages"][:2]
    answer = dict(messages[1])
    calls = answer.pop("tool_calls", ())
    if calls:
        function = calls[0]["function"]
        answer["content"] = f"{function['name']} with {json.dumps(function['arguments'])}"
    return {**line, "messages": [messages[0], answer]}


def _pretrained(tokenizer: PreTrainedTokenizerFast, lines: Sequence[dict[str, Any]], num_steps: int, width: int, layers: int) -> nn.Module:
    torch.manual_seed(_SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Qwen2ForCausalLM(_config(tokenizer, width, layers)).to(device)
    matrices = [weights for name, weights in model.named_parameters() if weights.ndim == 2 and "layers" in name]
    others = [weights for name, weights in model.named_parameters() if weights.ndim != 2 or "layers" not in name]
    optimizers = [Muon(matrices, _MATRIX_RATE), torch.optim.AdamW(others, lr=_LEARNING_RATE, betas=(0.9, 0.95))]
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, num_steps)) for optimizer in optimizers]
    for step, batch in enumerate(itertools.islice(_batches(tokenizer, lines), num_steps)):
        loss = model(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepped in (*optimizers, *schedules):
            stepped.step()
        model.zero_grad()
        if step % 50 == 0 or step == num_steps - 1:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    return model


def _rate(step: int, num_steps: int) -> float:
    """A warm-up, and a straight way down."""
    return min((step + 1) / _WARMUP, 1 - step / max(num_steps, 1))


class Muon(torch.optim.Optimizer):
    """Steps along the nearest orthogonal matrix (Jordan 2024, https://kellerjordan.github.io/posts/muon), as large as AdamW's (Liu et al.
    2025, arXiv 2502.16982). Copying is learned in half the steps. In fp32: that of torch computes in bf16, which many CPUs have no
    instruction for.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nothing is evaluated again
        for group in self.param_groups:
            for weights in group["params"]:
                momentum = self.state[weights].setdefault("momentum", torch.zeros_like(weights))
                momentum.lerp_(weights.grad, 0.1)
                orthogonal = _orthogonal(weights.grad.lerp(momentum, 0.9))
                weights.sub_(orthogonal, alpha=group["lr"] * 0.2 * max(weights.shape) ** 0.5)


def _orthogonal(matrix: Tensor) -> Tensor:
    """About so, by five steps of Newton and Schulz."""
    if matrix.shape[0] > matrix.shape[1]:
        return _orthogonal(matrix.T).T
    found = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = found @ found.T
        found = 3.4445 * found + (-4.7750 * square + 2.0315 * square @ square) @ found
    return found


def _config(tokenizer: PreTrainedTokenizerFast, width: int, layers: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=_SEQUENCE,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=2 * width,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
        initializer_range=0.06,  # of 0.02 the first 50 steps learn half as much
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


def _batches(tokenizer: PreTrainedTokenizerFast, lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Tensor]]:
    """Without end; the answers alone count."""
    draw = random.Random(_SEED)  # noqa: S311 - nothing here is a secret
    while True:
        chosen = [_encoded(tokenizer, line) for line in draw.sample(lines, _BATCH)]
        longest = max(len(tokens) for tokens, _ in chosen)
        inputs = torch.full((_BATCH, longest), tokenizer.pad_token_id)
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
    parser.add_argument("--width", type=int, default=_WIDTH, metavar="N", help=f"of the model, a multiple of 8 ({_WIDTH})")
    parser.add_argument("--layers", type=int, default=_LAYERS, metavar="N", help=f"of the model ({_LAYERS})")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.dialogues, arguments.steps, arguments.width, arguments.layers)
