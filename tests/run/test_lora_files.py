"""`--lora-model` and `--lora-data`: what is said of both before anything runs."""

import json
import sys
from importlib import metadata

import pytest
from made_checkpoints import make_checkpoint

from fixtures.training import refuse_unlike
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory import needs
from gpu_acceptance.run.training_files import look, refuse_unusable_lora_files, source_of
from tools.made_dialogues import made


@pytest.fixture
def model(tmp_path):
    return make_checkpoint(tmp_path / "model")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [{"a": 1}, *made(40, seed=0)]))
    return path


def refusal(model, data):
    with pytest.raises(RefusedError) as caught:
        refuse_unusable_lora_files(model, data)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_without_the_options_there_is_nothing_to_say():
    assert refuse_unusable_lora_files(None, None) == ""


def test_what_is_trained_on_what(model, data):
    num_calls = look(model, data).read.num_calls
    of_model = "Qwen2ForCausalLM (44 parameters, 100 bytes in BF16 and F32, sequences to 512 tokens)"
    of_data = f"40 dialogues with {num_calls} calls; dropped: neither messages, nor system and chat (1)"
    assert refuse_unusable_lora_files(model, data) == f"{model}: {of_model}; {data}: {of_data}"


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


def test_ranks_that_have_not_the_same():
    seen = "ranks have different training data: a on rank 0, b on rank 1"
    with pytest.raises(RuntimeError, match=f"^{seen}; --lora-model and --lora-data must name the same data on every node$"):
        refuse_unlike(["a", "b"], "--lora-model and --lora-data")


def test_each_is_refused_under_the_option_that_named_it(model, data):
    (model / "config.json").unlink()
    assert refusal(model, data).startswith(f"--lora-model: {model}: no config.json; wanted on every node: ")
    make_checkpoint(model.parent / "other")
    data.write_text('{"messages": [}')
    assert refusal(model.parent / "other", data).startswith(f"--lora-data: {data}, line 1: column 15: Expecting value; wanted: ")


@pytest.mark.parametrize("package", ["peft", "transformers"])
def test_packages_that_fine_tuning_needs(model, data, monkeypatch, package):
    oldest = {"peft": "0.17", "transformers": "5.0"}[package]
    versions = {"numpy": "2.0.0", "peft": "0.17.0", "transformers": "5.0.0"}
    monkeypatch.setattr(metadata, "version", lambda name: versions[name])
    assert refuse_unusable_lora_files(model, data)
    versions[package] = "0.16.dev0"
    install = f"{sys.executable} -m pip install '{package}>={oldest}'"
    assert refusal(model, data) == f"--lora-model: needs {package} {oldest} or newer, and there is 0.16.dev0: {install}"


def test_without_a_package_that_fine_tuning_needs(model, data, monkeypatch):
    monkeypatch.setattr(needs, "_version", lambda name: "" if name == "peft" else "9.0")
    install = f"{sys.executable} -m pip install 'peft>=0.17'"
    assert refusal(model, data) == f"--lora-model: needs peft 0.17 or newer, and there is none: {install}"
