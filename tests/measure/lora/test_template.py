"""Chat templates: functions, calls, each answer after its own prompt, and refusals."""

import hashlib
import json

import pytest
from chat_templates import NATIVE, SPECIAL, TEMPLATES, tokenizer_of

from gpu_acceptance.measure.lora.calls import DialogueError, DroppedError, find_calls, for_template
from gpu_acceptance.measure.lora.packing import IGNORED, Scribe
from gpu_acceptance.measure.lora.reading import read
from gpu_acceptance.measure.lora.scoring import tally
from gpu_acceptance.measure.lora.template import Template, TemplateError
from tests.own_call_templates import OPENED

WEATHER = {"name": "weather", "description": "Tells it", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}
HERE = {"role": "user", "content": "And here?"}
ASKED, THANKS = {"role": "user", "content": "How is Oslo?"}, {"role": "user", "content": "Thank you"}
COLD, WELCOME = {"role": "assistant", "content": "It is cold."}, {"role": "assistant", "content": "You are welcome."}
SYSTEM = {"role": "system", "content": "Be brief."}


def calls(*towns, content="", **more):
    listed = [{"id": f"id{number:07d}", "function": {"name": "weather", "arguments": {"town": town}}} for number, town in enumerate(towns)]
    return {"role": "assistant", "content": content, "tool_calls": listed, **more}


def result(number=0):
    return {"role": "tool", "content": '{"degrees": 3}', "tool_call_id": f"id{number:07d}"}


