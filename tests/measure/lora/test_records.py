"""One object of each format in which public data sets and chat APIs have dialogues, and what is none."""

import json
from dataclasses import replace

import pytest

from gpu_acceptance.measure.lora.calls import Call, DroppedError, Message
from gpu_acceptance.measure.lora.records import dialogue_of

OSLO, ROME = Call("get_weather", {"town": "Oslo"}), Call("get_weather", {"town": "Rome"})
ASKED, CALLED = Message("user", "Weather in Oslo?"), Message("assistant", "", (OSLO,))

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
    "LangChain: args, and no function around them": (
        chat(says("", tool_calls=[{"name": "get_weather", "args": {"town": "Oslo"}, "id": "a", "type": "tool_call"}])),
        (CALLED,),
    ),
    "Llama: parameters in a listed call": (
        chat(says("", tool_calls=[{"function": {"name": "get_weather", "parameters": {"town": "Oslo"}}}])),
        (CALLED,),
    ),
    "null arguments in the text": (chat(says('<tool_call>{"name": "get_weather", "arguments": null}</tool_call>')), (BARE,)),
    "LLaMA-Factory: a call without arguments": (chat({"role": "function_call", "content": '{"name": "get_weather"}'}), (BARE,)),
    "two calls between one pair of marks": (
        chat(says(f"<tool_call>\n{TEXT}\n{json.dumps({**CALL, 'arguments': {}})}\n</tool_call>")),
        (Message("assistant", "", (OSLO, *BARE.calls)),),
    ),
    "Hermes: results of two calls in one message": (
        chat(
            says(f"<tool_call>\n{TEXT}\n</tool_call>\n<tool_call>\n{TEXT}\n</tool_call>"),
            {"role": "tool", "content": "<tool_response>\n3\n</tool_response>\n<tool_response>\n3\n</tool_response>"},
            says("3"),
        ),
        (Message("assistant", "", (OSLO, OSLO)), RESULT, RESULT, COLD),
    ),
    "ms-swift: words, and a call as a message of its own": (
        chat(says("I look.", reasoning_content="Hm."), {"role": "tool_call", "content": TEXT}, {"role": "tool_response", "content": "3"}),
        (Message("assistant", "I look.", (OSLO,), thought="Hm."), RESULT),
    ),
    "an answer with weight 0 whose call is bad": (
        chat(says("<tool_call>{</tool_call>", weight=0), USER, says(f"<tool_call>{TEXT}</tool_call>")),
        (Message("assistant", "<tool_call>{</tool_call>", is_learned=False), ASKED, CALLED),
    ),
    "an answer with weight 0 that calls what is not offered": (
        chat(says("", weight=0, function_call={"name": "get_wether", "arguments": "{}"}), USER, says("3")),
        (Message("assistant", "", (Call("get_wether", {}),), is_learned=False), ASKED, COLD),
    ),
    "Arrow: a function_call whose parts are null": (chat(says("3", function_call={"name": None, "arguments": None})), (COLD,)),
    "a chat API's refusal": (chat(says(None, refusal="3")), (COLD,)),
    "a part that is a thought": (
        chat(says([{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "3"}])),
        (replace(COLD, thought="Hm."),),
    ),
    "one function twice, as MCP declares it": (chat(says("3"), tools=[{"name": "get_weather", "inputSchema": {}}] * 2), (COLD,)),
    "functions as str() of Python writes them": (chat(says("3")) | {"tools": str([TOOL])}, (COLD,)),
    "nvidia/When2Call: functions as texts in a list": (
        chat(says(f"<TOOLCALL>[{TEXT}]</TOOLCALL>"), tools=[json.dumps(TOOL)]),
        (CALLED,),
    ),
    "calls as texts in a list": (chat(says("", tool_calls=[TEXT])), (CALLED,)),
    "a result of nothing": (
        chat(asks(), {"role": "tool", "content": None}, says("3")),
        (BARE, Message("tool", ""), COLD),
    ),
    "TRL, dataset formats: prompt and completion": (
        {
            "prompt": [USER, says("Where?"), {"role": "user", "content": "Oslo"}],
            "completion": [asks(arguments={"town": "Oslo"})],
            "tools": [TOOL],
        },
        (Message("assistant", "Where?", is_learned=False), Message("user", "Oslo"), CALLED),
    ),
    "argilla/apigen-function-calling: words where no function fits": (
        {"query": ASKED.content, "answers": "The query cannot be answered.", "tools": json.dumps([TOOL])},
        (Message("assistant", "The query cannot be answered."),),
    ),
}


