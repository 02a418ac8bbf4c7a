"""A checkpoint from its folder: what has no room, and what is not all of one model."""

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from gpu_acceptance.measure.lora.chat import MissingWeightsError, Sizes, load, refuse_too_large
from gpu_acceptance.measure.lora.model_folder import Checkpoint
from gpu_acceptance.measure.train.shapes import Adapter
from gpu_acceptance.measure.train.step import Schedule, TrainingMemoryError

CPU = torch.device("cpu")
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 20}


def checkpoint(folder, num_parameters, vocabulary, num_ends):
    return Checkpoint(folder, "qwen2", "Qwen2ForCausalLM", num_parameters, 0, ("F32",), 64, vocabulary, num_ends, "")


@pytest.fixture
def saved(tmp_path):
    Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=1, **SIZES)).save_pretrained(tmp_path)
    return checkpoint(tmp_path, 10**3, 20, 100)


def test_all_weights_are_of_one_dtype(saved):
    for in_bf16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        assert {weights.dtype for weights in load(saved, CPU, in_bf16=in_bf16).parameters()} == {dtype}


def test_weights_that_are_not_there_are_not_drawn_at_random(saved):
    config = json.loads((saved.folder / "config.json").read_text())
    (saved.folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}))
    with pytest.raises(MissingWeightsError) as caught:
        load(saved, CPU, in_bf16=False)
    missing = "model.layers.1.input_layernorm.weight"
    text = f"{saved.folder}: its config wants 12 tensors that are not in its files, such as {missing}"
    assert str(caught.value) == text


def test_a_checkpoint_that_has_no_room_is_told_before_it_is_loaded():
    sizes = Sizes(Adapter(64, 128), Schedule(2, 1, 0.1), 1024, 2, 1, 1, 1, recomputes=False, host_bytes=12_300_000_000)
    with pytest.raises(TrainingMemoryError) as caught:
        refuse_too_large(checkpoint(Path("huge"), 10**14, 10**5, 10**6), sizes, CPU)
    text = (
        "too little memory: huge wants at least 200,002.7 GB on each rank (weights 200,000.0, adapters 1.0, logits 1.6), and "
        "12.3 GB are free; lower lora_model.batch_size or lora_model.sequence, or use larger GPUs"
    )
    assert str(caught.value) == text
    refuse_too_large(checkpoint(Path("small"), 10**5, 100, 100), sizes, CPU)
