"""Calls in generated text, their score, and the split of dialogues."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.lora import calls
from gpu_acceptance.measure.lora.calls import Call, Dialogue, DialogueError, Message, find_calls, for_template
from gpu_acceptance.measure.lora.scoring import ScoreError, score, tally

ADD = Call("add", {"a": 1, "b": [2.5, None, True]})
ADD_TEXT = '{"name": "add", "arguments": {"a": 1, "b": [2.5, null, true]}}'
SAY = Call("say", {"text": "it's"})
STOP = Call("stop", {})
NO_CALLS = ("", "It is 4.", "{4}", '{"name": "Ada"}', '{"answer": 4}', "a < tool_call >", 'The {"name": "add", "arguments": {}}')


@pytest.mark.parametrize(
    ("text", "expected"),
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
        ('{"name": "stop", "arguments": {}}', [STOP]),
        ('{"name": "stop", "arguments": null}', [STOP]),
        ('<tool_call>{"name": "stop", "arguments": ""}</tool_call>', [STOP]),
        ('<tool_call>{"name": "stop", "id": "a"}</tool_call>', [STOP]),
        (f'<tool_call>{{"type": "function", "function": {ADD_TEXT}}}</tool_call>', [ADD]),
        (f"<tool_call>\n{ADD_TEXT}\n{ADD_TEXT}\n</tool_call>", [ADD, ADD]),
        ('<|tool_call_start|>[say(text="it\'s")]<|tool_call_end|>', [SAY]),
        *((text, []) for text in NO_CALLS),
    ],
)
def test_calls(text, expected):
    found = find_calls(text)
    assert (list(found.calls), found.problem, found.is_attempt) == (expected, "", bool(expected))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call></tool_call>", "no JSON: column 1: Expecting value"),
        (f"{ADD_TEXT}</tool_call>", "</tool_call> without <tool_call>"),
        (f"<tool_call>{ADD_TEXT}</tool_call></tool_call>", "</tool_call> without <tool_call>"),
        (f"<tool_call>{ADD_TEXT}</tool_call><tool_call>{ADD_TEXT[:-1]}</tool_call>", "no JSON: column 62: Expecting ',' delimiter"),
        (f"<tool_call>{ADD_TEXT} and more", "no JSON: column 63: more after the value: ' and more'"),
        ("<tool_call>[1]</tool_call>", "a call that is no object"),
        ('<tool_call>{"name": "add", "a": 1}</tool_call>', "arguments that are no object"),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "a call without a function's name"),
        ('<tool_call>{"name": ["add"], "arguments": {}}</tool_call>', "a call without a function's name"),
        ('{"name": "add", "arguments": {}, "parameters": {}}', "arguments that are no object"),
        ('{"name": "add", "arguments": [1]}', "arguments that are no object"),
        ('{"name": "add", "arguments": "[1]"}', "arguments that are no object"),
        ('{"name": "add", "arguments": "a=1"}', "no JSON: column 1: Expecting value"),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "no JSON: key 'a' is given twice"),
        ('{"name": "add", "arguments": {"a": NaN}}', "no JSON: NaN is no JSON"),
        ("""<functioncall> {"name": "add", "arguments": '{"a": 1'}""", "no JSON: column 8: Expecting ',' delimiter"),
        ("<tool_call>" + "[" * 50_000, "no JSON: nested deeper than 64 levels"),
        (f"<tool_call>{ADD_TEXT}</tool_call>" * (calls.MOST_CALLS + 1), "more than 64 calls"),
        ("x" * (calls.MOST_TEXT + 1), "longer than 131072 characters"),
    ],
    ids=lambda text: text[:60],
)
def test_what_is_meant_for_a_call_and_is_none(text, problem):
    found = find_calls(text)
    assert (found.calls, found.problem, found.is_attempt) == ((), problem, True)


PIECES = ["<tool_call>", "</tool_call>", "<functioncall>", "<|endoftext|>", ADD_TEXT, '{"name": "', '", "arguments": ', *"\\'\"{}"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_no_text_raises(text):
    found = find_calls(text)
    assert not (found.calls and found.problem)


@pytest.mark.parametrize("piece", ["a='", '\\"', "\\", ")", "(", ",", "f(),", " ", "a="])
def test_no_long_list_of_calls_takes_long(piece):
    assert not find_calls("[f(a=1, " + piece * (calls.MOST_TEXT // len(piece) - 8)).calls


@pytest.mark.parametrize("piece", ["<tool_call>", "<|endoftext|>", " ", "'", '{"name": "', "\\", "{", '"arguments": \''])
def test_no_long_text_takes_long(piece):
    """Each would take minutes where time grew with the square of it."""
    assert not find_calls('{"name": "a", "arguments": ' + piece * (calls.MOST_TEXT // len(piece) - 4)).calls


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0<"), max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.builds(Call, WORDS.filter(bool), st.dictionaries(WORDS, VALUES, max_size=3))


def as_qwen(told):
    return "\n".join(f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in told)


def as_glaive(told):
    return "".join(f'<functioncall> {{"name": {json.dumps(call.name)}, "arguments": \'{json.dumps(call.arguments)}\'}} ' for call in told)


def bare(told):
    return json.dumps({"name": told[0].name, "parameters": told[0].arguments}, ensure_ascii=False) if len(told) == 1 else as_qwen(told)


@given(st.lists(CALLS, min_size=1, max_size=3), st.sampled_from([as_qwen, as_glaive, bare]))
def test_what_a_template_prints_is_found(told, printed):
    assert list(find_calls(printed(told)).calls) == told


NONE = Message("assistant", "No.")


def asks(*told):
    return Message("assistant", "", tuple(Call(name, arguments) for name, arguments in told))


ADD_FUNCTIONAL = asks(("add", {"a": 1, "b": "x"}))


def scored(expected, generated):
    return score(tally(expected, generated))


def says(name, arguments):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


RIGHT = says("add", '{"b": "x", "a": 1.0}')
WRONG_ARGUMENT = says("add", '{"a": 2, "b": "x"}')
WRONG_FUNCTION = says("sub", '{"a": 1, "b": "x"}')
BROKEN = "<tool_call>{</tool_call>"


def test_each_figure_of_answers_that_differ():
    """Ten prompts, six of which are to be answered with a call."""
    answers = [RIGHT, RIGHT, WRONG_ARGUMENT, WRONG_FUNCTION, BROKEN, "No.", "No.", "I can not.", RIGHT, BROKEN]
    expected = [ADD_FUNCTIONAL] * 6 + [NONE] * 4
    shares = {"parseable": 4 / 6, "right_function": 3 / 6, "right_arguments": 2 / 6, "precision": 5 / 7, "recall": 5 / 6, "right": 4 / 10}
    f1 = pytest.approx(2 / (1 / shares["precision"] + 1 / shares["recall"]))
    assert scored(expected, answers) == {**shares, "f1": f1}
    counts = tally(expected, answers)
    assert (counts.num_prompts, counts.num_expected, counts.num_called, counts.num_parsed, counts.num_rightly_called) == (10, 6, 7, 5, 5)


@pytest.mark.parametrize(("answers", "figure"), [([RIGHT, "No."], 1), (["No.", RIGHT], 0)])
def test_all_right_and_all_wrong_as_long_as_there_is_a_call(answers, figure):
    assert set(scored([ADD_FUNCTIONAL, NONE], answers).values()) == {figure}


@pytest.mark.parametrize(
    ("arguments", "told", "is_right"),
    [
        ({"a": 2}, '{"a": 2.0}', True),
        ({"a": 2.5}, '{"a": 2.50}', True),
        ({"a": 1}, '{"a": true}', False),
        ({"a": 0}, '{"a": false}', False),
        ({"a": 1}, '{"a": "1"}', False),
        ({"a": "x"}, '{"a": "X"}', False),
        ({"a": [1, 2]}, '{"a": [2, 1]}', False),
        ({"a": {"b": 1, "c": [3]}}, '{"a": {"c": [3.0], "b": 1}}', True),
        ({"a": 1}, '{"a": 1, "b": null}', False),
        ({"a": "é"}, r'{"a": "\u00e9"}', True),
        ({}, "{}", True),
    ],
)
def test_arguments_are_equal_as_json_is(arguments, told, is_right):
    assert scored([asks(("add", arguments))], [says("add", told)])["right_arguments"] == is_right


def test_several_calls_are_right_in_any_order_and_as_often():
    wanted = asks(("add", {"a": 1}), ("add", {"a": 2}), ("sub", {}))
    one, two, three = says("add", '{"a": 1}'), says("add", '{"a": 2}'), says("sub", "{}")
    assert scored([wanted], [three + two + one])["right"] == 1
    for answer in (one + two, one + one + three, one + two + three + three):
        found = scored([wanted], [answer])
        assert (found["right_arguments"], found["right"], found["parseable"]) == (0, 0, 1)
    assert scored([wanted], [one + one + three])["right_function"] == 1
    assert scored([wanted], [one + two])["right_function"] == 0


@pytest.mark.parametrize(
    ("expected", "answers", "text"),
    [
        ([NONE, NONE], [RIGHT, "No."], "none of 2 prompts expects a call: there is nothing to score"),
        ([], [], "none of 0 prompts expects a call: there is nothing to score"),
        (
            [ADD_FUNCTIONAL, ADD_FUNCTIONAL, NONE],
            ["No.", BROKEN, "No."],
            "no call could be parsed, 1 of 3 answers try to call; 2 calls were expected: there is nothing to score",
        ),
    ],
)
def test_nothing_to_score(expected, answers, text):
    with pytest.raises(ScoreError, match=f"^{text}$"):
        scored(expected, answers)


def test_a_tally_has_as_many_answers_as_prompts_and_none_may_call():
    assert tally([ADD_FUNCTIONAL, NONE], ["No.", "No."]).num_right == 1
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        tally([ADD_FUNCTIONAL, NONE], ["No."])


ANSWER = Message("assistant", "", (Call("add", {"a": 1}),))


def dialogue(prompt, line=1, tools=(), answer=ANSWER, more=()):
    return Dialogue(tools, (Message("system", "Be brief."), Message("user", prompt), answer, *more), line)


MANY = [dialogue(f"number {number}", number) for number in range(1000)]


def lines(dialogues):
    return [one.line for one in dialogues]


def test_each_is_on_one_side_whatever_else_is_there():
    """Both sides are in order. A larger part holds out more beside the same ones."""
    train, held_out = map(lines, calls.split(MANY, 0.1))
    assert train == sorted(train)
    assert sorted(train + held_out) == list(range(1000))
    assert 70 < len(held_out) < 130
    assert set(lines(calls.split(MANY[::-2], 0.1)[1])) == set(held_out) & set(range(1, 1000, 2))
    assert set(held_out) < set(lines(calls.split(MANY, 0.3)[1]))


def test_one_prompt_is_never_on_both_sides():
    """However it is spaced, answered, continued, or offered functions with."""
    no = Message("assistant", "no")
    copies = [dialogue(f" number  {number}\n", number, ({"type": "function"},), no, [ANSWER]) for number in range(1000)]
    train, held_out = map(lines, calls.split([*MANY, *copies], 0.1))
    assert set(train).isdisjoint(held_out)
    assert len(train) == 2 * len(set(train))


@pytest.mark.parametrize(
    ("dialogues", "seen"),
    [
        ([dialogue(f"number {number}", answer=NONE) for number in range(100)], "100 dialogues, [678][0-9] of them to train"),
        (MANY[:1], "1 dialogues, 0 of them (to train|held out)"),
    ],
)
def test_a_side_without_a_call(dialogues, seen):
    with pytest.raises(DialogueError, match=f"^{seen}, and no call in those: more dialogues are needed$"):
        calls.split(dialogues, 0.3)


def test_a_chat_template_takes_the_messages_of_a_dialogue():
    said = dialogue("three", more=(Message("tool", "4"), Message("assistant", "It is 4.")))
    assert said.answers == [2, 4]
    assert for_template(said.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
    ]
