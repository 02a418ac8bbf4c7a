"""A value that is not there says why."""

import pathlib

import pytest

from gpu_acceptance.inventory import answer
from gpu_acceptance.inventory.answer import Missing, Why, names_in, read_text, read_value


def test_a_file_is_its_text_without_the_last_line_break(tmp_path):
    (tmp_path / "speed").write_text("32.0 GT/s PCIe\n")
    assert read_text(tmp_path / "speed") == "32.0 GT/s PCIe"


def test_a_number_is_a_number(tmp_path):
    (tmp_path / "width").write_text("16\n")
    assert read_value(tmp_path / "width", int) == 16


def test_what_is_no_number_is_said(tmp_path):
    (tmp_path / "width").write_text("sixteen")
    assert read_value(tmp_path / "width", int) == Missing(Why.UNREADABLE, f"{tmp_path / 'width'} says 'sixteen'")
    assert str(Missing(Why.UNREADABLE, "x says 'y'")) == "unreadable (x says 'y')"
    assert str(Missing(Why.NOT_SUPPORTED)) == "not supported"


@pytest.mark.parametrize("path", ["nothing", "file/below"])
def test_what_is_not_there(tmp_path, path):
    (tmp_path / "file").touch()
    assert read_text(tmp_path / path) == Missing(Why.NOT_THERE, str(tmp_path / path))
    assert names_in(tmp_path / "nothing") == Missing(Why.NOT_THERE, str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PermissionError(13, "Permission denied"), Why.NOT_PERMITTED),
        (OSError(1, "Operation not permitted"), Why.NOT_PERMITTED),
        (OSError(95, "Operation not supported"), Why.NOT_SUPPORTED),
        (OSError(22, "Invalid argument"), Why.UNREADABLE),
    ],
)
def test_an_error_of_the_kernel_has_its_own_reason(tmp_path, error, why):
    """sysfs answers so for links that are down and for what only root may read; root itself cannot be kept out of a file."""
    assert answer.missing_over(error, tmp_path).missing == why


def test_a_file_is_read_whole_or_not_at_all(tmp_path):
    (tmp_path / "long").write_text("x" * 100_000)
    assert len(read_text(tmp_path / "long")) == 100_000
    (tmp_path / "long").write_text("x" * 2_000_000)
    assert read_text(tmp_path / "long") == Missing(Why.UNREADABLE, f"{tmp_path / 'long'} is longer than 1048576 bytes")


def test_a_folder_is_no_file(tmp_path):
    assert read_text(tmp_path) == Missing(Why.UNREADABLE, f"{tmp_path}: Is a directory")


def test_bytes_that_are_no_text_are_kept_visible(tmp_path):
    (tmp_path / "name").write_bytes(b"H\xff200\n")
    assert read_text(tmp_path / "name") == "H\\xff200"


def test_names(tmp_path):
    for name in ("mlx5_1", "mlx5_0"):
        pathlib.Path(tmp_path / name).mkdir()
    assert names_in(tmp_path) == ("mlx5_0", "mlx5_1")
