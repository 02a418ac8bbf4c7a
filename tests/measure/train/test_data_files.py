"""Files that are no training data, or not enough of them: each is one error that names the file, what was seen and what is allowed."""

import os
import re
import warnings
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gloo_ranks import answers_of
from PIL import Image

from gpu_acceptance.measure.train import data_files
from gpu_acceptance.measure.train.data_files import DataError, feed_of, list_images, look_at_images, open_tokens, parts_of, read_image
from gpu_acceptance.measure.train.shapes import Decoder, ResNet, Workload

WANTED_TOKENS = "wanted: one array of token ids with one dimension, of uint16 or uint32, as numpy.save writes it"
WANTED_IMAGES = "wanted: images/CLASS/FILE with FILE in *.jpg, *.jpeg, *.png, *.webp"
GPT2 = Workload("gpt2", Decoder("gpt2", 1, 64, 2, vocabulary=100, sequence=4), batch_size=3)
RESNET = Workload("resnet", ResNet(18, 32, 2), batch_size=3)
TWO_RANKS = (1, 2)  # with a worker each


def refusal(function, *arguments):
    with pytest.raises(DataError) as caught:
        function(*arguments)
    return str(caught.value)


def image(path, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)
    return path


# --- tokens --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "seen"),
    [
        (np.zeros(4, np.int64), "1 dimensions of int64"),
        (np.zeros(4, ">u2"), "1 dimensions of >u2"),
        (np.zeros((2, 2), np.uint16), "2 dimensions of uint16"),
        (np.zeros(4, np.float32), "1 dimensions of float32"),
    ],
)
def test_an_array_that_is_none_of_tokens(tmp_path, array, seen):
    np.save(tmp_path / "tokens.npy", array)
    assert refusal(open_tokens, tmp_path / "tokens.npy") == f"{tmp_path}/tokens.npy: {seen}; {WANTED_TOKENS}"
    for dtype in (np.uint16, np.uint32):
        np.save(tmp_path / "tokens.npy", np.arange(7, dtype=dtype))
        found = open_tokens(tmp_path / "tokens.npy")
        assert isinstance(found, np.memmap)
        assert found.tolist() == list(range(7))


class Burns:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (self._path,)


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([Burns(str(tmp_path / "burnt"))], dtype=object), allow_pickle=True)
    why = '"Array can\'t be memory-mapped: Python objects in dtype."'
    assert refusal(open_tokens, tmp_path / "tokens.npy") == f"{tmp_path}/tokens.npy: cannot be read: {why}; {WANTED_TOKENS}"
    assert not (tmp_path / "burnt").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda whole: whole[:-1], "mmap length is greater than file size"),
        (lambda whole: whole[:20], "EOF: reading array header, expected 118 bytes got 10"),
        (lambda whole: b"", "EOF: reading magic string, expected 8 bytes got 0"),
        (lambda whole: b"PK\x03\x04" + bytes(99), "the magic string is not correct"),
        (lambda whole: whole.replace(b"(9,)", b"(9e9,)"), "shape is not valid"),
        (lambda whole: whole.replace(b"'<u2'", b"<<<<<"), "Cannot parse header"),
    ],
    ids=["truncated", "half a header", "empty", "a zip file", "no shape", "no header"],
)
def test_a_file_that_is_broken(tmp_path, content, why):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(9, dtype=np.uint16))
    path.write_bytes(content(path.read_bytes()))
    said = refusal(open_tokens, path)
    assert said.startswith(f"{path}: cannot be read: ")
    assert why in said
    assert said.endswith(f"; {WANTED_TOKENS}")
    assert len(said) < 700
    path.unlink()
    os.mkfifo(path)
    assert refusal(open_tokens, path) == f"{path}: not a file; {WANTED_TOKENS}"  # and it is not opened


def test_an_id_that_the_model_does_not_have_is_told_with_its_place(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([*range(95), 1, 2, 100, 3, 4], dtype=np.uint32))
    samples = data_files.TokenSamples(tmp_path / "tokens.npy", "gpt2", GPT2.shape)
    assert [part.tolist() for part in samples[18]] == [[90, 91, 92, 93], [91, 92, 93, 94]]
    said = "token 100 at place 97, and gpt2 has a vocabulary of 100: ids go from 0 to 99"
    assert refusal(samples.__getitem__, 19) == f"{tmp_path}/tokens.npy: {said}"


# --- images --------------------------------------------------------------------------------------------------------------------


