"""The exit code that torchrun's ranks ended with, even if torchrun ended some of them itself."""

import signal
import tempfile
from types import SimpleNamespace

import pytest

from gpu_acceptance.control.torchrun import _own_code, main

TERM = -signal.SIGTERM


@pytest.mark.parametrize(
    ("codes", "own"),
    [
        ([(4, 2.0), (4, 1.0)], 4),
        ([(TERM, 1.0), (4, 2.0)], 4),
        ([(6, 2.0), (1, 1.0), (TERM, 3.0)], 1),
        ([(TERM, 1.0)], 0),
        ([(4, 1.0), (-signal.SIGKILL, 2.0)], 0),
        ([(4, 1.0), (9, 2.0)], 0),
    ],
)
def test_a_rank_that_torchrun_ended_hides_no_code_of_ours(codes, own):
    assert _own_code([SimpleNamespace(exitcode=code, timestamp=moment) for code, moment in codes]) == own


def test_no_folder_for_temporary_files_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    assert main(["-m", "pytest"]) == 4
    assert capsys.readouterr().err == (
        "ERROR: No usable temporary directory found in ['/nowhere']: name one by TMPDIR, or mount one at /tmp (an emptyDir, in a pod)\n"
    )
