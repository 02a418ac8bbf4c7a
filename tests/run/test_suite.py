"""Which suite a run takes: the one of the folder that it is started in, else the one of this package."""

from pathlib import Path

import pytest
from suite import make_suite

from gpu_acceptance.run import suite as suite_module
from gpu_acceptance.run.suite import find_suite, is_installed, is_suite, suite_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package outside any checkout that carries a suite."""
    package = tmp_path / "site-packages" / "gpu_acceptance"
    monkeypatch.setattr(suite_module, "_PACKAGE", package)
    monkeypatch.setattr(suite_module, "INSTALLED", package / "suite")
    return make_suite(package / "suite", "passes")


def test_a_package_in_a_checkout_has_the_checkout_for_its_suite():
    assert find_suite().samefile(ROOT)
    assert not is_installed(ROOT)


def test_an_installed_package_has_the_copy_that_it_carries(installed):
    assert find_suite() == installed
    assert is_installed(installed)


def test_the_folder_that_a_run_is_started_in_comes_first_where_it_is_a_suite(installed, tmp_path):
    own = make_suite(tmp_path / "own", "passes")
    assert suite_for(own) == own
    assert suite_for(tmp_path) == installed


@pytest.mark.parametrize("lacks", ["acceptance", "conftest.py", "plugin"])
def test_a_folder_that_lacks_a_part_is_no_suite(tmp_path, lacks):
    suite = make_suite(tmp_path)
    assert is_suite(suite)
    if lacks == "acceptance":
        (suite / lacks).rmdir()
    else:
        (suite / "conftest.py").unlink()
        if lacks == "plugin":
            (suite / "conftest.py").write_text("collect_ignore = []\n")  # tests of something else
    assert not is_suite(suite)


def test_a_package_without_any_suite_says_what_to_do(installed):
    (installed / "conftest.py").unlink()
    with pytest.raises(FileNotFoundError, match="this package is in no checkout: install it with pip"):
        find_suite()
