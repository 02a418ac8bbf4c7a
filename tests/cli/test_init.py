"""`gpu-acceptance init`: what the copy of the suite holds, and into which folders it is not made."""

import pytest

from gpu_acceptance.cli.verbs import main
from tests.run.test_suite import ROOT


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_copy_holds_the_suite_its_limits_and_a_readme(tmp_path, capsys):
    folder = tmp_path / "new" / "mine"
    assert main(["init", str(folder)]) == 0
    copied = files_of(folder)
    readme = copied.pop("README.md").decode()
    wanted = {name: (ROOT / name).read_bytes() for name in ("conftest.py", "pytest.ini")}
    for part in ("acceptance", "fixtures", "thresholds"):
        wanted |= {f"{part}/{name}": content for name, content in files_of(ROOT / part).items()}
    assert copied == wanted
    assert readme.startswith("# An acceptance suite of your own\n\nA copy of the suite of gpu-acceptance 0.2.0, ")
    assert capsys.readouterr().out.startswith(f"{folder}: the suite of gpu-acceptance 0.2.0; README.md there says how to run it")


def test_a_folder_that_is_there_and_empty_is_taken(tmp_path):
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "conftest.py").is_file()


@pytest.mark.parametrize(("name", "what"), [("full", "is not empty"), ("file", "is a file")])
def test_what_somebody_has_put_there_stays(tmp_path, capsys, name, what):
    place = tmp_path / name
    if name == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "mine").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", str(place)]) == 4
    told = f"gpu-acceptance: {place} {what}; allowed: a folder that does not exist yet, or is empty\n"
    assert capsys.readouterr().err == told
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "below")]) == 3
    assert capsys.readouterr().err == f"gpu-acceptance: {tmp_path / 'file' / 'below' / 'acceptance'}: Not a directory\n"
