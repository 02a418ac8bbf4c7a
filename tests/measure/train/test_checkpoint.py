"""Saving a job in training and going on with it, on two real ranks (gloo): exactly, on one of them alone, with faults, without room."""

import re
import subprocess

import pytest
from gloo_ranks import answers_of
from needs import is_privileged

pytestmark = pytest.mark.slow

WAYS = ("ddp", "fsdp", "lora")
NUM_PARAMETERS = 118_528  # test_throughput.py counts them; the tied head is saved a second time
AT_LEAST_BYTES = 3 * 4 * NUM_PARAMETERS + 4 * 256 * 64


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    if not is_privileged():
        return answers_of("train/checkpoint_ranks.py", 2, folder)
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        return answers_of("train/checkpoint_ranks.py", 2, folder)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_goes_on_with_the_same_bits(answers, way):
    for answer in answers:
        found = answer[way]
        assert found["again"] == {"changed": [], "differing": [], "loss_error": 0}
        assert found["files"] == []
        assert way == "lora" or AT_LEAST_BYTES < found["num_bytes"] < 1.5 * AT_LEAST_BYTES
        assert min(found["rates"]) > 0


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_takes_over_what_two_have_saved(answers, way):
    """On the same data, which it sees as one batch: with another order of sums, which a base in bf16 may round off."""
    first, second = (answer[way]["on_one"] for answer in answers)
    assert first["changed"] == []
    assert first["loss_error"] < 1e-5
    assert first["loss_error"] > 0 or way == "lora"
    assert second == {"changed": [], "differing": [], "loss_error": first["loss_error"]}


def test_of_adapters_no_weight_of_their_base_is_saved(answers):
    names = [name for name in answers[0]["lora"]["tensors"] if name not in {"random", "num_done"}]
    assert len(names) == 4 * 2 * 7 * 2  # weight, two moments and count; A and B; projections; layers
    assert all("lora_" in name for name in names)


@pytest.mark.parametrize(
    ("fault", "changed", "differing"),
    [
        ("moment", " exp_avg", None),  # one bit of the optimizer
        ("random", "random", ["step 0", "step 1", "step 2"]),
        ("schedule", "num_done", ["step 1", "step 2"]),  # the first loss after it is of the weights that were loaded
    ],
)
def test_what_one_rank_loads_otherwise_is_found_there_and_changes_the_losses(answers, fault, changed, differing):
    first, second = (answer["spoiled"][fault] for answer in answers)
    (name,) = second["changed"]
    assert (first["changed"], name.endswith(changed)) == ([], True)
    assert differing is None or [text.split(":")[0] for text in second["differing"]] == differing
    assert all(re.fullmatch(r"step \d: [\d.]+, was [\d.]+", text) for text in second["differing"])
    assert first["loss_error"] == second["loss_error"]
    assert fault != "random" or first["loss_error"] > 1e-4


def test_a_flipped_bit_in_a_file_is_found(answers):
    first, second = (answer["spoiled"]["files"] for answer in answers)
    assert [text.split(":")[0] for text in first] == ["__1_0.distcp"]
    assert second == []


@pytest.mark.needs("privileged")
def test_no_room_is_told_on_all_ranks_beforehand_and_meanwhile(answers):
    for answer in answers:
        before, meanwhile = answer["full"]
        assert re.fullmatch(r"rank 0: OSError: /.+/disk/before: \d+ bytes are free, \d+ are needed, 2 times the checkpoint", before)
        assert re.match(r"/.+/disk/meanwhile: the checkpoint of \d+ bytes could not be written, \d+ bytes are free: rank \d: ", meanwhile)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("room", r"rank 0: FileNotFoundError: \[Errno 2\] No such file or directory: '.+/nowhere'"),
        ("part-1.json", r"rank 1: IsADirectoryError: \[Errno 21\] Is a directory: '.+/part-1\.json'"),
        ("manifest.json", r"rank 0: IsADirectoryError: \[Errno 21\] Is a directory: '.+/manifest\.json'"),
        ("losses.json", r"rank 0: IsADirectoryError: \[Errno 21\] Is a directory: '.+/losses\.json'"),
    ],
)
def test_what_one_rank_cannot_write_is_told_on_all(answers, what, expected):
    first, second = (answer["not_written"][what] for answer in answers)
    assert re.fullmatch(expected, first)
    assert second == first


def test_losses_that_one_rank_cannot_read_are_told_on_all(answers):
    first, second = (answer["not_read"] for answer in answers)
    assert second == first
    assert len(first) == 2
    for text in first:
        assert re.fullmatch(
            r"rank 1: UnusableError: /.+/losses\.json: FileNotFoundError: \[Errno 2\] No such file or directory: '.+'", text
        )


def test_fewer_ranks_divide_all(answers):
    assert answers[0]["fewer"] == {"1": 0, "2": 1, "3": 1, "8": 4, "9": 3, "1024": 512}
