"""Makes or completes the virtual environment of `make`: `make_venv.py FOLDER EXTRA`. Standard library only.

The torch that this python has is used as it is (NGC image, cluster module) and never replaced: replacing it by what an index
offers would test another NCCL than the one the cluster will run. Where there is none, the tested version is installed.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
_TORCH_VERSION = "import torch; print(torch.__version__)"


def main(folder: Path, extra: str) -> None:
    python = folder / "bin" / "python"
    own = torch_version(Path(sys.executable))
    if not python.exists():
        make_venv(folder, with_own_packages=own is not None)
    if own is None:
        install(python, ["-c", str(CONSTRAINTS), "torch", "numpy"])
        install(python, ["-c", str(CONSTRAINTS), "-e", f"{ROOT}[{extra}]"])
        return
    install(python, ["-e", f"{ROOT}[{extra}]"])
    found = torch_version(python)
    if found != own:
        sys.exit(f"torch changed from {own} to {found} while {folder} was made: remove {folder} and install what is missing by hand")


def make_venv(folder: Path, *, with_own_packages: bool) -> None:
    """An environment that sees this python's packages where they hold the torch to use."""
    try:
        venv.create(folder, system_site_packages=with_own_packages, with_pip=True)
    except subprocess.CalledProcessError:  # no ensurepip, as in many images: this python's own pip installs into it
        venv.create(folder, system_site_packages=with_own_packages, with_pip=False)
    if with_own_packages and sys.prefix != sys.base_prefix:
        # This python is in an environment itself, whose packages a child environment does not see.
        own = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
        target = next(folder.glob("lib/python*/site-packages"))
        (target / "packages_of_parent.pth").write_text("\n".join(own) + "\n")


def install(python: Path, arguments: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments], check=True)


def torch_version(python: Path) -> str | None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    answer = subprocess.run([str(python), "-c", _TORCH_VERSION], capture_output=True, text=True, env=environment, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
