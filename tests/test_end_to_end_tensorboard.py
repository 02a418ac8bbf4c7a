"""`--tensorboard` comes after the verdict and never instead of it; test_end_to_end_accepted.py reads the files."""

import pytest
from suite import extend_conftest, make_suite, plain_pytest

pytestmark = pytest.mark.launcher


def test_what_is_in_their_place_costs_the_event_files_and_nothing_else(tmp_path):
    ended = plain_pytest(
        make_suite(tmp_path / "suite", "passes", "spoils_files"),
        "--tensorboard",
        "--run-id=first",
        env={"SPOILS": "reports/first/tensorboard"},
    )
    assert ended.returncode == ended.record.conclusion.exit_code == 0, ended.output
    assert f"tensorboard: no event files in {ended.folder}: RecordError: {ended.folder}/tensorboard is there already" in ended.output
    assert (ended.folder / "report.html").is_file()
    assert not list((ended.folder / "tensorboard").iterdir())


def test_without_the_package_nothing_is_begun(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    extend_conftest(suite, 'sys.modules["tensorboardX"] = None')
    refused = plain_pytest(suite, "--tensorboard")
    assert refused.returncode == 4, refused.output
    assert "ERROR: --tensorboard writes with tensorboardX, which is not installed: " in refused.output
    assert "-m pip install tensorboardX, or leave it out" in refused.output
    assert refused.folder is None
