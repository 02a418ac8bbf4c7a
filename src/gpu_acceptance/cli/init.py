"""The verb that copies the acceptance suite into a folder, for the validations and limits of a site."""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance import __version__
from gpu_acceptance.base.text import one_line
from gpu_acceptance.run.suite import PARTS, find_suite
from gpu_acceptance.thresholds.profile import shipped_dir

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs

_README = Path(__file__).with_name("suite.md")


def add_verbs(verbs: "Verbs") -> None:
    init = verbs.add_parser(
        "init",
        help="copy the acceptance suite into a folder, to add validations and limits",
        description="Copy the acceptance suite into DIR: validations, fixtures, limits, and a README that says how to run them and how to "
        "add to them. The copy runs with the gpu-acceptance that is installed.",
    )
    init.add_argument("folder", metavar="DIR", type=Path, help="a folder that does not exist yet, or is empty")
    init.set_defaults(verb=_init)


def _init(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; allowed: a folder that does not exist yet, or is empty")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; allowed: a folder that does not exist yet, or is empty")
    for source, target in _files():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / target)  # without the mode: a package may be read-only, and the copy is there to be changed
    (folder / "README.md").write_text(_README.read_text(encoding="utf-8").replace("{version}", __version__), encoding="utf-8")
    print(f"{one_line(str(folder))}: the suite of gpu-acceptance {__version__}; README.md there says how to run it and how to add to it")
    return 0


def _files() -> Iterator[tuple[Path, Path]]:
    """Each file of the suite, and its place in the copy."""
    suite = find_suite()
    for place, part in [*((suite / part, part) for part in PARTS), (shipped_dir(), "thresholds")]:
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file() and file.parent.name != "__pycache__":
                yield file, Path(part) / file.relative_to(place)
