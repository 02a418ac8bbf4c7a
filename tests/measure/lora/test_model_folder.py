import json
import math
import os
from pathlib import Path

import pytest
from made_checkpoints import LAYER, PROJECTIONS, TEMPLATE, make_checkpoint, write_json, write_tensors

from gpu_acceptance.measure.lora import model_folder
from gpu_acceptance.measure.lora.calls import find_calls, for_template
from gpu_acceptance.measure.lora.model_folder import CheckpointError, look_at
from gpu_acceptance.measure.lora.reading import read
from tools.made_dialogues import made

WANTED = "wanted: a checkpoint in Hugging Face format, as save_pretrained writes it"
ON_EVERY_NODE = WANTED.replace("wanted", "wanted on every node", 1)
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 1024, "vocab_size": 300}


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


def test_what_a_folder_holds(folder):
    found = look_at(folder)
    assert str(found) == "Qwen2ForCausalLM (44 parameters, 100 bytes in BF16 and F32, sequences to 512 tokens)"
    assert (found.folder, found.architecture, found.longest, found.num_parameters) == (folder, "Qwen2ForCausalLM", 512, 44)
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


# --- faults: what is done to a file of a sound folder, and what is said ---------------------------------------------------------

CODE = f"auto_map: it asks for its own code, which is never run here; {WANTED}"
NOT_WHOLE = "no weight_map of files NAME.safetensors in this folder; was it copied whole?"
QUANTISED = "quantization_config: its weights are quantised; wanted: weights in bf16, fp16 or fp32"
NO_FILE = "cannot be read: No such file or directory"
HALF = "no object in JSON from end to end; was it copied whole?"
NO_TEMPLATE = "DIR: no chat template: neither chat_template.jinja, nor chat_template in tokenizer_config.json"
NO_ANSWER = "DIR: its chat template does not write an answer after the messages before it; wanted: one that writes a dialogue in order"
PLAIN = "{{ messages[0].content }}"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
QWEN2 = "['Qwen2ForCausalLM']"
CHANGES = {  # of one file, by a few words
    "gone": lambda path: path.unlink(),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": lambda path: (path.unlink(), path.symlink_to("blobs/not-downloaded")),
}


def edit(path, how):
    """Change values of JSON, or all bytes, or do what is named or given."""
    if isinstance(how, dict):
        change(path, **how)
    elif isinstance(how, bytes):
        path.write_bytes(how)
    else:
        CHANGES.get(how, how)(path)


def having(tensors):
    return lambda path: write_tensors(path, tensors)


def pickled(name):
    return lambda path: path.rename(path.with_name(name))


def without(*names):
    """As of models whose projections are one matrix, or quantised by names of their own."""
    return having({name: ("BF16", [6]) if name.split(".")[-2] in names else tensor for name, tensor in LAYER.items()})


def no_model(model_type, architectures):
    named = f"model_type {model_type}, architectures {architectures}"
    return f"DIR/config.json: {named}: no causal language model of the transformers installed here"


def multimodal(model_type, key):
    return f"{key}: model_type {model_type!r} is a multimodal model; wanted: a causal language model of text alone"


def in_files(folder):
    """Its weights in two files."""
    (folder / WEIGHTS).unlink()
    write_tensors(folder / FIRST, LAYER)
    write_tensors(folder / SECOND, {"b": ("BF16", [2]), "c": ("BF16", [3])})
    write_json(folder / INDEX, {"metadata": {}, "weight_map": {**dict.fromkeys(LAYER, FIRST), "b": SECOND, "c": SECOND}})


