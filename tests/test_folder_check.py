"""A folder that does not answer is said to, and nobody waits for it longer; one on a dead server: test_end_to_end_network_fs.py."""

import pytest

from gpu_acceptance.folder_check import ask, find_silent, find_wrong


@pytest.mark.parametrize("find", [find_wrong, find_silent])
def test_nobody_waits_longer_than_this(tmp_path, find):
    assert find(tmp_path, patience_s=0) == "no answer within 0 s: is its server there? (findmnt -T DIR)"


def test_whatever_answers_is_not_silent(tmp_path):
    assert find_silent(tmp_path) == find_silent(tmp_path / "no") == ""


def test_a_script_that_fails_is_no_answer(tmp_path):
    assert ask(str(tmp_path / "no"), patience_s=60) == "no answer: exit code 2"


def test_what_is_wrong_with_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert find_wrong(tmp_path) == ""
    assert find_wrong(tmp_path / "no") == "No such file or directory; name a folder that is there on every node"
    assert find_wrong(tmp_path / "file") == "not a folder; name one that is there on every node"