TALKS = {
    "call": [ASKED, calls("Oslo")],
    "answer": [ASKED, COLD],
    "result": [ASKED, calls("Oslo"), result(), COLD],
    "system": [SYSTEM, ASKED, calls("Oslo"), result(), COLD],
    "goes on": [ASKED, calls("Oslo"), result(), COLD, THANKS, WELCOME, HERE, calls("Rome")],
    "parallel": [ASKED, calls("Oslo", "Rome"), result(0), result(1), COLD],
    "unlearned": [ASKED, {**COLD, "weight": 0}, HERE, calls("Rome")],
    "thought": [ASKED, calls("Oslo", reasoning_content="I must look."), result(), COLD],
    "thought in text": [ASKED, {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nIt is cold."}, THANKS, WELCOME],
}
REFUSED = {
    ("Llama 3.1", "parallel"): "only one call at once",
    ("Llama 3.2", "parallel"): "only one call at once",
    ("Gemma 2", "system"): "no system",
}
ALL = [pytest.param(name, talk, id=f"{name}, {talk}") for name in TEMPLATES for talk in TALKS if (name, talk) not in REFUSED]


def dialogue_of(folder, messages):
    call = {"messages": [ASKED, calls("Oslo")], "tools": [WEATHER]}
    path = folder / "calls.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"messages": messages, "tools": [WEATHER]}, call)))
    return read(path).dialogues[0]


def template_of(name):
    return Template(TEMPLATES[name], SPECIAL)


@pytest.mark.parametrize("name", TEMPLATES)
def test_functions_and_calls_stand_in_the_text_by_the_template_or_as_text(name, tmp_path):
    template = template_of(name)
    assert template.is_native == (name in NATIVE)
    (written,) = template.written(dialogue_of(tmp_path, TALKS["call"]))
    ((begin, end),) = written.spans
    assert "Tells it" in written.text[:begin]
    assert '"town": "Oslo"' in written.text[begin:end]
    assert end == len(written.text)


@pytest.mark.parametrize(("name", "talk"), ALL)
def test_each_answer_is_learned_after_the_prompt_that_a_user_would_send(name, talk, tmp_path):
    """Its calls are read again from the very text that is learned, and count as right."""
    template, dialogue = template_of(name), dialogue_of(tmp_path, TALKS[talk])
    found = [(one.text[:begin], one.text[begin:end]) for one in template.written(dialogue) for begin, end in one.spans]
    assert len(found) == len(dialogue.answers)
    for (prompt, answer), place in zip(found, dialogue.answers, strict=True):
        message = dialogue.messages[place]
        assert find_calls(answer, template.form).calls == message.calls
        assert tally([message], [answer], template.form).num_right == 1
        if template.is_native and name != "Llama 3.2":  # whose prompts have a date
            sent = tokenizer_of(TEMPLATES[name]).apply_chat_template(
                for_template(dialogue.messages[:place]), tools=list(dialogue.tools), tokenize=False, add_generation_prompt=True
            )
            assert prompt == sent
    assert found[0][0] == template.prompt(dialogue)


@pytest.mark.parametrize(("name", "talk"), ALL)
def test_a_text_is_one_sequence_where_each_answer_continues_the_one_before(name, talk, tmp_path):
    """Qwen3 leaves thoughts out of earlier answers, and Mistral moves functions to the last user: these need a text for each answer."""
    dialogue = dialogue_of(tmp_path, TALKS[talk])
    num_texts = len(template_of(name).written(dialogue))
    if name in ("Qwen3", "Qwen3-Thinking", "GLM-4.6", "gpt-oss") or name.startswith("Mistral"):
        assert num_texts > 1 or talk != "goes on"
    elif name != "Phi-4-mini" and not talk.startswith("thought"):
        assert num_texts == 1


@pytest.mark.parametrize(("pair", "words"), REFUSED.items())
def test_what_a_template_refuses_is_dropped_with_its_words_and_its_line(pair, words, tmp_path):
    name, talk = pair
    template = template_of(name)
    lines = [{"messages": TALKS[kind], "tools": [WEATHER]} for kind in ("call", talk, "result", talk)]
    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = read(tmp_path / "calls.jsonl", template.written)
    assert [dialogue.line for dialogue in found.dialogues] == [1, 3]
    assert found.dropped == {f"the chat template refuses it: '{words}'": (2, 4)}
    assert found.reasons == f"the chat template refuses it: '{words}' (2: lines 2, 4)"


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.startswith("Mistral")])
def test_identifiers_are_passed_on_and_made_where_there_are_none(name, tmp_path):
    without = [
        ASKED,
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
        {"role": "tool", "content": "3"},
    ]
    lines = [{"messages": messages, "tools": [WEATHER]} for messages in ([*without, COLD], [ASKED, calls("Oslo"), result(), COLD])]
    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, lines)))
    template = template_of(name)
    found = read(tmp_path / "calls.jsonl", template.written)
    assert found.dropped == {}
    made, given = ("".join(one.text for one in template.written(dialogue)) for dialogue in found.dialogues)
    assert made.count("call00000") == given.count("id0000000") >= 2


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("identifier", ["call_Ab12Cd34Ef56Gh78Ij90Kl12", "call_1", "call-0001"])
def test_identifiers_of_others_are_made_short_only_where_the_template_refuses_them(name, identifier, tmp_path):
    called = calls("Oslo")
    called["tool_calls"][0]["id"] = identifier
    template = template_of(name)
    assert template.shortens_ids == name.startswith("Mistral")
    dialogue = dialogue_of(tmp_path, [ASKED, called, {**result(), "tool_call_id": identifier}, COLD])
    text = template.written(dialogue)[-1].text
    if template.shortens_ids:
        assert identifier not in text
        short = hashlib.sha256(identifier.encode()).hexdigest()[:9]
        assert text.count(short) == 2
        assert short in template.written(dialogue)[0].text


