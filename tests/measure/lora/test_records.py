"""Dialogues as public data sets and chat APIs have them, and what is not one."""

import contextlib
import json
from dataclasses import replace
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
}
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
    refusal = "'one call at a time'" if (name, template) == ("13_parallel.jsonl", "one_call") else ""
    writer = Template(TEMPLATES[template], {})
    if refusal:
        with pytest.raises(DialogueError, match=f"no dialogue to learn from: the chat template refuses it: {refusal}"):
            read(CASES / name, writer.written)
    else:
        assert read(CASES / name, writer.written).dropped == {}


# --- one object of each format -------------------------------------------------------------------------------------------------

TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}
USER, HUMAN = {"role": "user", "content": "Weather in Oslo?"}, {"from": "human", "value": "Weather in Oslo?"}
CALL = {"name": "get_weather", "arguments": {"town": "Oslo"}}
TEXT = json.dumps(CALL)
RESULT = Message("tool", "3")
COLD, BARE = Message("assistant", "3"), Message("assistant", "", (Call("get_weather", {}),))


def chat(*messages, tools=(TOOL,), **more):
    return {"messages": [USER, *messages], "tools": list(tools), **more}


def says(content, **more):
    return {"role": "assistant", "content": content, **more}


def asks(**function):
    return says(None, tool_calls=[{"function": {"name": "get_weather", **function}}])


OBJECTS = {  # as the page or the issue that is named has it -> the messages after the user's
    "learn.microsoft.com, fine-tuning-functions: function_call and functions": (
        {
            "messages": [
                USER,
                {"role": "assistant", "function_call": {"name": "get_weather", "arguments": '{"town": "Oslo"}'}},
                {"role": "function", "name": "get_weather", "content": "3"},
                says("3", function_call=None),
            ],
            "functions": [TOOL],
        },
        (CALLED, RESULT, COLD),
    ),
    "NeMo AutoModel agent_chat: tool_call in a row and tool_response of ms-swift": (
        chat(
            *({"role": "tool_call", "content": json.dumps({**CALL, "arguments": {"town": town}})} for town in ("Oslo", "Rome")),
            *({"role": "tool_response", "content": "3"} for _ in range(2)),
            says("3"),
        ),
        (Message("assistant", "", (OSLO, ROME)), RESULT, RESULT, COLD),
    ),
    "LLaMA-Factory and APIGen-MT: function_call and observation": (
        {
            "conversations": [
                HUMAN,
                {"from": "function_call", "value": TEXT},
                {"from": "observation", "value": "3"},
                {"from": "gpt", "value": "3"},
            ],
            "tools": json.dumps([TOOL]),
            "system": "",
        },
        (CALLED, RESULT, COLD),
    ),
    "Hermes: functions in the text of the system, results between marks": (
        {
            "conversations": [
                {"from": "system", "value": f"<tools>\n{json.dumps(TOOL)}\n</tools>"},
                HUMAN,
                {"from": "gpt", "value": f"<tool_call>\n{TEXT}\n</tool_call>"},
                {"from": "tool", "value": "<tool_response>\n3\n</tool_response>"},
                {"from": "gpt", "value": "3"},
            ]
        },
        (CALLED, RESULT, COLD),
    ),
    "hypervariance/function-calling-sharegpt: function_response": (
        {
            "conversations": [HUMAN, {"from": "gpt", "value": f"<functioncall> {TEXT}"}, {"from": "function_response", "value": "3"}],
            "tools": [TOOL],
        },
        (CALLED, RESULT),
    ),
    "StarfleetAI/function-calling: fn_start": (chat(says(f"<|fn_start|>{TEXT}<|fn_end|>")), (CALLED,)),
    "Team-ACE/ToolACE as one list of messages in text": (
        {"messages": json.dumps([USER, asks(arguments='{"town": "Oslo"}')]), "tools_json": json.dumps([TOOL])},
        (CALLED,),
    ),
    "parts that are calls and results": (
        chat(
            says([{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t", "name": "get_weather", "input": {"town": "Oslo"}}]),
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "3"}]}]},
            says("3"),
            tools=[{"name": "get_weather", "input_schema": {}}],
            system="",
        ),
        (Message("assistant", "I look.", (OSLO,)), RESULT, COLD),
    ),
    "ml-explore/mlx-lm#1375: Mistral's mark": (chat(says(f'[TOOL_CALLS] [{TEXT[:-1]}, "id": "a"}}]')), (CALLED,)),
    "llama.cpp#14349: Mistral's mark since its version 11": (
        chat(says('[TOOL_CALLS]get_weather[CALL_ID]a[ARGS]{"town": "Oslo"}')),
        (CALLED,),
    ),
    "Llama 3.1: a bare object, and a function as a tag": (
        chat(says('{"name": "get_weather", "parameters": {"town": "Oslo"}}')),
        (CALLED,),
    ),
    "Llama 3.1: a function as a tag": (chat(says('<function=get_weather>{"town": "Oslo"}</function>')), (CALLED,)),
    "Phi-4-mini": (chat(says(f"<|tool_call|>[{TEXT}]<|/tool_call|>")), (CALLED,)),
    "Nemotron": (chat(says(f"<TOOLCALL>[{TEXT}]</TOOLCALL>")), (CALLED,)),
    "LFM2": (chat(says('<|tool_call_start|>[get_weather(town="Oslo")]<|tool_call_end|>')), (CALLED,)),
    "a call beside the same one in the text": (
        chat({**asks(arguments={"town": "Oslo"}), "content": f"<tool_call>{TEXT}</tool_call>"}),
        (CALLED,),
    ),
    "a thought, a text and a call": (
        chat(says(f"<think>\nHm.\n</think>\n\nI look.\n<tool_call>{TEXT}</tool_call>")),
        (Message("assistant", "<think>\nHm.\n</think>\n\nI look.", (OSLO,)),),
    ),
    "langfuse#10452: arguments that are the text null": (chat(asks(arguments="null")), (BARE,)),
    "ai-sdk-provider#310: no arguments": (chat(asks()), (BARE,)),
    "an empty text of arguments": (chat(asks(arguments=" ")), (BARE,)),
    "a result that is an object": (chat(asks(), {"role": "tool", "content": {"a": 1}}), (BARE, Message("tool", '{"a": 1}'))),
    "weights of ms-swift": (
        chat(says("x", loss=False), USER, says("3", loss=True)),
        (replace(COLD, content="x", is_learned=False), ASKED, COLD),
    ),
    "functions beside an empty list of tools": ({**chat(asks(), tools=[]), "functions": [TOOL]}, (BARE,)),
    "a null weight": (chat(says("3", weight=None)), (COLD,)),
}


