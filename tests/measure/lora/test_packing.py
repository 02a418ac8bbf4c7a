"""Dialogues as tokens of which the assistant's are learned, packed into rows, and the weights of a step's micro-batches."""

import json
from itertools import islice

import pytest
import torch
from chat_templates import tokenizer_of
from made_checkpoints import TEMPLATE
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gpu_acceptance.measure.lora.calls import Call, Dialogue, Message
from gpu_acceptance.measure.lora.chat import TokenLoss
from gpu_acceptance.measure.lora.packing import IGNORED, FitError, Scribe, Tokens, batches, filled, num_learned, pack, shuffled, steps
from gpu_acceptance.measure.lora.template import Template
from gpu_acceptance.measure.lora.tuning import Share

ASKED = TEMPLATE + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALL = Message("assistant", "", (Call("add", {"a": 1}),))
SAID = (Message("user", "ä 1"), CALL, Message("tool", "2"), Message("assistant", "It is 2."), Message("user", "thanks"))
ANSWERS = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' + "It is 2.<|im_end|>"


def scribe(vocabulary=300):
    """Each byte is a token, and so is each end mark."""
    return Scribe(tokenizer_of(ASKED), Template(ASKED, {}), vocabulary, 1_000)


def talk(messages=SAID):
    return Dialogue(({"type": "function", "function": {"name": "add"}},), messages, line=7)


def test_what_the_assistant_says_is_learned_up_to_its_end_and_nothing_else():
    writer = scribe()
    (found,) = writer.tokens(talk())
    learned = [token for token in found.targets if token != IGNORED]
    assert writer.tokenizer.decode(learned) == ANSWERS
    assert found.num_said == len(learned) == len(ANSWERS.replace("<|im_end|>", "."))
    assert all(target in {IGNORED, following} for target, following in zip(found.targets, [*found.ids[1:], IGNORED], strict=True))
    assert writer.tokenizer.decode(found.ids).startswith('{"type": "function"')


def test_a_prompt_is_what_comes_before_its_answer():
    writer = scribe()
    (whole,), prompt = writer.tokens(talk(SAID[:2])), writer.prompt(talk(SAID[:2]))
    assert whole.ids[: len(prompt)] == prompt
    assert whole.targets[: len(prompt)] == [IGNORED] * (len(prompt) - 1) + [whole.ids[len(prompt)]]


def test_no_token_crosses_the_end_of_a_prompt():
    """Two line breaks are one token of Qwen's: a prompt ends with the first, and an answer without a thought begins with the second."""
    told = json.loads(tokenizer_of(ASKED).backend_tokenizer.to_str())
    told["model"] |= {"vocab": {**told["model"]["vocab"], "ĊĊ": 290}, "merges": [["Ċ", "Ċ"]]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(told)))
    writer = Scribe(tokenizer, Template(ASKED, {}), 300, 1_000)
    messages = (SAID[0], Message("assistant", "\nIt is 2."), Message("user", "x"), Message("assistant", "\n\nNo."))
    (whole,), prompt = writer.tokens(talk(messages)), writer.prompt(talk(messages))
    assert whole.ids[: len(prompt)] == prompt
    assert tokenizer.decode([token for token in whole.targets if token != IGNORED]) == "\nIt is 2.<|im_end|>\n\nNo.<|im_end|>"
    assert whole.num_said == sum(target != IGNORED for target in whole.targets)


def test_a_tokenizer_of_another_model():
    with pytest.raises(FitError, match=r"^line 7: token 256, and the model has 250: the tokenizer is of another model$"):
        scribe(vocabulary=250).tokens(talk(SAID[:2]))


# --- rows --------------------------------------------------------------------------------------------------------------------

DIALOGUES = [Tokens(list(range(1, 1 + size)), [*range(2, 1 + size), IGNORED], num_said=size - 1) for size in (4, 3, 5, 6, 2)]


class OfLine(Scribe):
    """Dialogues by their line."""

    def tokens(self, dialogue):
        return [DIALOGUES[dialogue.line]]


def test_as_many_as_fit_in_their_order_and_what_fills_a_row_up_is_learned_by_nobody():
    rows = list(pack(DIALOGUES, 8))
    assert rows == [DIALOGUES[:2], DIALOGUES[2:3], DIALOGUES[3:]]
    inputs, targets = filled(rows[0], 10, 99)
    assert inputs.tolist() == [[1, 2, 3, 4, 1, 2, 3, 99, 99, 99], [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert targets.tolist() == [2, 3, 4, IGNORED, 2, 3, *[IGNORED] * 4]


def test_those_that_do_not_fit_are_counted_and_none_that_fits_is_an_error():
    talks = [Dialogue((), (), line) for line in range(5)]
    writer = OfLine(None, None, 0, 4)
    assert [(talk.line, len(parts[0].ids)) for talk, parts in writer.fitting(talks, range(5))] == [(0, 4), (1, 3), (4, 2)]
    assert (writer.num_too_long, writer.num_seen) == (2, 5)
    with pytest.raises(FitError, match=r"^none of 5 dialogues fits into 1 tokens; raise lora_model.sequence$"):
        next(OfLine(None, None, 0, 1).fitting(talks, shuffled(5)))


def test_a_prompt_must_leave_room_for_its_answer():
    writer = scribe()
    num_new = 1_000 - len(writer.prompt(talk(SAID[:2])))
    assert len(list(writer.fitting([talk(SAID[:2])], [0], num_new))) == 1
    said = f"none of 1 dialogues fits into 1,000 tokens with an answer of {num_new + 1:,} after its prompt; raise "
    said += "lora_model.sequence or lower lora_model.num_new_tokens"
    with pytest.raises(FitError, match=f"^{said}$"):
        next(writer.fitting([talk(SAID[:2])], [0], num_new + 1))
    assert (writer.num_too_long, writer.num_seen) == (1, 2)


def test_each_time_around_all_are_there_in_another_order():
    drawn = list(islice(shuffled(50), 100))
    assert sorted(drawn[:50]) == sorted(drawn[50:]) == list(range(50))
    assert drawn[:50] != drawn[50:]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_mean_over_ranks_is_that_over_all_tokens_of_a_step(world_size):
    parts = batches(list(pack(DIALOGUES * 2, 8)), 1, 8, 0)[:6]

    def sum_of(*batches):
        return sum(float(targets[targets != IGNORED].sum()) for _, targets in batches)

    found = torch.zeros(2, dtype=torch.float64)
    for rank in range(world_size):
        share = Share(3, rank, world_size)
        for step, own in enumerate(steps(parts, share)):
            found[step] += sum(weight * sum_of(batch) for weight, batch in own) / share.divisor / world_size
    assert found.tolist() == pytest.approx([sum_of(*step) / num_learned(step) for step in (parts[:3], parts[3:])])


def test_dialogues_in_one_sequence_do_not_see_each_other():
    """transformers masks by positions: the loss of all is the sum of the losses of each."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    loss = TokenLoss(Qwen2ForCausalLM(Qwen2Config(vocab_size=100, initializer_range=1.0, attn_implementation="sdpa", **sizes)))
    ((together, targets),) = batches([DIALOGUES], 1, 20, 0)
    alone = sum(float(loss(*batch).detach()) for batch in batches([[one] for one in DIALOGUES], 1, 20, 0))
    assert float(loss(together, targets).detach()) == pytest.approx(alone, rel=1e-5)
    together[1] = torch.arange(20)
    assert float(loss(together, targets).detach()) != pytest.approx(alone, rel=1e-3)
