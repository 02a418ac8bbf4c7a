"""The files beside the page: all of them, byte for byte again, and none that outlives what it says."""

import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.report import ending, exports
from gpu_acceptance.report.ending import spoil, write_ending
from gpu_acceptance.report.exports import EXPORTS, write_exports
from tests.journals import concluded, told
from tests.report import samples


@pytest.mark.parametrize("sample", samples.ALL)
def test_they_are_built_again_byte_for_byte(tmp_path, sample):
    write_ending(tmp_path, samples.ALL[sample]())
    before = {name: (tmp_path / name).read_bytes() for name in EXPORTS}
    assert write_exports(tmp_path, read_results(tmp_path)) == ()
    assert {name: (tmp_path / name).read_bytes() for name in EXPORTS} == before


def test_one_that_cannot_be_written_is_told_and_the_verdict_stands(tmp_path, monkeypatch):
    def fail(record):
        raise ZeroDivisionError("a bug")

    (tmp_path / "summary.txt").write_text("ACCEPTED, of another day")
    monkeypatch.setattr(exports, "EXPORTS", {**EXPORTS, "summary.txt": fail})
    made = write_ending(tmp_path, samples.rejected())
    assert made.lines[1] == f"{tmp_path}/summary.txt could not be written: ZeroDivisionError: a bug"
    assert (made.exit_code, read_results(tmp_path).conclusion) == (1, samples.rejected().conclusion)
    assert not (tmp_path / "summary.txt").exists()


def test_an_acceptance_is_taken_back_in_all_of_them(tmp_path):
    write_ending(tmp_path, concluded(told()))
    spoil(tmp_path, concluded(told()), "a hook failed")
    assert (tmp_path / "summary.txt").read_text().startswith("INCOMPLETE: a hook failed\n")


def test_none_is_left_where_no_results_can_be_written(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ending, "write_results", fail)
    write_ending(tmp_path, concluded(told()))
    assert [path.name for path in tmp_path.iterdir()] == []
