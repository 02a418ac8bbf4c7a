import pytest

from gpu_acceptance.measure.lora.calls import Call, Message, ScoreError, score, tally

NONE = Message("assistant", "No.")


def asks(*calls):
    return Message("assistant", "", tuple(Call(name, arguments) for name, arguments in calls))


ADD = asks(("add", {"a": 1, "b": "x"}))


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
    found = scored([ADD] * 6 + [NONE] * 4, answers)
    assert (found.parseable, found.right_function, found.right_arguments) == (4 / 6, 3 / 6, 2 / 6)
    assert (found.precision, found.recall) == (5 / 7, 5 / 6)
    assert found.f1 == pytest.approx(2 / (1 / found.precision + 1 / found.recall))
    assert found.right == 4 / 10
    counts = found.tally
    assert (counts.num_prompts, counts.num_expected, counts.num_called, counts.num_parsed, counts.num_rightly_called) == (10, 6, 7, 5, 5)


def test_all_right():
    found = scored([ADD, NONE], [RIGHT, "No."])
    assert {found.parseable, found.right_function, found.right_arguments, found.precision, found.recall, found.f1, found.right} == {1}


def test_all_wrong_is_a_score_as_long_as_there_is_a_call():
    found = scored([ADD, NONE], ["No.", RIGHT])
    assert {found.parseable, found.right_function, found.right_arguments, found.precision, found.recall, found.f1, found.right} == {0}


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
    assert scored([asks(("add", arguments))], [says("add", told)]).right_arguments == is_right


def test_several_calls_are_right_in_any_order_and_as_often():
    wanted = asks(("add", {"a": 1}), ("add", {"a": 2}), ("sub", {}))
    one, two, three = says("add", '{"a": 1}'), says("add", '{"a": 2}'), says("sub", "{}")
    assert scored([wanted], [three + two + one]).right == 1
    for answer in (one + two, one + one + three, one + two + three + three):
        found = scored([wanted], [answer])
        assert (found.right_arguments, found.right, found.parseable) == (0, 0, 1)
    assert scored([wanted], [one + one + three]).right_function == 1
    assert scored([wanted], [one + two]).right_function == 0


def test_nothing_expected_is_no_score():
    with pytest.raises(ScoreError, match=r"^none of 2 prompts expects a call: there is nothing to score$"):
        scored([NONE, NONE], [RIGHT, "No."])
    with pytest.raises(ScoreError, match=r"^none of 0 prompts expects"):
        scored([], [])


def test_no_parsed_call_is_no_score():
    text = "no call could be parsed, 1 of 3 answers try to call; 2 calls were expected: there is nothing to score"
    with pytest.raises(ScoreError, match=f"^{text}$"):
        scored([ADD, ADD, NONE], ["No.", BROKEN, "No."])


def test_a_tally_may_be_of_nothing():
    assert tally([ADD, NONE], ["No.", "No."]).num_right == 1
    assert tally([], []).num_prompts == 0


def test_as_many_answers_as_prompts():
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        tally([ADD, NONE], ["No."])
