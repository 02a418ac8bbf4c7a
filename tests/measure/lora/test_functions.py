"""Functions that a system's text offers, beside words that name the marks."""

from pathlib import Path

import pytest

from gpu_acceptance.measure.lora.calls import Call, DroppedError, Message, find_calls
from gpu_acceptance.measure.lora.functions import offered_in
from gpu_acceptance.measure.lora.reading import read

# hermes_card: the card of NousResearch/hermes-function-calling-v1, with functions and calls in JSON and as it prints them;
# qwen_system: the system's text that the template of Qwen2.5 writes.
CASES = Path(__file__).parents[2] / "cases" / "lora" / "systems"
OSLO = Call("get_weather", {"town": "Oslo"})


@pytest.mark.parametrize(("name", "num_lines"), [("hermes_card", 4), ("qwen_system", 1)])
def test_systems_from_the_field_offer_their_functions(name, num_lines):
    found = read(CASES / f"{name}.jsonl")
    assert (len(found.dialogues), found.dropped) == (num_lines, {})
    for dialogue in found.dialogues:
        system, *said = dialogue.messages
        assert said == [Message("user", "Weather in Oslo?"), Message("assistant", "", (OSLO,))]
        assert [tool["function"]["name"] for tool in dialogue.tools] == ["get_weather"]
        assert "within <tools>" in system.content
        assert "get_weather" not in system.content


def test_all_marked_functions_are_offered_and_their_marks_are_gone():
    system = "A <tools> B <tools>{\"name\": \"f\"}</tools> C <tools></tools> <tools>[{'name': 'g', 'a': None}]</tools> D"
    assert offered_in(system) == ([{"name": "f"}, {"name": "g", "a": None}], "A <tools> B\nC <tools></tools>\nD")


@pytest.mark.parametrize("text", ["{", "{'a': f()}", "{'a': 1, 'a': 2}", "{[]: 1}", "{'a': 1e999}", "{" * 999])
def test_what_is_no_literal_is_neither_a_function_nor_a_call(text):
    with pytest.raises(DroppedError, match=r"^functions that are no JSON$"):
        offered_in(f"<tools>{text}</tools>")
    assert find_calls(f"<tool_call>{text}</tool_call>").problem.startswith("no JSON: ")