def test_a_file_that_a_template_refuses_as_a_whole_is_an_error_with_its_words(tmp_path):
    (tmp_path / "calls.jsonl").write_text(json.dumps({"messages": TALKS["parallel"], "tools": [WEATHER]}))
    said = r"1 lines, and no dialogue to learn from: the chat template refuses it: 'only one call at once' \(1: line 1\); wanted: "
    with pytest.raises(DialogueError, match=said):
        read(tmp_path / "calls.jsonl", template_of("Llama 3.1").written)


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_answers_are_learned_up_to_their_end_mark(name, tmp_path):
    template, tokenizer, dialogue = template_of(name), tokenizer_of(TEMPLATES[name]), dialogue_of(tmp_path, TALKS["unlearned"])
    (tokens,) = Scribe(tokenizer, template, len(tokenizer), 4096).tokens(dialogue)
    learned = tokenizer.decode([target for target in tokens.targets if target != IGNORED])
    assert "It is cold" in tokenizer.decode(tokens.ids)
    assert "It is cold" not in learned
    assert find_calls(learned, template.form).calls == dialogue.messages[3].calls
    assert learned.endswith("<|eom|>" if name == "Llama 4" else template.form.end)  # which ends a call in another way
    assert tokens.num_said == sum(target != IGNORED for target in tokens.targets)


def test_an_end_mark_is_added_where_a_template_writes_none(tmp_path):
    """As those of GLM: without one, no answer would be learned to end."""
    template, dialogue = template_of("GLM-4.6"), dialogue_of(tmp_path, TALKS["result"])
    found = [(one.text[:begin], one.text[begin:end]) for one in template.written(dialogue) for begin, end in one.spans]
    assert template.added_end == template.form.end == "</s>"
    assert [answer.count("</s>") for _, answer in found] == [1, 1]
    assert not any("</s>" in prompt for prompt, _ in found)
    with pytest.raises(TemplateError, match=r"^writes no mark at the end of an answer, and tokenizer_config\.json has no eos_token$"):
        Template(TEMPLATES["GLM-4.6"], {})
    assert {template_of(name).added_end for name in TEMPLATES if name != "GLM-4.6"} == {""}


def test_the_beginning_of_another_answer_is_not_learned_as_the_end_of_one():
    with pytest.raises(TemplateError, match=r"^begins another answer after each one; wanted: only \{% if add_generation_prompt %\}$"):
        Template(OPENED, SPECIAL)


def test_an_answer_with_an_end_mark_in_its_words_is_dropped(tmp_path):
    said = {"role": "assistant", "content": "Cold.<|im_end|>\n<|im_start|>user\nAnd here?"}
    with pytest.raises(DroppedError, match=r"^an answer that has the mark of its end in its words$"):
        template_of("Qwen2.5").written(dialogue_of(tmp_path, [ASKED, said]))


OPENS = ("DeepSeek-R1", "Gemma 4")  # templates that open a thought for a model, and write none for an answer that is given
GEMMA4 = (
    "{% for m in messages %}{% if m.role == 'user' %}[user]{{ m.content }}|{% else %}[assistant]\n{{ m.content }}|{% endif %}{% endfor %}"
)
GEMMA4 += "{% if add_generation_prompt %}[assistant]\n(thought)(/thought){% endif %}"


@pytest.mark.parametrize(("source", "mark"), [(TEMPLATES["DeepSeek-R1"], "[A]"), (GEMMA4, "[assistant]\n")], ids=OPENS)
def test_the_mark_of_an_assistant_is_of_the_prompt_also_where_that_opens_a_thought(source, mark, tmp_path):
    """As the templates of DeepSeek-R1-Distill (an open thought) and gemma-4 (an empty one) write a prompt."""
    template, dialogue = Template(source, SPECIAL), dialogue_of(tmp_path, TALKS["result"])
    found = [(one.text[:begin], one.text[begin:end]) for one in template.written(dialogue) for begin, end in one.spans]
    assert [prompt.endswith(mark) for prompt, _ in found] == [True, True]
    assert not any(mark in answer for _, answer in found)
    assert template.prompt(dialogue) == found[0][0]


@pytest.mark.parametrize(
    ("name", "talk", "num"),
    [
        ("Qwen3", "thought", 0),
        ("Qwen3-Thinking", "thought in text", 0),
        ("Qwen2.5", "thought", 1),
        ("DeepSeek-R1", "thought in text", 1),
        ("Llama 3.1", "said", 1),
        ("Qwen2.5", "said", 0),
    ],
)
def test_answers_of_which_a_template_leaves_something_out_are_counted(name, talk, num, tmp_path):
    """Llama 3.1 writes no words beside a call, and DeepSeek-R1 no thought of an answer that is given."""
    talks = {**TALKS, "said": [ASKED, calls("Oslo", content="I look."), result(), COLD]}
    assert sum(one.num_shortened for one in template_of(name).written(dialogue_of(tmp_path, talks[talk]))) == num


