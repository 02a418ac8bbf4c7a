"""Check that this folder is an unpacked bundle, whole, as it was packed, and for this python: `check_bundle.py`. Standard library only.

A bundle is what `make_bundle.py` packs: a commit, `wheels/`, `bundle.json`, and `SHA256SUMS` over all of them, as sha256sum(1) reads it.
"""

import hashlib
import json
import re
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
ABOUT = "bundle.json"
WHEELS = "wheels"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True)
class Target:
    """The target of binary wheels: a Python (`3.12`) and a platform (`linux-x86_64`)."""

    python: str
    platform: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"


HERE = Target(f"{sys.version_info.major}.{sys.version_info.minor}", sysconfig.get_platform())


def main() -> None:
    try:
        check(ROOT)
    except ValueError as error:
        sys.exit(f"OFFLINE=1: {error}")


def check(folder: Path) -> None:
    """Raises ValueError over the first thing wrong; later checks rely on earlier ones."""
    if not (folder / SUMS).is_file():
        raise ValueError(
            f"no bundle here: {folder} has no {SUMS}. `make bundle` packs one where there is a network; unpack it and run there"
        )
    expected = read_sums(folder / SUMS)
    _check_files(folder, expected)
    packed_for = _read_target(folder)
    if packed_for != HERE:
        pack = f"`make bundle PY={HERE.python} PLATFORM={HERE.platform}`"
        raise ValueError(
            f"the wheels are for {packed_for}, {sys.executable} is {HERE}: name another one with PYTHON=..., or pack anew with {pack}"
        )


def _check_files(folder: Path, expected: dict[str, str]) -> None:
    missing = sorted(name for name in {*expected, ABOUT} if not (folder / name).is_file())
    if missing:
        raise ValueError(f"{_named(missing)} missing: unpack the bundle anew")
    extra = sorted(name for name in _files(folder / WHEELS, folder) if name not in expected)
    if extra:
        raise ValueError(f"{_named(extra)} not in {SUMS}: remove what the bundle did not bring")
    changed = [name for name in sorted(expected) if digest(folder / name) != expected[name]]
    if changed:
        raise ValueError(f"{_named(changed)} not as packed, by {SUMS}: unpack the bundle anew")


def _named(names: list[str]) -> str:
    """`wheels/a.whl is`, or `wheels/a.whl and 2 more are`; characters that a terminal would act on are escaped."""
    first = ascii(names[0])[1:-1]
    return f"{first} is" if len(names) == 1 else f"{first} and {len(names) - 1} more are"


def _read_target(folder: Path) -> Target:
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        return Target(python=str(about["python"]), platform=str(about["platform"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{ABOUT} does not say python and platform: unpack the bundle anew") from error


def write_about(folder: Path, commit: str, target: Target) -> None:
    (folder / ABOUT).write_text(json.dumps({"commit": commit, **asdict(target)}, indent=2) + "\n", encoding="utf-8")


def read_sums(path: Path) -> dict[str, str]:
    """File -> SHA-256. Raises ValueError over a line that sha256sum would not have written, or that leads out of the folder."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if not match or match[2].startswith("/") or ".." in match[2].split("/"):
            raise ValueError(f"line {number} of {SUMS} is not '<64 hexadecimal digits>  <file in this folder>': unpack the bundle anew")
        found[match[2]] = match[1]
    return found


def write_sums(folder: Path) -> None:
    (folder / SUMS).write_text("".join(f"{digest(folder / name)}  {name}\n" for name in _files(folder, folder)), encoding="utf-8")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path, root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    main()
