"""Makes or completes the virtual environment of `make`: `make_venv.py FOLDER EXTRA [WHEELS]`. Standard library only.

`make_venv.py FOLDER` alone only refuses a python that it was not made with: what is tested is the torch of that one.

The torch that this python has is used as it is (NGC image, cluster module) and never replaced: replacing it by what an index
offers would test another NCCL than the one the cluster will run. Where there is none, the tested version is installed.

With WHEELS, of a bundle, no index is asked, by that folder's own pip: this python may have none. A bundle holds no torch.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
MADE_WITH = ".python"
OWN = f"Python {sys.version_info.major}.{sys.version_info.minor} in {sys.prefix}"
_TORCH_VERSION = "import torch; print(torch.__version__)"


def main(folder: Path, extra: str, wheels: Path | None = None) -> None:
    python = folder / "bin" / "python"
    own = torch_version(Path(sys.executable))
    if own is None and wheels:
        sys.exit(f"OFFLINE=1: {sys.executable} cannot import torch, and a bundle holds none: name the cluster's python with PYTHON=...")
    refuse_other_python(folder)
    if not python.exists():
        make_venv(folder, with_own_packages=own is not None, with_pip=wheels is None)
    if own is None:
        install(python, ["-c", str(CONSTRAINTS), "torch", "numpy"])
        install(python, ["-c", str(CONSTRAINTS), "-e", f"{ROOT}[{extra}]"])
        return
    if wheels:
        install_offline(python, f"{ROOT}[{extra}]", wheels.resolve())
    else:
        install(python, ["-e", f"{ROOT}[{extra}]"])
    found = torch_version(python)
    if found != own:
        sys.exit(f"torch changed from {own} to {found} while {folder} was made: remove {folder} and install what is missing by hand")


def refuse_other_python(folder: Path) -> None:
    """Its own python is none; of an environment from before this was written down nothing is known, and it is taken."""
    note = folder / MADE_WITH
    made_with = note.read_text(encoding="utf-8") if note.exists() else OWN
    if made_with != OWN and Path(sys.prefix).resolve() != folder.resolve():
        sys.exit(f"{folder} was made with {made_with}, and PYTHON is {OWN}: `make clean` removes it, or leave PYTHON out")


def make_venv(folder: Path, *, with_own_packages: bool, with_pip: bool) -> None:
    """An environment that sees this python's packages where they hold the torch to use."""
    try:
        venv.create(folder, system_site_packages=with_own_packages, with_pip=with_pip)
    except subprocess.CalledProcessError:  # no ensurepip, as in many images: this python's own pip installs into it
        venv.create(folder, system_site_packages=with_own_packages, with_pip=False)
    (folder / MADE_WITH).write_text(OWN, encoding="utf-8")
    if with_own_packages and sys.prefix != sys.base_prefix:
        # This python is in an environment itself, whose packages a child environment does not see.
        own = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
        target = next(folder.glob("lib/python*/site-packages"))
        (target / "packages_of_parent.pth").write_text("\n".join(own) + "\n")


def install(python: Path, arguments: list[str]) -> None:
    """By the environment's own pip. Debian's python has none, but can make one; many images have one, and cannot make another.

    Into the environment, where a site has set pip to install into the home of its user (PIP_USER, pip.conf) as well.
    """
    own = any(python.parents[1].glob("lib/python*/site-packages/pip"))
    pip = [str(python), "-m", "pip"] if own else [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", *arguments], env={**os.environ, "PIP_USER": "0"}, check=True)


def install_offline(python: Path, requirement: str, wheels: Path) -> None:
    """By the pip that was packed, from what was packed: an index, wheels or versions that this machine is set up for are no part of it."""
    (pip,) = wheels.glob("pip-*.whl")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = {**kept, "PIP_CONFIG_FILE": os.devnull, "PYTHONWARNINGS": "ignore"}
    command = [str(python), f"{pip}/pip", "install", "--quiet", "--no-index", f"--find-links={wheels}", "-e", requirement]
    if subprocess.run(command, env=environment, check=False).returncode:
        sys.exit(f"OFFLINE=1: {wheels} does not hold all that {requirement} needs here: see above")


def torch_version(python: Path) -> str | None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    answer = subprocess.run([str(python), "-c", _TORCH_VERSION], capture_output=True, text=True, env=environment, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


if __name__ == "__main__":
    if len(sys.argv) == 2:
        refuse_other_python(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:4]))
