import json
import os
from pathlib import Path

import pytest
from made_checkpoints import CONFIG, LAYER, PROJECTIONS, TEMPLATE, make_checkpoint, write_json, write_tensors

from gpu_acceptance.measure.lora import model_folder as checkpoint_dir
from gpu_acceptance.measure.lora import model_folder as checkpoint_reader
from gpu_acceptance.measure.lora.calls import find_calls, for_template
from gpu_acceptance.measure.lora.model_folder import CheckpointError, look_at
from gpu_acceptance.measure.lora.reading import read
from tools.made_dialogues import made

WANTED = "wanted: a checkpoint in Hugging Face format, as save_pretrained writes it"
ON_EVERY_NODE = WANTED.replace("wanted", "wanted on every node", 1)


@pytest.fixture
def folder(tmp_path):
    return make_checkpoint(tmp_path / "model")


def problem(folder):
    with pytest.raises(CheckpointError) as caught:
        look_at(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}", "DIR")


def change(path, **values):
    write_json(path, {**json.loads(path.read_text()), **values})


def without(path, key):
    write_json(path, {name: value for name, value in json.loads(path.read_text()).items() if name != key})


def test_what_a_folder_holds(folder):
    found = look_at(folder)
    assert str(found) == "Qwen2ForCausalLM (44 parameters, 100 bytes in BF16 and F32, sequences to 512 tokens)"
    assert (found.folder, found.model_type, found.longest, found.num_parameters) == (folder, "qwen2", 512, 44)
    assert (found.vocabulary, found.num_ends) == (300, 7 * (2 + 3))


def test_links_out_of_the_folder_are_followed(tmp_path, folder):
    """As the cache of a hub has them."""
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        blob = path.rename(tmp_path / f"blob-{number}")
        (snapshot / path.name).symlink_to(Path("..", "..", blob.name))
    assert look_at(snapshot).num_parameters == 44


def test_the_fingerprint_is_of_all_but_the_weights(tmp_path, folder):
    first = look_at(folder).fingerprint
    assert look_at(make_checkpoint(tmp_path / "copy")).fingerprint == first
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert look_at(folder).fingerprint == first
    for path, more in (("config.json", {"x": 1}), ("tokenizer.json", {"x": 1}), ("tokenizer_config.json", {"x": 1})):
        change(folder / path, **more)
        assert look_at(folder).fingerprint != first
        first = look_at(folder).fingerprint
    (folder / "chat_template.jinja").write_text(f"{TEMPLATE} ")
    assert look_at(folder).fingerprint != first


# --- config.json ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no", "x" * 300])
def test_no_folder(tmp_path, name):
    assert problem(tmp_path / name) == f"DIR: no config.json; {ON_EVERY_NODE} (in the cache of a hub: a folder in snapshots)"


def no_model(model_type, architectures):
    named = f"model_type {model_type}, architectures {architectures}"
    return f"DIR/config.json: {named}: no causal language model of the transformers installed here"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"auto_map": {}}, f"DIR/config.json: auto_map: it asks for its own code, which is never run here; {WANTED}"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "DIR/config.json: quantization_config: its weights are quantised; wanted: weights in bf16, fp16 or fp32",
        ),
        ({"model_type": "no such"}, no_model("'no such'", "['Qwen2ForCausalLM']")),
        ({"model_type": ["qwen2"]}, no_model("['qwen2']", "['Qwen2ForCausalLM']")),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, no_model("'qwen2'", "['Qwen2ForSequenceClassification']")),
        ({"architectures": None}, no_model("'qwen2'", "None")),
        ({"architectures": ["x" * 200]}, no_model("'qwen2'", f"['{'x' * 78}...")),
        ({"model_type": "bert", "architectures": ["BertModel"]}, no_model("'bert'", "['BertModel']")),
        ({"max_position_embeddings": 0}, "DIR/config.json: max_position_embeddings 0: no longest sequence"),
        ({"max_position_embeddings": True}, "DIR/config.json: max_position_embeddings True: no longest sequence"),
        ({"max_position_embeddings": "512"}, "DIR/config.json: max_position_embeddings '512': no longest sequence"),
    ],
)
def test_a_config_that_cannot_be_trained(folder, values, said):
    change(folder / "config.json", **values)
    assert problem(folder) == said


