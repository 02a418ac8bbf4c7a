"""A folder that does not answer is said to, and nobody waits for it longer; one on a dead server: test_end_to_end_network_fs.py."""

import os
import subprocess
import sys

import pytest

from gpu_acceptance.base import guard
from gpu_acceptance.base.guard import ask, find_silent, find_wrong


@pytest.mark.parametrize("find", [find_wrong, find_silent])
def test_nobody_waits_longer_than_this(tmp_path, find):
    assert find(tmp_path, patience_s=0) == "no answer within 0 s: is its server there? (findmnt -T DIR)"


def test_whatever_answers_is_not_silent(tmp_path):
    assert find_silent(tmp_path) == find_silent(tmp_path / "no") == ""


def test_a_program_that_is_none_is_no_answer():
    assert ask("no such program", patience_s=60) == "no answer: exit code 1"


def test_what_is_wrong_with_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert find_wrong(tmp_path) == ""
    assert find_wrong(tmp_path / "no") == "No such file or directory; name a folder that is there on every node"
    assert find_wrong(tmp_path / "file") == "not a folder; name one that is there on every node"


@pytest.mark.needs("root", "util-linux")
def test_a_root_that_may_not_write_is_told_of_who_may_take_it_for_somebody_else(tmp_path):
    """As on NFS with root_squash: here without the capability that lets root write anywhere."""
    (tmp_path / "theirs").mkdir(mode=0o755)
    os.chown(tmp_path / "theirs", 65534, 65534)
    command = ["setpriv", "--bounding-set=-dac_override", sys.executable, guard.__file__, "folder", str(tmp_path / "theirs")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    why = "which its server may map to another user (exports(5), root_squash)"
    assert said == f"not writable by root, {why}; name a folder that is, on every node\n"
