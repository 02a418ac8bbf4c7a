"""Prompts that a model can answer: those of held-out dialogues that fit, whatever the file has beside them."""

import pytest
import torch
import torch.distributed as dist
from chat_templates import TEMPLATES, make_tiny

from gpu_acceptance.measure.lora import chat
from gpu_acceptance.measure.lora.calls import Call, Dialogue, Message
from gpu_acceptance.measure.lora.model_folder import look_at
from gpu_acceptance.measure.lora.packing import FitError
from gpu_acceptance.measure.train.shapes import Adapter
from gpu_acceptance.measure.train.step import Schedule

SEQUENCE, NEW = 1024, 4
TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = Message("assistant", "", (Call("weather", {"town": "Oslo"}),))


@pytest.fixture
def exam(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    make_tiny(tmp_path, TEMPLATES["Qwen2.5"])
    sizes = chat.Sizes(Adapter(2, 4), Schedule(2, 1, 0.1), SEQUENCE, 1, 1, 4, NEW, recomputes=False, host_bytes=10**10)
    yield lambda *held_out: chat._Exam(look_at(tmp_path), held_out, sizes, torch.device("cpu"))
    dist.destroy_process_group()


def dialogue(line, answer=CALL, size=1):
    return Dialogue((TOOL,), (Message("user", f"{line}" * size), answer), line)


def test_dialogues_that_are_too_long_are_no_prompts_and_others_take_their_place(exam):
    found = exam(dialogue(1), dialogue(2, size=60_000), *map(dialogue, range(3, 8)))
    assert (found.scribe.num_too_long, found.scribe.num_seen) == (1, 7)
    prompts = [found._tokenizer.decode(prompt) for prompt in found._prompts]
    assert [prompt.partition("user\n")[2][0] for prompt in prompts] == ["1", "3", "4", "5"]
    assert max(map(len, found._prompts)) + NEW <= SEQUENCE
    assert found.expected == (CALL,) * 4


def test_a_call_is_asked_for_by_a_prompt_that_fits(exam):
    said = Message("assistant", "It is cold.")
    text = "the first answer to none of 1 held-out prompts that fit into 1,024 tokens is a call"
    with pytest.raises(FitError, match=f"^{text}; raise lora_model.sequence, held_out or num_prompts$"):
        exam(dialogue(1, said), dialogue(2, size=60_000))
    assert exam(dialogue(1, said), dialogue(2)).expected == (said, CALL)