def test_a_config_without_a_longest_sequence(folder):
    without(folder / "config.json", "max_position_embeddings")
    assert problem(folder) == "DIR/config.json: max_position_embeddings None: no longest sequence"
    gpt2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 1024, "vocab_size": 300}
    write_json(folder / "config.json", gpt2)
    assert look_at(folder).longest == 1024


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_json_that_is_none(folder, name):
    (folder / name).write_text("{\n")
    assert problem(folder) == f"DIR/{name}: line 2, column 1: Expecting property name enclosed in double quotes; was it copied whole?"
    (folder / name).write_text("[]")
    assert problem(folder) == f"DIR/{name}: no object; {WANTED}"
    (folder / name).write_bytes(b"\xff")
    assert problem(folder) == f"DIR/{name}: not UTF-8: byte 1 is 0xff"
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert problem(folder) == f"DIR/{name}: not a file of at most 134,217,728 bytes; {WANTED}"


def test_a_file_that_is_too_large(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_reader, "MOST_BYTES", 10)
    assert problem(folder) == f"DIR/config.json: not a file of at most 10 bytes; {WANTED}"


def test_a_transformers_without_the_table(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_dir, "_TABLE", "NO_SUCH_NAMES")
    said = "modeling_auto.py: no NO_SUCH_NAMES: the models of this transformers cannot be listed; use another version of it"
    assert problem(folder).endswith(said)


# --- weights -------------------------------------------------------------------------------------------------------------------

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(folder):
    (folder / "model.safetensors").unlink()
    write_tensors(folder / FIRST, LAYER)
    write_tensors(folder / SECOND, {"b": ("BF16", [2]), "c": ("BF16", [3])})
    places = {**dict.fromkeys(LAYER, FIRST), "b": SECOND, "c": SECOND}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    return folder


def test_all_files_of_an_index_count(sharded):
    assert str(look_at(sharded)) == "Qwen2ForCausalLM (47 parameters, 94 bytes in BF16, sequences to 512 tokens)"


def test_a_shard_that_is_missing(sharded):
    (sharded / SECOND).unlink()
    said = f"DIR/{SECOND}: cannot be read: No such file or directory; {ON_EVERY_NODE}"
    assert problem(sharded) == said
    (sharded / SECOND).symlink_to("blobs/not-downloaded")
    assert problem(sharded) == said
    (sharded / SECOND).unlink()
    (sharded / SECOND).mkdir()
    assert problem(sharded) == f"DIR/{SECOND}: not a file; {WANTED}"


def test_a_shard_of_which_half_is_there(sharded):
    content = (sharded / SECOND).read_bytes()
    (sharded / SECOND).write_bytes(content[:-5])
    size = len(content)
    assert problem(sharded) == f"DIR/{SECOND}: {size - 5} bytes, and its header promises {size}: it was not copied whole"


def test_a_shard_of_another_model(sharded):
    write_tensors(sharded / SECOND, {"b": ("BF16", [2])})
    assert problem(sharded) == f"DIR/{SECOND}: lacks 'c', which model.safetensors.index.json promises in it"


@pytest.mark.parametrize(
    "places", [None, {}, [], {"a": 1}, {"a": "../model.safetensors"}, {"a": "/model.safetensors"}, {"a": "pytorch_model.bin"}]
)
def test_an_index_that_names_no_files_of_the_folder(sharded, places):
    write_json(sharded / "model.safetensors.index.json", {"weight_map": places})
    said = "no weight_map of files NAME.safetensors in this folder; was it copied whole?"
    assert problem(sharded) == f"DIR/model.safetensors.index.json: {said}"


def test_one_file_comes_before_an_index(sharded):
    write_tensors(sharded / "model.safetensors", {name: ("F32", [1, 1]) for name in LAYER})
    assert look_at(sharded).dtypes == ("F32",)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert problem(folder) == f"DIR: neither model.safetensors nor model.safetensors.index.json; {ON_EVERY_NODE}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickled_weights_alone(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).touch()
    convert = "convert them on a trusted host: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
    assert problem(folder) == f"DIR: '{name}' and no model.safetensors: pickled weights are never opened here; {convert}"


@pytest.mark.parametrize("gone", [PROJECTIONS[:1], PROJECTIONS[4:6], PROJECTIONS])
def test_layers_that_adapters_are_put_on_and_that_are_not_there(folder, gone):
    """As of models whose projections are one matrix, or quantised by names of their own."""
    kept = {name: tensor for name, tensor in LAYER.items() if name.split(".")[-2] not in gone}
    vectors = {name: ("BF16", [6]) for name in LAYER.keys() - kept.keys()}
    write_tensors(folder / "model.safetensors", {**kept, **vectors, "b": ("F32", [2])})
    assert problem(folder) == f"DIR: no layers named {' and '.join(gone)}; adapters are put on {', '.join(PROJECTIONS)}"


