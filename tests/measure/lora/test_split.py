import pytest

from gpu_acceptance.measure.lora.calls import Call, Dialogue, DialogueError, Message, for_template, split

ANSWER = Message("assistant", "", (Call("add", {"a": 1}),))


def dialogue(prompt, line=1, tools=(), answer=ANSWER, more=()):
    return Dialogue(tools, (Message("system", "Be brief."), Message("user", prompt), answer, *more), line)


MANY = [dialogue(f"number {number}", number) for number in range(1000)]


def lines(dialogues):
    return [one.line for one in dialogues]


def test_each_is_on_one_side_in_its_order_and_about_the_part_is_held_out():
    train, held_out = split(MANY, 0.1)
    assert lines(train) == sorted(lines(train))
    assert sorted(lines(train) + lines(held_out)) == list(range(1000))
    assert 70 < len(held_out) < 130


def test_the_side_does_not_depend_on_what_else_is_there_or_in_which_order():
    _, held_out = split(MANY, 0.1)
    _, of_half = split(MANY[::-2], 0.1)
    assert set(lines(of_half)) == set(lines(held_out)) & set(range(1, 1000, 2))


def test_more_held_out_are_held_out_still_where_the_part_is_larger():
    assert set(lines(split(MANY, 0.1)[1])) < set(lines(split(MANY, 0.3)[1]))


def test_one_prompt_is_never_on_both_sides():
    """However it is spaced, answered, continued, or offered functions with."""
    copies = [
        dialogue(f" number  {number}\n", number, ({"type": "function"},), Message("assistant", "no"), [ANSWER]) for number in range(1000)
    ]
    train, held_out = split([*MANY, *copies], 0.1)
    assert set(lines(train)).isdisjoint(lines(held_out))
    assert len(train) == 2 * len(set(lines(train)))


def test_a_side_without_a_call():
    told = [dialogue(f"number {number}", answer=Message("assistant", "no")) for number in range(100)]
    text = "100 dialogues, [678][0-9] of them to train, and no call in those: more dialogues are needed"
    with pytest.raises(DialogueError, match=f"^{text}$"):
        split(told, 0.3)
    with pytest.raises(
        DialogueError, match=r"^1 dialogues, 0 of them (to train|held out), and no call in those: more dialogues are needed$"
    ):
        split(MANY[:1], 0.3)


def test_a_chat_template_takes_the_messages_of_a_dialogue():
    said = dialogue("three", more=(Message("tool", "4"), Message("assistant", "It is 4.")))
    assert said.first_answer == 2
    assert for_template(said.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
    ]
