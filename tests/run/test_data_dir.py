"""`--data-dir`: what is said of a folder before anything runs, and of nodes whose folders differ."""

import sys

import numpy as np
import pytest

from fixtures.training import refuse_unlike
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.run.training_files import refuse_unusable_data

WANTED = "wanted on every node: tokens.npy (an array of token ids), images/CLASS/FILE, or both"


def refusal(folder):
    with pytest.raises(RefusedError) as caught:
        refuse_unusable_data(folder)
    return str(caught.value)


@pytest.fixture
def with_tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", np.zeros(1500, np.uint16))
    return tmp_path


@pytest.fixture
def with_images(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "0.jpg").touch()
    return tmp_path


def test_without_the_option_there_is_nothing_to_say():
    assert refuse_unusable_data(None) == ""


def test_what_is_trained_on_what_is_said_of_every_model(tmp_path, with_tokens):
    always = "parity, checkpoint, lora_convergence and lora_modes: always synthetic"
    tokens = f"gpt2 and llama: {tmp_path}/tokens.npy (1,500 tokens)"
    assert refuse_unusable_data(tmp_path) == f"{tokens}; resnet: synthetic; {always}"
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "0.jpg").touch()
    assert refuse_unusable_data(tmp_path) == f"{tokens}; resnet: {tmp_path}/images; {always}"
    (tmp_path / "tokens.npy").unlink()
    assert refuse_unusable_data(tmp_path) == f"gpt2 and llama: synthetic; resnet: {tmp_path}/images; {always}"


def test_a_folder_without_data(tmp_path):
    assert refusal(tmp_path) == f"--data-dir: {tmp_path}: holds neither tokens.npy nor images; {WANTED}"
    (tmp_path / "file").touch()
    for name in ("no", "file", "x" * 300):
        assert refusal(tmp_path / name) == f"--data-dir: {tmp_path}/{name}: no folder that can be read; {WANTED}"


def test_what_is_wrong_with_one_kind_of_data_is_refused_where_the_other_is_sound(with_tokens, with_images):
    (with_images / "images" / "a" / "0.jpg").unlink()
    assert refusal(with_tokens).startswith(f"--data-dir: {with_tokens}/images: 1 class folders, and no image in them; wanted: ")
    (with_tokens / "tokens.npy").unlink()
    (with_tokens / "tokens.npy").symlink_to("nowhere")
    assert refusal(with_tokens).startswith(f"--data-dir: {with_tokens}/tokens.npy: cannot be read: ")


def test_images_without_what_decodes_them(with_images, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    install = f"{sys.executable} -m pip install Pillow"
    assert refusal(with_images) == f"--data-dir: {with_images}/images: images are decoded by Pillow, which is not installed: {install}"


def test_ranks_that_would_train_on_different_data():
    refuse_unlike(["synthetic"] * 3)
    with pytest.raises(RuntimeError) as caught:
        refuse_unlike(["tokens.npy: 9 tokens", "tokens.npy: 9 tokens", "synthetic", "tokens.npy: 8 tokens"])
    seen = "tokens.npy: 9 tokens on rank 0, synthetic on rank 2"
    assert str(caught.value) == f"ranks have different training data: {seen}; --data-dir must name the same data on every node"
