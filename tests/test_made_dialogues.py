"""Dialogues that tools/made_dialogues.py makes: reproducible, distinct, with calls that their schemas allow."""

import pytest

from tools.made_dialogues import MOST, made

LINES = made(600, seed=3)


def calls_of(line):
    return [call["function"] for message in line["messages"] for call in message.get("tool_calls", ())]


def test_the_same_seed_makes_the_same_of_which_no_two_are_alike_and_between_a_quarter_and_a_third_need_no_call():
    assert made(600, seed=3) == LINES
    assert made(30, seed=3) == LINES[:30]
    assert made(30, seed=4) != LINES[:30]
    assert len({line["messages"][0]["content"] for line in LINES}) == 600
    assert 0.25 < sum(not calls_of(line) for line in LINES) / 600 < 0.33


def test_each_function_is_called_with_values_of_the_request_that_its_schema_allows_and_some_go_on():
    called = set()
    for line in LINES:
        words = line["messages"][0]["content"].split()
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in line["tools"]}
        assert len(offered) == 2
        for call in calls_of(line):
            called.add(call["name"])
            schema = offered[call["name"]]
            assert list(call["arguments"]) == schema["required"]
            assert [value for value in call["arguments"].values() if str(value) not in words] == []
            kinds = {name: {"integer": int, "string": str}[one["type"]] for name, one in schema["properties"].items()}
            assert all(isinstance(value, kinds[name]) for name, value in call["arguments"].items())
    assert len(called) == 8
    roles = {tuple(message["role"] for message in line["messages"]) for line in LINES}
    assert roles == {("user", "assistant"), ("user", "assistant", "tool", "assistant")}


@pytest.mark.parametrize("num", [0, -1, MOST + 1])
def test_more_than_there_are(num):
    with pytest.raises(ValueError, match=rf"^{num} dialogues; wanted: 1 to 10,000$"):
        made(num, seed=0)
