"""Files of dialogues from the field, by each template from the field, whole and spoiled."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.lora.calls import Call, DialogueError, DroppedError, Message
from gpu_acceptance.measure.lora.reading import read
from gpu_acceptance.measure.lora.records import dialogue_of
from gpu_acceptance.measure.lora.template import Template

CASES = Path(__file__).parents[2] / "cases" / "lora"
TEMPLATES = {path.stem: path.read_text() for path in sorted((CASES / "templates").glob("*.jinja"))}
STRIPS = Template(TEMPLATES["strips_thoughts"], {})
OSLO, ROME = Call("get_weather", {"town": "Oslo"}), Call("get_weather", {"town": "Rome"})
ASKED, CALLED = Message("user", "Weather in Oslo?"), Message("assistant", "", (OSLO,))
TIME = Message("assistant", "", (Call("get_time", {}),))
WRONG = Message("assistant", "A wrong answer", is_learned=False)
EXPERT = Message("system", "You are an expert in composing functions. Here is a list of functions:")
GLAIVE = "You are a helpful assistant with access to the following functions. Use them if required"

AGES = (
    "Help me create a query to find documents in an Elasticsearch index where the 'age' field values are within the range of 30 to 40, "
    "inclusive of 30 but exclusive of 40?"
)

READ = {  # file -> the messages of its first dialogue
    "01_openai.jsonl": (ASKED, CALLED),
    "02_openai_parts.jsonl": (ASKED, CALLED),
    "03_openai_developer.jsonl": (Message("system", "Be brief."), ASKED, CALLED),
    "05_openai_weight.jsonl": (ASKED, WRONG, Message("user", "No, look it up."), CALLED),
    "06_xlam.jsonl": (ASKED, CALLED),
    "07_toolace.jsonl": (EXPERT, ASKED, CALLED),
    "08_hermes.jsonl": (Message("system", "You are a function calling AI model. <tools>[...]</tools>"), ASKED, CALLED),
    "09_messages_tools_text.jsonl": (ASKED, CALLED),
    "10_arrow_nulls.jsonl": (ASKED, CALLED, Message("tool", "3 C"), Message("assistant", "It is 3 C.")),
    "11_empty_arguments.jsonl": (Message("user", "What time is it?"), TIME),
    "12_glaive.jsonl": (
        Message("system", GLAIVE),
        *(ASKED, CALLED, Message("tool", '{"degrees": 3}'), Message("assistant", "It is 3 C.")),
    ),
    "13_parallel.jsonl": (
        *(Message("user", "Oslo and Rome?"), Message("assistant", "", (OSLO, ROME)), Message("tool", "3"), Message("tool", "13")),
        Message("assistant", "3 and 13"),
    ),
    "16_reasoning.jsonl": (ASKED, Message("assistant", "", (OSLO,), thought="I need the tool.")),
    "17_calls_in_text.jsonl": (Message("system", "<tools>...</tools>"), ASKED, CALLED),
    "18_names.jsonl": (Message("user", "Go"), Message("assistant", "", (Call("weather.v2.get now", {"town": "Oslo"}),))),
    "19_anthropic.jsonl": (ASKED, CALLED),
    # BFCL v4 (Apache 2.0), simple_java_63, as ToolACE writes functions and calls
    "20_bfcl_keyword.jsonl": (
        Message("system", "You are an expert in composing functions. Here is a list of functions in JSON format that you can invoke:\n."),
        Message("user", AGES),
        Message("assistant", "", (Call("withinQuery", {"field": "age", "from": 30, "to": 40, "includeFrom": True, "includeTo": False}),)),
    ),
    # xlam-function-calling-60k (CC BY 4.0), id 0, in chat form with flat parameters and an empty thought
    "21_xlam_in_chat.jsonl": (
        Message("user", "Where can I find live giveaways for beta access and games?"),
        Message("assistant", "<think></think>\n\n", tuple(Call("live_giveaways_by_type", {"type": kind}) for kind in ("beta", "game"))),
    ),
    # glaive_toolcall_en_demo.json of LLaMA-Factory (Apache 2.0), its third object
    "22_glaive_toolcall.jsonl": (
        Message("user", "I need to calculate the area of a rectangle. The length is 5 units and the breadth is 3 units."),
        Message("assistant", "", (Call("calculate_area", {"shape": "rectangle", "dimensions": [5, 3]}),)),
        Message("tool", '{"area": 15}'),
        Message("assistant", "The area of the rectangle with length 5 units and breadth 3 units is 15 square units."),
    ),
}
PARALLEL = {"13_parallel.jsonl", "21_xlam_in_chat.jsonl"}
ERRORS = {
    "14_list.json": "no call in 1 dialogues: no answer (1: object 2)",
    "15_pretty_list.json": "1 objects, and no dialogue to learn from: an empty message (1: object 1)",
}
NUM_LINES = {"11_empty_arguments.jsonl": 3, "12_glaive.jsonl": 5, "17_calls_in_text.jsonl": 2}


@pytest.mark.parametrize("name", READ)
def test_files_from_the_field_are_read(name):
    found = read(CASES / name)
    assert found.dialogues[0].messages == READ[name]
    assert (len(found.dialogues), found.dropped) == (NUM_LINES.get(name, 1), {})


@pytest.mark.parametrize("name", ERRORS)
def test_files_from_the_field_with_nothing_to_learn(name):
    with pytest.raises(DialogueError) as caught:
        read(CASES / name)
    assert ERRORS[name] in str(caught.value)


def test_each_file_from_the_field_has_its_value():
    assert {path.name for path in CASES.glob("*.json*")} == {*READ, *ERRORS}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", READ)
def test_templates_from_the_field_write_them_or_refuse_them_with_their_words(name, template):
    refusal = "'one call at a time'" if name in PARALLEL and template == "one_call" else ""
    writer = Template(TEMPLATES[template], {})
    if refusal:
        with pytest.raises(DialogueError, match=f"no dialogue to learn from: the chat template refuses it: {refusal}"):
            read(CASES / name, writer.written)
    else:
        assert read(CASES / name, writer.written).dropped == {}


# --- any mixture ---------------------------------------------------------------------------------------------------------------

TEXT = '{"name": "get_weather", "arguments": {"town": "Oslo"}}'
LINES = [line for name in READ for line in (CASES / name).read_text().splitlines()]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["", "x", TEXT, "[]", "assistant", "tool"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["role", "content", "name", "type"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def spoiled(value, draw):
    """The value with one thing in it replaced by any other."""
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.booleans()):
            return {**value, key: draw(JSON)}
        return {**value, key: spoiled(value[key], draw)}
    if isinstance(value, list) and value:
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], spoiled(value[place], draw), *value[place + 1 :]]
    return draw(JSON)


@given(st.data())
def test_no_object_raises_anything_but_its_reason(data):
    """Whatever is read can be written by a template, or has its reason as well."""
    record = spoiled(json.loads(data.draw(st.sampled_from(LINES))), data.draw)
    with contextlib.suppress(DroppedError):
        dialogue = dialogue_of(record, 1)
        names = {tool["function"]["name"] for tool in dialogue.tools}
        assert all(call.name in names for message in dialogue.messages for call in message.calls)
        assert len(dialogue.answers) == sum(len(one.spans) for one in STRIPS.written(dialogue)) > 0


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=6), st.booleans(), st.integers(0, 40))
def test_each_line_is_read_or_dropped_once_in_any_order_torn_or_as_a_list(tmp_path_factory, lines, is_list, torn):
    path = tmp_path_factory.getbasetemp() / "mixture.json"
    text = f"[{','.join(lines)}]" if is_list else "\n".join(lines)
    path.write_text(text[: len(text) - torn])
    try:
        found = read(path)
    except DialogueError as error:
        if torn or "no call in" in str(error):
            return
        raise
    assert found.num_lines == len(found.dialogues) + found.num_dropped == len(lines)
    dropped = [number for places in found.dropped.values() for number in places]
    assert sorted([*(one.line for one in found.dialogues), *dropped]) == list(range(1, len(lines) + 1))
