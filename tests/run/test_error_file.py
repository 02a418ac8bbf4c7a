import json

import pytest

from gpu_acceptance.run.outputs import write_error_file


def test_torchrun_finds_the_last_screen_and_prints_it_last(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    write_error_file("REJECTED: 1 limit missed", ["REJECTED: 1 limit missed", "coverage: µ", "report: there"])
    message = json.loads(path.read_text(encoding="utf-8"))["message"]
    assert message["message"] == "REJECTED: 1 limit missed"
    assert message["extraInfo"]["py_callstack"].lstrip("\n") == "REJECTED: 1 limit missed\ncoverage: µ\nreport: there"
    assert message["extraInfo"]["py_callstack"].count("\n") == 14, "what torchrun says of the rank is out of sight"
    write_error_file("REJECTED: 1 limit missed")
    other = json.loads(path.read_text(encoding="utf-8"))["message"]["extraInfo"]
    assert other["py_callstack"] == "REJECTED: 1 limit missed"
    assert int(other["timestamp"]) > int(message["extraInfo"]["timestamp"]), "torchrun prints the earliest one last"


@pytest.mark.parametrize("value", [None, ""])
def test_without_torchrun_nothing_is_written(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
    write_error_file("REJECTED")
    assert list(tmp_path.iterdir()) == []


def test_a_torchrun_that_is_gone_took_its_folder_along(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    write_error_file("REJECTED")
    assert list(tmp_path.iterdir()) == []
