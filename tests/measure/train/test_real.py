"""Two real ranks (gloo) train on real files through DataLoader workers: what they trained is what the files hold, each its own part."""

import re

import numpy as np
import pytest
import torch
from gloo_ranks import answers_of
from PIL import Image

pytestmark = pytest.mark.slow

NUM_SAMPLES, LENGTH, BATCH = 40, 10, 3  # 6 whole batches of each rank in an epoch


def images(folder, number):
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
    images(folder, 12)
    (folder / "broken").mkdir()
    images(folder / "broken", 12)
    (folder / "broken" / "images" / "red" / "3.jpg").write_bytes(b"no image")
    return answers_of("train/real_ranks.py", 2, tmp_path_factory.mktemp("ranks"), str(folder))


def samples_of(answer, epoch):
    """Return where in the file the samples of a rank begin, in one epoch."""
    return [sample[0] for batch in answer["inputs"][6 * epoch : 6 * epoch + 6] for sample in batch]


def test_what_is_trained_are_consecutive_tokens_of_the_file(answers):
    for answer in answers:
        assert len(answer["inputs"]) > 12  # more than two epochs
        for inputs, targets in zip(answer["inputs"], answer["targets"], strict=True):
            assert len(inputs) == BATCH
            for sample, following in zip(inputs, targets, strict=True):
                assert sample[0] % LENGTH == 0
                assert [*sample, following[-1]] == list(range(sample[0], sample[0] + LENGTH))
                assert following[:-1] == sample[1:]


def test_each_rank_trains_its_own_part_of_each_epoch_which_is_shuffled_anew(answers):
    for epoch in (0, 1):
        first, second = (samples_of(answer, epoch) for answer in answers)
        assert len(set(first)) == len(set(second)) == 6 * BATCH
        assert not set(first) & set(second)
    assert samples_of(answers[0], 0) != samples_of(answers[0], 1)


@pytest.mark.parametrize("way", ["alone", "sharded"])
def test_on_each_rank_by_itself_as_well_and_where_the_model_is_sharded(answers, way):
    first, second = ({sample[0] for batch in answer[way][:6] for sample in batch} for answer in answers)
    assert len(first) == len(second) == 6 * BATCH
    assert not first & second


def test_images_are_normalised_and_come_with_their_class(answers):
    """Pure red and pure blue, by the mean and the deviation of ImageNet, within what bf16 and JPEG leave."""
    pure = {0: torch.tensor([-2.118, -2.036, 2.640]), 1: torch.tensor([2.249, -2.036, -1.804])}
    for answer in answers:
        assert all(one == [[2, 3, 32, 32], "torch.bfloat16", True] for one in answer["images"])
        for colours, classes in zip(answer["colours"], answer["classes"], strict=True):
            for colour, number in zip(colours, classes, strict=True):
                torch.testing.assert_close(torch.tensor(colour), pure[number], atol=0.05, rtol=0)
        assert {number for classes in answer["classes"] for number in classes} == {0, 1}


def test_training_tells_what_it_was_on_and_comes_to_equal_weights(answers):
    for answer in answers:
        assert answer["data"] == ["tokens.npy: 400 tokens", "images: 12 of 2 classes", *["tokens.npy: 400 tokens"] * 2]
        assert min(answer["num_steps"]) > 4
        assert answer["waits"] > 0
    assert answers[0]["digests"] == answers[1]["digests"]


def test_an_image_that_a_worker_cannot_decode_ends_the_training_and_is_named(answers):
    wanted = r"/\S+/broken/images/red/3\.jpg: cannot be decoded: UnidentifiedImageError: .*; replace or remove it"
    assert re.fullmatch(wanted, answers[1]["broken"]), answers[1]["broken"]
