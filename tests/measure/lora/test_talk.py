"""The tokens of a dialogue that its assistant says, by the template of a checkpoint; each byte is a token here."""

import pytest
from made_checkpoints import TEMPLATE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gpu_acceptance.measure.lora.calls import Call, Dialogue, Message
from gpu_acceptance.measure.lora.packing import Scribe, TemplateError

ASKED = TEMPLATE + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALL = Message("assistant", "", (Call("add", {"a": 1}),))
SAID = (Message("user", "ä 1"), CALL, Message("tool", "2"), Message("assistant", "It is 2."), Message("user", "thanks"))
ANSWERS = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' + "It is 2.<|im_end|>"


def scribe(template=ASKED, vocabulary=256):
    alphabet = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    return Scribe(PreTrainedTokenizerFast(tokenizer_object=bytewise, chat_template=template), vocabulary)


def talk(messages=SAID):
    return Dialogue(({"type": "function", "function": {"name": "add"}},), messages, line=7)


def test_what_the_assistant_says_is_learned_up_to_its_end_and_nothing_else():
    writer = scribe()
    found = writer.tokens(talk())
    learned = [token for token, is_learned in zip(found.ids, found.learned, strict=True) if is_learned]
    assert writer.tokenizer.decode(learned) == ANSWERS
    assert found.num_said == len(learned) == len(ANSWERS)
    assert writer.tokenizer.decode(found.ids).startswith('{"type": "function"')


def test_a_prompt_is_what_comes_before_its_answer():
    writer = scribe()
    whole = writer.tokens(talk(SAID[:2]))
    prompt = writer.prompt(talk(SAID[:2]))
    assert list(whole.ids[: len(prompt)]) == prompt
    assert whole.learned.index(True) == len(prompt)


def test_a_tokenizer_of_another_model():
    with pytest.raises(TemplateError) as caught:
        scribe(vocabulary=100).tokens(talk())
    assert str(caught.value) == "line 7: token 220, and the model has 100: the tokenizer is of another model"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{% for message in messages | reverse %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
            "line 7: the chat template does not write message 2, an answer, after the messages before it: "
            "the answer cannot be told from its prompt; wanted: a template that writes a dialogue in order",
        ),
        (
            "{% for message in messages if message.role != 'assistant' %}{{ message.role }}: {{ message.content }};{% endfor %}",
            "line 7: the chat template writes no text of its assistant",
        ),
    ],
)
def test_a_template_by_which_nobody_can_tell(template, text):
    with pytest.raises(TemplateError) as caught:
        scribe(template).tokens(talk(SAID[:2]))
    assert str(caught.value) == text