FAULTS = [
    ("config.json", {"auto_map": {}}, f"DIR/config.json: {CODE}"),
    ("config.json", {"quantization_config": {"quant_method": "gptq"}}, f"DIR/config.json: {QUANTISED}"),
    ("config.json", {"compression_config": {"format": "int4"}}, f"DIR/config.json: {QUANTISED.replace('quantization', 'compression')}"),
    *(
        ("config.json", {"model_type": kind, "architectures": [name], key: {"hidden_size": 8}}, f"DIR/config.json: {multimodal(kind, key)}")
        for kind, name, key in (
            ("gemma3", "Gemma3ForConditionalGeneration", "text_config"),
            ("mistral3", "Mistral3ForConditionalGeneration", "text_config"),
            ("qwen2_vl", "Qwen2VLForConditionalGeneration", "vision_config"),
            ("llama4", "Llama4ForConditionalGeneration", "text_config"),
            ("qwen2_audio", "Qwen2AudioForConditionalGeneration", "audio_config"),
        )
    ),
    ("config.json", {"model_type": "no such"}, no_model("'no such'", QWEN2)),
    ("config.json", {"model_type": ["qwen2"]}, no_model("['qwen2']", QWEN2)),
    ("config.json", {"architectures": ["Qwen2ForSequenceClassification"]}, no_model("'qwen2'", "['Qwen2ForSequenceClassification']")),
    ("config.json", {"architectures": None}, no_model("'qwen2'", "None")),
    ("config.json", {"architectures": ["x" * 200]}, no_model("'qwen2'", f"['{'x' * 78}...")),
    ("config.json", {"model_type": "bert", "architectures": ["BertModel"]}, no_model("'bert'", "['BertModel']")),
    *(
        ("config.json", {key: size}, f"DIR/config.json: {key} {size!r}: {said}")
        for key, said in (("max_position_embeddings", "no longest sequence"), ("vocab_size", "no number of tokens"))
        for size in (None, 0, True, 2.5, "512")
    ),
    *(
        (name, how, f"DIR/{name}: {said}")
        for name in ("config.json", "tokenizer_config.json")
        for how, said in {
            b"{\n": "line 2, column 1: Expecting property name enclosed in double quotes; was it copied whole?",
            b"[]": f"no object; {WANTED}",
            b"\xff": "not UTF-8: byte 1 is 0xff",
            "a pipe": f"not a file of at most 134,217,728 bytes; {WANTED}",
        }.items()
    ),
    (SECOND, "gone", f"DIR/{SECOND}: {NO_FILE}; {ON_EVERY_NODE}"),
    (SECOND, "a link", f"DIR/{SECOND}: {NO_FILE}; {ON_EVERY_NODE}"),
    (SECOND, "a folder", f"DIR/{SECOND}: not a file; {WANTED}"),
    (SECOND, b"x", f"DIR/{SECOND}: 1 bytes, and no length of a header of safetensors at its beginning"),
    (SECOND, having({"b": ("BF16", [2])}), f"DIR/{SECOND}: lacks 'c', which {INDEX} promises in it"),
    *(
        (INDEX, {"weight_map": places}, f"DIR/{INDEX}: {NOT_WHOLE}")
        for places in (None, {}, [], {"a": 1}, {"a": f"../{WEIGHTS}"}, {"a": f"/{WEIGHTS}"}, {"a": "pytorch_model.bin"})
    ),
    (WEIGHTS, "gone", f"DIR: neither {WEIGHTS} nor {INDEX}; {ON_EVERY_NODE}"),
    *(
        (
            WEIGHTS,
            pickled(name),
            f"DIR: '{name}' and no {WEIGHTS}: pickled weights are never opened here; convert them on a trusted host: "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)",
        )
        for name in ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "consolidated.00.pth", "last.ckpt")
    ),
    *(
        (WEIGHTS, without(*gone), f"DIR: no layers named {' and '.join(gone)}; adapters are put on {', '.join(PROJECTIONS)}")
        for gone in (PROJECTIONS[:1], PROJECTIONS[4:6])
    ),
    (WEIGHTS, having({"a": ("I64", [4])}), f"DIR: no weights in bf16, fp16 or fp32; {WANTED}"),
    *(
        (name, "gone", f"DIR: no {name}: wanted: the files of a fast tokenizer, as its save_pretrained writes them")
        for name in ("tokenizer.json", "tokenizer_config.json")
    ),
    ("tokenizer.json", b"", f"DIR/tokenizer.json: {HALF}"),
    ("tokenizer.json", b'{"version": ', f"DIR/tokenizer.json: {HALF}"),
    ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", f"DIR/tokenizer.json: {HALF}"),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["x.Y", None]}}, f"DIR/tokenizer_config.json: {CODE}"),
    ("chat_template.jinja", PLAIN.encode(), NO_ANSWER),  # it comes before that in the config of the tokenizer
    ("chat_template.jinja", b"\xff", "DIR/chat_template.jinja: not UTF-8: byte 1 is 0xff"),
]


