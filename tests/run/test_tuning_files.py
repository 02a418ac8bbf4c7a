"""The checkpoint and the dialogues of a fine-tuning, looked at before any device is opened."""

import json
import sys

import pytest
from chat_templates import TEMPLATES
from made_checkpoints import make_checkpoint

from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory import needs
from gpu_acceptance.run.training_files import find_unfit, look, refuse_unusable_paths, source_of
from gpu_acceptance.worker.options import Paths
from tools.made_dialogues import made


def refusal(**paths):
    with pytest.raises(RefusedError) as caught:
        refuse_unusable_paths(Paths(**paths))
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.fixture
def model(tmp_path):
    return make_checkpoint(tmp_path / "model")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [{"a": 1}, *made(40, seed=0)]))
    return path


def test_checkpoint_and_data_of_a_fine_tuning_are_named(model, data):
    num_calls = look(model, data).read.num_calls
    of_model = "Qwen2ForCausalLM (44 parameters, 100 bytes in BF16 and F32, sequences to 512 tokens)"
    of_data = f"40 dialogues with {num_calls} calls; dropped: an object of no known format (1: line 1)"
    assert str(refuse_unusable_paths(Paths(lora_model=model, lora_data=data))[1]) == f"{model}: {of_model}; {data}: {of_data}"


SIZES = {"held_out": 0.5, "num_held_out": 1024, "num_prompts": 128, "sequence": 512}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"sequence": 513}, "--lora-model: MODEL takes up to 512 tokens, and lora_model.sequence is 513; lower that by --limits"),
        ({"held_out": 0.001}, "--lora-data: DATA: 40 dialogues, 0 of them held out, and no call in those: more dialogues are needed"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_any_device_is_opened(model, data, changed, said):
    parameters = {f"lora_model.{name}": size for name, size in {**SIZES, **changed}.items()}
    found = find_unfit(look(model, data), parameters)
    assert found == (said and said.replace("MODEL", str(model)).replace("DATA", str(data)))


def test_prompts_none_of_which_asks_for_a_call_are_refused_before_any_device_is_opened(model, data):
    """Each dialogue begins with an answer in words."""
    hello = {"role": "assistant", "content": "Hello!"}
    begun = [[{"role": "user", "content": f"Hello {number}"}, hello] for number in range(40)]
    lines = [{**line, "messages": [*begin, *line["messages"]]} for begin, line in zip(begun, made(40, 0), strict=True)]
    data.write_text("\n".join(map(json.dumps, lines)))
    found = find_unfit(look(model, data), {f"lora_model.{name}": size for name, size in {**SIZES, "num_prompts": 7}.items()})
    said = "the first answer to none of 7 held-out prompts is a call; raise lora_model.held_out or num_prompts"
    assert found == f"--lora-data: {data}: {said}"
    assert find_unfit(None, {}) is None


def test_dialogues_that_the_template_refuses_are_named_before_any_device_is_opened(model, data):
    (model / "chat_template.jinja").write_text(TEMPLATES["Llama 3.1"])
    two = [{"function": {"name": "f", "arguments": {}}}] * 2
    line = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": two}], "tools": [{"name": "f"}]}
    with data.open("a") as file:
        file.write(json.dumps(line))
    words = "dropped: an object of no known format (1: line 1), the chat template refuses it: 'only one call at once' (1: line 42)"
    assert str(look(model, data)).endswith(words)
    data.write_text(json.dumps(line))
    text = f"--lora-data: {data}: 1 lines, and no dialogue to learn from: the chat template refuses it: 'only one call at once' (1: line 1)"
    assert refusal(lora_model=model, lora_data=data).startswith(text)


def test_identifiers_that_are_made_short_are_told(model, data):
    assert "ids of calls" not in str(look(model, data))
    (model / "chat_template.jinja").write_text(TEMPLATES["Mistral v0.3"].replace("eos_token", "'</s>'"))
    assert str(look(model, data)).endswith("; the chat template gets ids of calls as nine characters")


def test_what_a_template_does_not_write_is_told(model, data):
    thought = {"role": "assistant", "content": "3", "reasoning_content": "Two and one."}
    with data.open("a") as file:
        file.write(json.dumps({"messages": [{"role": "user", "content": "2 + 1?"}, thought]}))
    (model / "chat_template.jinja").write_text(TEMPLATES["Gemma 3"])
    text = "; the chat template gets functions and calls as text: it takes or writes none that can be read again"
    assert str(look(model, data)).endswith(f"{text}; the chat template leaves out thoughts, or words beside calls, of 1 answers")


def test_an_end_mark_that_is_added_is_told(model, data):
    (model / "chat_template.jinja").write_text(TEMPLATES["GLM-4.6"])
    (model / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert "; the chat template writes no mark at the end of an answer: '</s>' is added" in str(look(model, data))


def test_a_file_on_which_a_template_works_too_long_is_refused(model, data, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.measure.lora.template.MOST_FILE_STEPS", 500)
    said = f"--lora-data: {data}: the chat template takes too long from object "
    found = refusal(lora_model=model, lora_data=data)
    assert found.startswith(said)
    assert found.endswith("; a part of the file will do")


def test_a_source_is_the_same_wherever_the_same_lies(tmp_path, model, data):
    found = source_of(look(model, data))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data.read_bytes())
    elsewhere = make_checkpoint(tmp_path / "elsewhere")
    assert source_of(look(elsewhere, copy)) == found
    copy.write_bytes(data.read_bytes() + b"\n")
    assert source_of(look(model, copy)) != found
    (elsewhere / "tokenizer.json").write_text("{}")
    assert source_of(look(elsewhere, data)) != found


def test_each_is_refused_under_the_option_that_named_it(model, data):
    (model / "config.json").unlink()
    assert refusal(lora_model=model, lora_data=data).startswith(f"--lora-model: {model}: no config.json; wanted on every node: ")
    make_checkpoint(model.parent / "other")
    data.write_text('{"messages": [}')
    assert refusal(lora_model=model.parent / "other", lora_data=data).startswith(
        f"--lora-data: {data}: 1 lines, and no dialogue to learn from: column 15: Expecting value (1: line 1); wanted: "
    )


@pytest.mark.parametrize(
    ("package", "oldest", "version", "found"),
    [("peft", "0.17", "0.16.dev0", "0.16.dev0"), ("transformers", "5.0", "0.16.dev0", "0.16.dev0"), ("peft", "0.17", "", "none")],
)
def test_packages_that_fine_tuning_needs(model, data, monkeypatch, package, oldest, version, found):
    versions = {"numpy": "2.0.0", "peft": "0.17.0", "transformers": "5.0.0"}
    monkeypatch.setattr(needs, "_version", lambda name: versions[name])
    assert refuse_unusable_paths(Paths(lora_model=model, lora_data=data))[1]
    versions[package] = version
    install = f"{sys.executable} -m pip install '{package}>={oldest}'"
    assert refusal(lora_model=model, lora_data=data) == f"--lora-model: needs {package} {oldest} or newer, and there is {found}: {install}"