@pytest.mark.parametrize("size", [None, 0, "many", 2.5, True])
def test_a_config_without_a_vocabulary(folder, size):
    write_json(folder / "config.json", {**CONFIG, "vocab_size": size})
    assert problem(folder) == f"DIR/config.json: vocab_size {size!r}: no number of tokens"


def test_weights_that_are_integers(folder):
    write_tensors(folder / "model.safetensors", {"a": ("I64", [4])})
    assert problem(folder) == f"DIR: no weights in bf16, fp16 or fp32; {WANTED}"


# --- tokenizer -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_no_tokenizer(folder, name):
    (folder / name).unlink()
    assert problem(folder) == f"DIR: no {name}: wanted: the files of a fast tokenizer, as its save_pretrained writes them"


@pytest.mark.parametrize("content", ["", '{"version": ', "version https://git-lfs.github.com/spec/v1\n"])
def test_half_a_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    assert problem(folder) == "DIR/tokenizer.json: no object in JSON from end to end; was it copied whole?"


def test_a_tokenizer_with_code_of_its_own(folder):
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]})
    assert problem(folder) == f"DIR/tokenizer_config.json: auto_map: it asks for its own code, which is never run here; {WANTED}"


NO_TEMPLATE = "DIR: no chat template: neither chat_template.jinja, nor chat_template in tokenizer_config.json"
NO_TOOLS = "DIR: its chat template takes no tools; wanted: one that offers functions"
PLAIN = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, NO_TEMPLATE),
        (7, NO_TEMPLATE),
        ([7, {"name": "rag", "template": TEMPLATE}, {"name": 7, "template": TEMPLATE}], NO_TEMPLATE),
        (PLAIN, NO_TOOLS),
        ("{{ mytools }}", NO_TOOLS),
        ([{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": PLAIN}], NO_TOOLS),
        (TEMPLATE, ""),
        ([{"name": "default", "template": TEMPLATE}], ""),
        ([{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TEMPLATE}], ""),
    ],
)
def test_a_template_in_the_config_of_the_tokenizer(folder, template, said):
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template=template)
    if said:
        assert problem(folder) == said
    else:
        look_at(folder)


def test_a_template_of_its_own_file_comes_first(folder):
    change(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    (folder / "chat_template.jinja").write_text(PLAIN)
    assert problem(folder) == NO_TOOLS
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE)
    look_at(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    assert problem(folder) == "DIR/chat_template.jinja: not UTF-8: byte 1 is 0xff"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A real model and a real tokenizer of transformers, saved in one file and in several."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    model = Qwen2ForCausalLM(config)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), unk_token="?")
    tokenizer.chat_template = TEMPLATE
    folders = {size: tmp_path_factory.mktemp("saved") for size in ("5GB", "1KB")}
    for size, folder in folders.items():
        model.save_pretrained(folder, max_shard_size=size)
        tokenizer.save_pretrained(folder)
    return model, tuple(folders.values())


def test_what_save_pretrained_writes_is_sound(saved):
    model, folders = saved
    for folder in folders:
        found = look_at(folder)
        assert (found.num_parameters, found.architecture, found.longest) == (model.num_parameters(), "Qwen2ForCausalLM", 32768)
    assert [len(list(folder.glob("*.safetensors"))) > 1 for folder in folders] == [False, True]


def test_what_its_template_makes_of_calls_is_found_again(tmp_path, saved):
    from transformers import AutoTokenizer

    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, made(20, seed=0))))
    tokenizer = AutoTokenizer.from_pretrained(saved[1][0], local_files_only=True)
    for dialogue in read(tmp_path / "calls.jsonl").dialogues:
        prompt, answer = dialogue.messages[: dialogue.first_answer], dialogue.messages[dialogue.first_answer]
        before, after = (
            tokenizer.apply_chat_template(for_template(messages), tools=list(dialogue.tools) or None, tokenize=False)
            for messages in (prompt, [*prompt, answer])
        )
        assert [tool["function"]["name"] in before for tool in dialogue.tools] == [True, True]
        assert find_calls(after.removeprefix(before).removeprefix("<|im_start|>assistant")).calls == answer.calls