def test_images_are_listed_by_class_in_order_with_what_was_left_out(tmp_path):
    folder = tmp_path / "images"
    paths = [image(folder / name) for name in ("a/1.JPEG", "a/2.png", "b\udcff/0.webp")]
    (folder / "a" / "notes.txt").touch()
    (folder / "README").touch()
    elsewhere = image(tmp_path / "elsewhere" / "3.jpg")
    (folder / "c").symlink_to(elsewhere.parent)
    found = list_images(folder, 8)
    assert [found.path(number) for number in range(len(found))] == [*paths, folder / "c" / "3.jpg"]
    assert found.numbers.tolist() == [0, 0, 1, 2]
    source = feed_of(tmp_path, RESNET, 1, 1).source
    assert source == "images: 4 of 3 classes, 2 other files left out"


def test_folders_that_hold_no_classes_or_no_images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    wanted = f"{WANTED_IMAGES}, with 1 to 1,000 of CLASS"
    assert refusal(look_at_images, folder) == f"{folder}: 0 class folders; {wanted}"
    (folder / "a").mkdir()
    (folder / "a" / "b.txt").touch()
    assert refusal(look_at_images, folder) == f"{folder}: 1 class folders, and no image in them; {WANTED_IMAGES}"
    image(folder / "b" / "0.png")
    look_at_images(folder)
    assert refusal(list_images, folder, 8) == f"{folder}/a: no image in it; {WANTED_IMAGES}"
    with patch.object(data_files, "NUM_CLASSES", 1):
        assert refusal(look_at_images, folder) == f"{folder}: 2 class folders; {WANTED_IMAGES}, with 1 to 1 of CLASS"
    assert refusal(look_at_images, tmp_path / "no") == f"{tmp_path}/no: cannot be read: No such file or directory; {WANTED_IMAGES}"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.mkdir()])
def test_what_is_named_like_an_image_must_be_a_file(tmp_path, make):
    (tmp_path / "a").mkdir()
    make(tmp_path / "a" / "0.png")
    assert refusal(look_at_images, tmp_path) == f"{tmp_path}/a/0.png: named like an image, and not a file; remove it"