@pytest.mark.parametrize(("name", "how", "said"), FAULTS, ids=range(len(FAULTS)))
def test_a_checkpoint_that_cannot_be_trained(folder, name, how, said):
    change(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    if name in {SECOND, INDEX}:
        in_files(folder)
    edit(folder / name, how)
    assert problem(folder) == said


@pytest.mark.parametrize("name", ["no", "x" * 300])
def test_no_folder(tmp_path, name):
    assert problem(tmp_path / name) == f"DIR: no config.json; {ON_EVERY_NODE} (in the cache of a hub: a folder in snapshots)"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MOST_BYTES", 10, f"DIR/config.json: not a file of at most 10 bytes; {WANTED}"),
        ("_TABLE", "NO_SUCH", "modeling_auto.py: no NO_SUCH: the models of this transformers cannot be listed; use another version of it"),
    ],
)
def test_a_file_that_is_too_large_and_a_transformers_without_the_table(folder, monkeypatch, name, value, said):
    monkeypatch.setattr(model_folder, name, value)
    assert problem(folder).endswith(said)


# --- other sound folders --------------------------------------------------------------------------------------------------------


def test_a_number_that_is_not_finite_costs_only_who_asks_for_it(folder):
    """The configs of Bamba and Falcon-H1 have `time_step_limit`, as transformers writes it."""
    change(folder / "config.json", time_step_limit=[0.0, math.inf])
    assert look_at(folder).longest
    change(folder / "config.json", max_position_embeddings=math.inf)
    with pytest.raises(CheckpointError, match="max_position_embeddings inf: no longest sequence"):
        look_at(folder)


def test_weights_in_several_files_and_other_names_in_the_config(folder):
    write_json(folder / "config.json", GPT2)
    assert str(look_at(folder)) == "GPT2LMHeadModel (44 parameters, 100 bytes in BF16 and F32, sequences to 1,024 tokens)"
    in_files(folder)
    assert str(look_at(folder)) == "GPT2LMHeadModel (47 parameters, 94 bytes in BF16, sequences to 1,024 tokens)"
    write_tensors(folder / WEIGHTS, {name: ("F32", [1, 1]) for name in LAYER})  # one file comes before an index
    assert str(look_at(folder)) == "GPT2LMHeadModel (7 parameters, 28 bytes in F32, sequences to 1,024 tokens)"


@pytest.mark.parametrize("key", ["quantization_config", "text_config", "vision_config"])
def test_a_key_without_a_value_says_nothing(folder, key):
    change(folder / "config.json", **{key: None})
    assert look_at(folder).num_parameters == 44


def test_a_template_knows_the_tokens_of_the_tokenizer(folder):
    change(folder / "tokenizer_config.json", bos_token={"content": "<s>"}, eos_token="</s>", pad_token=None)
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ pad_token }}" + TEMPLATE.replace("<|im_end|>", "{{ eos_token }}"))
    assert look_at(folder).template.form.end == "</s>"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, NO_TEMPLATE),
        (7, NO_TEMPLATE),
        ([7, {"name": "rag", "template": TEMPLATE}, {"name": 7, "template": TEMPLATE}], NO_TEMPLATE),
        (PLAIN, NO_ANSWER),
        ("{{ mytools }}", NO_ANSWER),
        ([{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": PLAIN}], NO_ANSWER),
        (TEMPLATE, ""),
        ([{"name": "default", "template": TEMPLATE}], ""),
        ([{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TEMPLATE}], ""),
    ],
)
def test_a_template_in_the_config_of_the_tokenizer_and_one_in_a_file_of_its_own(folder, template, said):
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template=template)
    assert not said or problem(folder) == said
    if said:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE)
    look_at(folder)


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
        prompt, answer = dialogue.messages[: dialogue.answers[0]], dialogue.messages[dialogue.answers[0]]
        before, after = (
            tokenizer.apply_chat_template(for_template(messages), tools=list(dialogue.tools) or None, tokenize=False)
            for messages in (prompt, [*prompt, answer])
        )
        assert [tool["function"]["name"] in before for tool in dialogue.tools] == [True, True]
        assert find_calls(after.removeprefix(before).removeprefix("<|im_start|>assistant")).calls == answer.calls
