import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.lora.calls import MOST_CALLS, MOST_TEXT, Call, find_calls

ADD = Call("add", {"a": 1, "b": [2.5, None, True]})
ADD_TEXT = '{"name": "add", "arguments": {"a": 1, "b": [2.5, null, true]}}'
SAY = Call("say", {"text": "it's"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"<tool_call>\n{ADD_TEXT}\n</tool_call>", [ADD]),
        (f"<tool_call>{ADD_TEXT}</tool_call>\n<tool_call>{ADD_TEXT}</tool_call><|im_end|>", [ADD, ADD]),
        (f"I add.\n<tool_call>\n{ADD_TEXT}\n</tool_call>\nThat is all.", [ADD]),
        (f"<tool_call>\n{ADD_TEXT}\n", [ADD]),
        (f"<functioncall> {ADD_TEXT} <|endoftext|>\n\n\nUSER: and now", [ADD]),
        (f"<functioncall> {ADD_TEXT} </functioncall>", [ADD]),
        ("""<functioncall> {"name": "add", "arguments": '{"a": 1, "b": [2.5, null, true]}'}""", [ADD]),
        ("""<functioncall> {"name": "say", "arguments": '{"text": "it's"}'} <|endoftext|>""", [SAY]),
        (r"""<functioncall> {"name": "say", "arguments": '{"text": "it\'s"}'}""", [SAY]),
        (r'{"name": "say", "arguments": "{\"text\": \"it\u0027s\"}"}', [SAY]),
        ('{"name": "add", "parameters": {"a": 1, "b": [2.5, null, true]}}<|eot_id|>', [ADD]),
        ('<|python_tag|>{"type": "function", "name": "say", "parameters": {"text": "it\'s"}}<|eom_id|>', [SAY]),
        ('{"name": "stop", "arguments": {}}', [Call("stop", {})]),
    ],
)
def test_calls(text, calls):
    found = find_calls(text)
    assert (list(found.calls), found.problem) == (calls, "")
    assert found.is_attempt


@pytest.mark.parametrize(
    "text", ["", "It is 4.", "{4}", '{"name": "Ada"}', '{"answer": 4}', "a < tool_call >", 'The {"name": "add", "arguments": {}}']
)
def test_what_means_no_call(text):
    found = find_calls(text)
    assert (found.calls, found.problem) == ((), "")
    assert not found.is_attempt


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call></tool_call>", "no JSON: column 1: Expecting value"),
        (f"{ADD_TEXT}</tool_call>", "</tool_call> without <tool_call>"),
        (f"<tool_call>{ADD_TEXT}</tool_call></tool_call>", "</tool_call> without <tool_call>"),
        (f"<tool_call>{ADD_TEXT}</tool_call><tool_call>{ADD_TEXT[:-1]}</tool_call>", "no JSON: column 62: Expecting ',' delimiter"),
        (f"<tool_call>{ADD_TEXT} and more", "no JSON: column 63: more after the value: ' and more'"),
        ("<tool_call>[1]</tool_call>", "a call that is no object"),
        ('<tool_call>{"name": "add"}</tool_call>', "an object without a name, or without arguments"),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "an object without a name, or without arguments"),
        ('<tool_call>{"name": ["add"], "arguments": {}}</tool_call>', "an object without a name, or without arguments"),
        ('{"name": "add", "arguments": {}, "parameters": {}}', "an object without a name, or without arguments"),
        ('{"name": "add", "arguments": [1]}', "arguments that are no object"),
        ('{"name": "add", "arguments": null}', "arguments that are no object"),
        ('{"name": "add", "arguments": "[1]"}', "arguments that are no object"),
        ('{"name": "add", "arguments": "a=1"}', "no JSON: column 1: Expecting value"),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "no JSON: key 'a' is given twice"),
        ('{"name": "add", "arguments": {"a": NaN}}', "no JSON: NaN is no JSON"),
        ("""<functioncall> {"name": "add", "arguments": '{"a": 1'}""", "no JSON: column 8: Expecting ',' delimiter"),
        ("<tool_call>" + "[" * 50_000, "no JSON: nested deeper than 64 levels"),
        (f"<tool_call>{ADD_TEXT}</tool_call>" * (MOST_CALLS + 1), "more than 64 calls"),
        ("x" * (MOST_TEXT + 1), "longer than 131072 characters"),
    ],
    ids=lambda text: text[:60],
)
def test_what_is_meant_for_a_call_and_is_none(text, problem):
    found = find_calls(text)
    assert (found.calls, found.problem) == ((), problem)
    assert found.is_attempt


PIECES = (
    "<tool_call>",
    "</tool_call>",
    "<functioncall>",
    "<|endoftext|>",
    ADD_TEXT,
    '{"name": "',
    '", "arguments": ',
    "'{",
    "}'}",
    "\\",
    "'",
    '"',
    "{",
    "}",
)


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_no_text_raises(text):
    found = find_calls(text)
    assert not (found.calls and found.problem)


@pytest.mark.parametrize("piece", ["<tool_call>", "<|endoftext|>", " ", "'", '{"name": "', "\\", "{", '"arguments": \''])
def test_no_long_text_takes_long(piece):
    """Each would take minutes where time grew with the square of it."""
    assert not find_calls('{"name": "a", "arguments": ' + piece * (MOST_TEXT // len(piece) - 4)).calls


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0<"), max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.builds(Call, WORDS.filter(bool), st.dictionaries(WORDS, VALUES, max_size=3))


def as_qwen(calls):
    return "\n".join(f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in calls)


def as_glaive(calls):
    return "".join(f'<functioncall> {{"name": {json.dumps(call.name)}, "arguments": \'{json.dumps(call.arguments)}\'}} ' for call in calls)


@given(st.lists(CALLS, min_size=1, max_size=3), st.sampled_from([as_qwen, as_glaive]))
def test_what_a_template_prints_is_found(calls, printed):
    assert list(find_calls(printed(calls)).calls) == calls


@given(CALLS, st.sampled_from(["arguments", "parameters"]), st.booleans())
def test_what_a_template_prints_without_fences_is_found(call, key, keeps_letters):
    text = json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=not keeps_letters)
    assert find_calls(text).calls == (call,)