def test_an_image_becomes_a_part_of_it_at_the_size_of_the_model(tmp_path):
    path = tmp_path / "0.png"
    pixels = np.zeros((30, 40, 4), np.uint8)
    pixels[..., 0], pixels[..., 3] = np.arange(40) * 6, 255
    Image.fromarray(pixels, "RGBA").save(path)
    samples = [read_image(path, 16) for _ in range(20)]
    assert {(sample.shape, sample.dtype) for sample in samples} == {(torch.Size([16, 16, 3]), torch.uint8)}
    ways = [int(sample[8, 15, 0]) - int(sample[8, 0, 0]) for sample in samples]
    assert min(ways) < 0 < max(ways)  # mirrored, and not
    assert all(int(sample[..., 1:].max()) == 0 for sample in samples)
    assert len({tuple(sample.flatten().tolist()) for sample in samples}) > 10  # two of twenty may be alike


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 5000), (640, 480)])
def test_what_is_drawn_lies_in_the_image(width, height):
    for _ in range(200):
        (left, upper, right, lower), _ = data_files.draw(width, height)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    good = image(tmp_path / "good.jpg", (64, 64)).read_bytes()
    for content in (b"", b"GIF89a" + bytes(20), good[: len(good) // 2], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        (tmp_path / "0.jpg").write_bytes(content)
        said = refusal(read_image, tmp_path / "0.jpg", 16)
        assert re.fullmatch(rf"{tmp_path}/0\.jpg: cannot be decoded: \w+: .*; replace or remove it", said), said


@pytest.mark.parametrize("times", [1.5, 3])
def test_a_decompression_bomb_is_an_error_as_pillow_counts_it(tmp_path, times, monkeypatch):
    image(tmp_path / "0.png", (150, 100))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(15_000 / times))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = refusal(read_image, tmp_path / "0.png", 16)
    assert re.match(rf"{tmp_path}/0\.png: cannot be decoded: DecompressionBomb(Error|Warning): .*15000 pixels", said), said


# --- the folder ----------------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_nothing_for_any_model(tmp_path):
    wanted = "wanted on every node: tokens.npy (an array of token ids), images/CLASS/FILE, or both"
    assert refusal(parts_of, tmp_path) == f"{tmp_path}: holds neither tokens.npy nor images; {wanted}"
    assert refusal(feed_of, tmp_path / "no", GPT2, *TWO_RANKS) == f"{tmp_path}/no: no folder that can be read; {wanted}"


def test_less_than_a_batch_for_each_rank_and_nothing_for_a_model(tmp_path):
    """A link to nothing is no reason to train on something else."""
    (tmp_path / "tokens.npy").symlink_to("nowhere")
    assert feed_of(tmp_path, RESNET, *TWO_RANKS) is None
    image(tmp_path / "images" / "a" / "0.png")
    assert parts_of(tmp_path) == (True, True)
    assert "No such file or directory" in refusal(feed_of, tmp_path, GPT2, *TWO_RANKS)
    (tmp_path / "tokens.npy").unlink()
    np.save(tmp_path / "tokens.npy", np.zeros(29, np.uint16))
    needs = "needs at least 6: a batch of 3 on each of 2 ranks"
    assert refusal(feed_of, tmp_path, GPT2, *TWO_RANKS) == f"{tmp_path}/tokens.npy: 5 samples of 5 tokens; gpt2 {needs}"
    assert refusal(feed_of, tmp_path, RESNET, *TWO_RANKS) == f"{tmp_path}/images: 1 samples (images); resnet {needs}"


# --- in training, on two real ranks (gloo) through DataLoader workers ------------------------------------------------------------

NUM_SAMPLES, LENGTH, BATCH = 40, 10, 3  # 6 whole batches of each rank in an epoch


def write_images(folder, number):
    """Write images, half of them red and half of them blue, by class."""
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (folder / "images" / name).mkdir(parents=True)
        for place in range(number // 2):
            suffix = ("jpg", "PNG", "webp")[place % 3]
            Image.new("RGB", (40, 30), colour).save(folder / "images" / name / f"{place}.{suffix}")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "tokens.npy", np.arange(NUM_SAMPLES * LENGTH, dtype=np.uint16))
    write_images(folder, 12)
    (folder / "broken").mkdir()
    write_images(folder / "broken", 12)
    (folder / "broken" / "images" / "red" / "3.jpg").write_bytes(b"no image")
    return answers_of("train/data_files_ranks.py", 2, tmp_path_factory.mktemp("ranks"), str(folder))


def samples_of(answer, epoch):
    """Return where in the file the samples of a rank begin, in one epoch."""
    return [sample[0] for batch in answer["inputs"][6 * epoch : 6 * epoch + 6] for sample in batch]


@pytest.mark.slow
def test_what_is_trained_are_consecutive_tokens_of_the_file(answers):
    for answer in answers:
        assert len(answer["inputs"]) > 12  # more than two epochs
        for inputs, targets in zip(answer["inputs"], answer["targets"], strict=True):
            assert len(inputs) == BATCH
            for sample, following in zip(inputs, targets, strict=True):
                assert sample[0] % LENGTH == 0
                assert [*sample, following[-1]] == list(range(sample[0], sample[0] + LENGTH))
                assert following[:-1] == sample[1:]


@pytest.mark.slow
def test_each_rank_trains_its_own_part_of_each_epoch_which_is_shuffled_anew(answers):
    for epoch in (0, 1):
        first, second = (samples_of(answer, epoch) for answer in answers)
        assert len(set(first)) == len(set(second)) == 6 * BATCH
        assert not set(first) & set(second)
    assert samples_of(answers[0], 0) != samples_of(answers[0], 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["alone", "sharded"])
def test_on_each_rank_by_itself_as_well_and_where_the_model_is_sharded(answers, way):
    first, second = ({sample[0] for batch in answer[way][:6] for sample in batch} for answer in answers)
    assert len(first) == len(second) == 6 * BATCH
    assert not first & second


@pytest.mark.slow
def test_images_are_normalised_and_come_with_their_class(answers):
    """Pure red and pure blue, by the mean and the deviation of ImageNet, within what bf16 and JPEG leave."""
    pure = {0: torch.tensor([-2.118, -2.036, 2.640]), 1: torch.tensor([2.249, -2.036, -1.804])}
    for answer in answers:
        assert all(one == [[2, 3, 32, 32], "torch.bfloat16", True] for one in answer["images"])
        for colours, classes in zip(answer["colours"], answer["classes"], strict=True):
            for colour, number in zip(colours, classes, strict=True):
                torch.testing.assert_close(torch.tensor(colour), pure[number], atol=0.05, rtol=0)
        assert {number for classes in answer["classes"] for number in classes} == {0, 1}


@pytest.mark.slow
def test_training_tells_what_it_was_on_and_comes_to_equal_weights(answers):
    for answer in answers:
        assert answer["data"] == ["tokens.npy: 400 tokens", "images: 12 of 2 classes", *["tokens.npy: 400 tokens"] * 2]
        assert min(answer["num_steps"]) > 4
        assert answer["waits"] > 0
    assert answers[0]["digests"] == answers[1]["digests"]


@pytest.mark.slow
def test_an_image_that_a_worker_cannot_decode_ends_the_training_and_is_named(answers):
    wanted = r"/\S+/broken/images/red/3\.jpg: cannot be decoded: UnidentifiedImageError: .*; replace or remove it"
    assert re.fullmatch(wanted, answers[1]["broken"]), answers[1]["broken"]