@pytest.mark.parametrize(("record", "said"), OBJECTS.values(), ids=OBJECTS)
def test_each_format_is_read(record, said):
    found = dialogue_of(record, 1)
    assert tuple(message for message in found.messages if message.role != "system") == (ASKED, *said)
    assert found.tools[0]["function"]["name"] == "get_weather"


def test_a_role_of_functions_without_one():
    with pytest.raises(DroppedError, match=r"^a call that is no JSON$"):
        dialogue_of(chat({"role": "tool_call", "content": "weather!"}), 1)


DROPPED = {
    "a call in the text that cannot be read": chat(says("<tool_call>{</tool_call>")),
    "calls in the text and others beside it": chat({**asks(), "content": f"<tool_call>{TEXT}</tool_call>"}),
    "calls in tool_calls and in function_call": chat({**asks(), "function_call": CALL}),
    "a weight other than 0 and 1": chat(says("3", weight=0.5)),
    "no answer with a weight": chat(says("3", weight=0)),
    "content that is no text": chat({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, says("x")),
    "tools that are no list": {**chat(says("x")), "tools": "{"},
    "answers that are no list": {"query": "x", "answers": "{}", "tools": "[]"},
    "an object of no known format": {"prompt": "x", "completion": "y"},
    "functions that are no JSON": {"messages": [{"role": "system", "content": "<tools>{</tools>"}, USER, says("x")]},
}


@pytest.mark.parametrize(("reason", "record"), DROPPED.items(), ids=DROPPED)
def test_what_cannot_be_learned_has_its_reason(reason, record):
    with pytest.raises(DroppedError, match=f"^{reason}$"):
        dialogue_of(record, 1)


# --- nulls, types and names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "is_kept"),
    [
        ({"type": "string"}, False),
        (None, False),
        ({"type": ["string", "null"]}, True),
        ({"type": "string", "nullable": True}, True),
        ({"enum": ["a", None]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
    ],
)
def test_a_null_is_left_out_unless_the_function_takes_it(schema, is_kept):
    """Arrow gives each call the keys of all others."""
    tool = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": schema, "b": {"properties": {"a": schema}}, "c": {"items": schema}}},
    }
    arguments = {"a": None, "b": {"a": None, "z": None}, "c": [None, 1]}
    call = {"function": {"name": "f", "arguments": arguments}}
    found = dialogue_of(chat(says("", tool_calls=[call]), tools=[tool]), 1)
    kept = {"a": None, "b": {"a": None}, "c": [None, 1]}
    assert found.messages[1].calls[0].arguments == (kept if is_kept else {"b": {}, "c": [None, 1]})
    declared = found.tools[0]["function"]["parameters"]["properties"]
    assert ("a" in declared) == (schema is not None)


def test_functions_of_xlam_have_a_schema():
    flat = {"n": {"type": "int"}, "l": {"type": "List[str], optional"}, "d": {"type": "str", "default": "x"}, "o": {"type": "Any"}}
    record = {"query": "Weather in Oslo?", "answers": [{"name": "f", "arguments": {}}], "tools": [{"name": "f", "parameters": flat}]}
    parameters = dialogue_of(record, 1).tools[0]["function"]["parameters"]
    assert {name: told.get("type") for name, told in parameters["properties"].items()} == {
        "n": "integer",
        "l": "array",
        "d": "string",
        "o": None,
    }
    assert parameters["required"] == ["n", "o"]


def test_results_have_the_identifier_and_the_name_of_their_call():
    calls = [{"id": name, "function": {"name": "get_weather", "arguments": {}}} for name in "ab"]
    results = [{"role": "tool", "content": "1", "tool_call_id": "b"}, {"role": "tool", "content": "2"}]
    found = dialogue_of(chat(says("", tool_calls=calls), *results), 1).messages
    assert [(one.call_id, one.name) for one in found[2:]] == [("b", "get_weather"), ("a", "get_weather")]


PYTHONIC = {
    '[f(a=1, b="x, (y)"), g()]': (Call("f", {"a": 1, "b": "x, (y)"}), Call("g", {})),
    "[Newton's Law (a=[1, -2.5], b={'c': None, 'd': True})]": (Call("Newton's Law", {"a": [1, -2.5], "b": {"d": True}}),),
    r'[f(a="it\'s \d", b=true, c=null)]': (Call("f", {"a": r"it's \d", "b": True}),),
}


@pytest.mark.parametrize(("text", "calls"), PYTHONIC.items())
def test_calls_of_toolace(text, calls):
    found = dialogue_of(chat(says(text), tools=[{"name": call.name} for call in calls]), 1)
    assert found.messages[1].calls == calls


NO_LITERALS = ("a=b", "a=1, 2", "a=g()", "a=1e999", "a='\\ud800'", "a={1: 2, **x}", "a=" + "[" * 99)


@pytest.mark.parametrize("arguments", NO_LITERALS)
def test_what_is_meant_for_a_call_of_toolace_and_is_none(arguments):
    with pytest.raises(DroppedError, match=r"^a call in the text that cannot be read$"):
        dialogue_of(chat(says(f"[f({arguments})]")), 1)


@pytest.mark.parametrize("text", ["[f(a=1)", "[see (1)]", "[1] f(a=1)", "[link](https://x)"])
def test_a_text_in_brackets(text):
    assert dialogue_of(chat(says(text)), 1).messages[1].content == text


# --- any mixture ---------------------------------------------------------------------------------------------------------------

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
