"""`tools/make_venv.py`: what is installed goes into the environment that make made, whatever a site has set for pip."""

import venv
import zipfile

import pytest

from tools.make_venv import install

NAME = "of_a_site-1"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("of_a_site.py", "")
        packed.writestr(f"{NAME}.dist-info/METADATA", "Metadata-Version: 2.1\nName: of-a-site\nVersion: 1\n")
        packed.writestr(f"{NAME}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{NAME}.dist-info/RECORD", "")
    return path


def test_a_site_that_installs_into_homes_changes_nothing(tmp_path, wheel, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIP_USER", "1")
    venv.create(tmp_path / "made", system_site_packages=True)
    install(tmp_path / "made" / "bin" / "python", ["--no-index", "--no-deps", str(wheel)])
    assert list((tmp_path / "made").glob("lib/python*/site-packages/of_a_site.py"))
    assert list(home.rglob("of_a_site*")) == []