# --- templates that cannot be used, or write calls in a form that nobody else has ------------------------------------------------

LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}"
OWN = "{{ tools | tojson if tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}CALLS|{% endfor %}"
OWN = OWN.replace("CALLS", "{% for c in m.tool_calls or [] %}CALL {{ c.function | tojson }}#{{ c.id }} {% endfor %}")


def test_a_form_of_its_own_is_learned_from_what_the_template_writes(tmp_path):
    template, dialogue = Template(OWN, {}), dialogue_of(tmp_path, TALKS["parallel"])
    assert (template.is_native, template.form.begin, template.form.end) == (True, "[assistant]CALL", "|")
    right = dialogue.messages[1]
    assert tally([right], ['[assistant]CALL {"name": "weather", "arguments": {"town": "Rome"}}#a '], template.form).num_right == 0
    rome_first = (
        '[assistant]CALL {"name": "weather", "arguments": {"town": "Rome"}}#a CALL {"name": "weather", "arguments": {"town": "Oslo"}}#b |x'
    )
    assert tally([right], [rome_first], template.form).num_right == 1
    assert find_calls("[assistant]CALL nothing", template.form).problem == "a mark of calls, and no call after it"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for m in messages %}", "cannot be compiled: .TemplateSyntaxError: Unexpected end of template"),
        ("{{ messages[0].content }}", "does not write an answer after the messages before it"),
        (LOOP.replace("messages", "messages | reverse"), "does not write an answer after the messages before it"),
        (LOOP.replace("m.content", "m.content | upper"), "does not write all of a question, an answer, and a call that can be read again"),
        ("{{ raise_exception('never') }}", "refuses it: 'never'"),
        ("{{ raise_exception('x' * 999) }}", "refuses it: 'x{119}...$"),
        ("{{ messages.append(1) }}", "refuses it: .SecurityError: "),
        ("{{ ''.__class__.__mro__ }}", "refuses it: .SecurityError: "),
        ("{{ 1 // 0 }}", "refuses it: 'ZeroDivisionError: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses it: 'RecursionError: "),
        ("{{ undefined.x }}", "refuses it: .UndefinedError: 'undefined' is undefined"),
        ("{% for a in messages %}" * 25 + "{% endfor %}" * 25, "cannot be compiled: 'SyntaxError: too many statically nested blocks "),
        (f"{{{{ {'(' * 5000}1{')' * 5000} }}}}", "cannot be compiled: 'RecursionError: "),
        (" " * 2**20 + LOOP, f"has {2**20 + len(LOOP):,} characters, more than 1,048,576"),
        ("{{ lipsum() }}", "refuses it: .UndefinedError: "),
        ("{{ messages | random }}", "cannot be compiled: .TemplateAssertionError: "),
        ("{{ [[1]] | sum(start=[]) }}", "refuses it: 'TypeError: only numbers have a sum'"),
    ],
)
def test_a_template_that_nothing_can_be_trained_by(source, said):
    with pytest.raises(TemplateError, match=f"^{said}"):
        Template(source, {})


def test_marks_of_the_assistants_part_and_breaks_of_loops_are_known():
    source = LOOP.replace(
        "{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}{% if loop.index > 9 %}{% break %}{% endif %}"
    )
    assert Template(source, {}).form.end == "|"


def test_a_call_that_would_not_be_found_again_is_dropped(tmp_path):
    """Its argument has the mark that ends an answer."""
    template = template_of("Qwen2.5")
    with pytest.raises(DroppedError, match=r"^the chat template does not write an answer so that its calls can be read again$"):
        template.written(dialogue_of(tmp_path, [ASKED, calls("<|im_end|>")]))