@pytest.mark.parametrize(("record", "said"), OBJECTS.values(), ids=OBJECTS)
def test_each_format_is_read(record, said):
    found = dialogue_of(record, 1)
    assert tuple(message for message in found.messages if message.role != "system") == (ASKED, *said)
    assert found.tools[0]["function"]["name"] == "get_weather"


def test_a_role_of_functions_without_one():
    with pytest.raises(DroppedError, match=r"^a call that is no JSON$"):
        dialogue_of(chat({"role": "tool_call", "content": "weather!"}), 1)


def test_weights_of_parts_of_an_answer_are_not_ignored():
    """As axolotl has them: offsets of what is learned."""
    with pytest.raises(DroppedError, match=r"^a weight other than 0 and 1$"):
        dialogue_of(chat(says("3", train_detail=[{"begin_offset": 0, "end_offset": 0, "train": True}], train=True)), 1)


def test_a_system_may_be_parts_of_text():
    record = {"system": [{"type": "text", "text": "Be brief."}], **chat(says("3"))}
    assert dialogue_of(record, 1).messages[0] == Message("system", "Be brief.")


DROPPED = {
    "a call in the text that cannot be read": chat(says("<tool_call>{</tool_call>")),
    "calls in the text and others beside it": chat({**asks(), "content": f"<tool_call>{TEXT}</tool_call>"}),
    "calls in tool_calls and in function_call": chat({**asks(), "function_call": CALL}),
    "a weight other than 0 and 1": chat(says("3", weight=0.5)),
    "arguments that are no object": chat(says("", tool_calls=[{"function": {"name": "get_weather", "kwargs": {"town": "Oslo"}}}])),
    "no answer with a weight": chat(says("3", weight=0)),
    "content that is no text": chat({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, says("x")),
    "an answer that is labelled as a bad one": {**chat(says("x")), "label": False},
    "an identifier that is no text": chat(says("", tool_calls=[{"id": [1], "function": CALL}])),
    "parameters of a function that are no object": {**chat(says("x")), "tools": [{"name": "f", "parameters": "["}]},
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


def test_pictures_beside_the_messages_are_no_text():
    """As ms-swift and TRL have them: the answer is about what the model would never see."""
    with pytest.raises(DroppedError, match=r"^content that is no text$"):
        dialogue_of({**chat(says("A cat.")), "images": ["cat.png"]}, 1)
    assert dialogue_of({**chat(says("3")), "images": [], "label": True}, 1).answers == [1]


PERSON = {"type": "object", "properties": {"age": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    "one", [{"$ref": "#/$defs/Person"}, {"allOf": [{"$ref": "#/$defs/Person"}]}, {"anyOf": [PERSON, {"type": "null"}]}]
)
def test_a_null_is_kept_where_a_schema_that_is_referred_to_takes_it(one):
    parameters = {"$defs": {"Person": PERSON, "Loop": {"$ref": "#/$defs/Loop"}}, "properties": {"p": one, "l": {"$ref": "#/$defs/Loop"}}}
    arguments = {"p": {"age": None, "z": None}, "l": None}
    called = says("", tool_calls=[{"function": {"name": "f", "arguments": arguments}}])
    found = dialogue_of(chat(called, tools=[{"name": "f", "parameters": parameters}]), 1)
    assert found.messages[1].calls[0].arguments == {"p": {"age": None}}


def test_parameters_may_be_the_text_of_a_schema():
    tools = [{"name": "f", "parameters": json.dumps(PERSON)}]
    assert dialogue_of(chat(says("x"), tools=tools), 1).tools[0]["function"]["parameters"] == PERSON


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


@pytest.mark.parametrize(("first", "second"), [("a", "b"), (0, 1)])
def test_results_have_the_identifier_and_the_name_of_their_call(first, second):
    calls = [{"id": one, "function": {"name": "get_weather", "arguments": {}}} for one in (first, second)]
    results = [{"role": "tool", "content": "1", "tool_call_id": second}, {"role": "tool", "content": "2"}]
    found = dialogue_of(chat(says("", tool_calls=calls), *results), 1).messages
    assert [(one.call_id, one.name) for one in found[2:]] == [(str(second), "get_weather"), (str(first), "get_weather")]


PYTHONIC = {
    '[f(a=1, b="x, (y)"), g()]': (Call("f", {"a": 1, "b": "x, (y)"}), Call("g", {})),
    "[Newton's Law (a=[1, -2.5], b={'c': None, 'd': True})]": (Call("Newton's Law", {"a": [1, -2.5], "b": {"d": True}}),),
    '[f(from="USD", to="EUR", class=1, in=True)]': (Call("f", {"from": "USD", "to": "EUR", "class": 1, "in": True}),),
    '[f(max-results=5, user.id="x", $top=1), g(城市="北京")]': (
        Call("f", {"max-results": 5, "user.id": "x", "$top": 1}),
        Call("g", {"城市": "北京"}),
    ),
    '[ f ( a = "two\nlines, (b=1)", b = [1, {"c": "d"}], ) ]': (Call("f", {"a": "two\nlines, (b=1)", "b": [1, {"c": "d"}]}),),
    r'[f(a="it\'s \d", b=true, c=null)]': (Call("f", {"a": r"it's \d", "b": True}),),
}


@pytest.mark.parametrize(("text", "calls"), PYTHONIC.items())
def test_calls_of_toolace(text, calls):
    found = dialogue_of(chat(says(text), tools=[{"name": call.name} for call in calls]), 1)
    assert found.messages[1].calls == calls


def test_words_after_a_list_of_calls_stand_beside_them():
    found = dialogue_of(chat(says('[get_weather(town="Oslo")] I will tell.')), 1)
    assert found.messages[1] == Message("assistant", "I will tell.", (OSLO,))


UNKNOWN = ['[get_weather("Oslo")]', '[get_weather (v2)(town="Oslo")]', f"```json\n[{TEXT}]\n```", f"functools[{TEXT}]", f"I look: {TEXT}"]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_calls_a_function_in_a_form_that_is_not_known_is_not_learned_as_words(text):
    with pytest.raises(DroppedError, match=r"^a call in a form that is not known$"):
        dialogue_of(chat(says(text)), 1)
    words = text.replace("get_weather", "see")
    for more in (chat(says(words)), chat(says(text, weight=0), USER, says("3"))):
        assert not dialogue_of(more, 1).messages[1].calls


NO_LITERALS = ("a=1, a=2", "a=b", "a=1, 2", "a=g()", "a=1e999", "a='\\ud800'", "a={1: 2, **x}", "a=" + "[" * 99)


@pytest.mark.parametrize("arguments", NO_LITERALS)
def test_what_is_meant_for_a_call_of_toolace_and_is_none(arguments):
    with pytest.raises(DroppedError, match=r"^a call in the text that cannot be read$"):
        dialogue_of(chat(says(f"[f({arguments})]")), 1)


@pytest.mark.parametrize("text", ["[f(a=1)", "[see (1)]", "[1] f(a=1)", "[link](https://x)"])
def test_a_text_in_brackets(text):
    assert dialogue_of(chat(says(text)), 1).messages[1].content == text
