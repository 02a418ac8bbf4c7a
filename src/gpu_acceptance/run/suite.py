"""Where the acceptance suite is: the folder of `acceptance/` and of the conftest that names the plugin."""

from pathlib import Path

FOLDER = "acceptance"  # one file in it is one subject
CONFTEST = "conftest.py"
PARTS = (FOLDER, CONFTEST, "fixtures", "pytest.ini")  # what a copy of it must hold; profiles may be elsewhere
PLUGIN = "gpu_acceptance.plugin"
_PACKAGE = Path(__file__).parents[1]
INSTALLED = _PACKAGE / "suite"  # the copy that a wheel carries; a checkout has none


def suite_for(folder: Path) -> Path:
    """The suite that a run takes which is started in this folder: the one that is there, else the one of this package."""
    return folder if is_suite(folder) else find_suite()


def find_suite() -> Path:
    """The suite that belongs to this package: the checkout that the package is in, else the copy that it was installed with.

    Raises FileNotFoundError.
    """
    for folder in (_PACKAGE.parents[1], INSTALLED):
        if is_suite(folder):
            return folder
    raise FileNotFoundError(2, "no acceptance suite here, and this package is in no checkout: install it with pip", str(INSTALLED))


def is_suite(folder: Path) -> bool:
    """Whether pytest finds the validations and the plugin there."""
    conftest = folder / CONFTEST
    return (folder / FOLDER).is_dir() and conftest.is_file() and PLUGIN in conftest.read_text(encoding="utf-8", errors="replace")


def is_installed(folder: Path) -> bool:
    """Whether this is the copy in site-packages, into which a run writes nothing."""
    return INSTALLED.is_dir() and INSTALLED.samefile(folder)
