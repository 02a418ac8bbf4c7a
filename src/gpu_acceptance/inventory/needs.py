"""Which of the libraries and tools that only some validations need this machine lacks. Told without importing them, which takes seconds."""

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

OLDEST = {
    "numpy": "1.24",
    "peft": "0.17",  # the first of 2025-08, for transformers 5
    "transformers": "5.0",
}
COMPILER = "compiler"
KNOWN = (*OLDEST, COMPILER)

# What Triton compiles for a GPU, whatever the model: an extension module of this Python (triton/backends/nvidia/driver.c).
_SOURCE = "#include <Python.h>\nint gpu_acceptance(void) { return 0; }\n"
_PATIENCE_S = 20.0
_MOST_TEXT = 160  # characters of what a compiler says


def lacking(*, has_gpu: bool, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Each thing of KNOWN that cannot be used here, with what was found: a version that is too old, a compiler's error, nothing."""
    found = lacking_packages(OLDEST)
    problem = _problem_of_c(environ) if has_gpu else _problem_of_cpp(environ)
    return {**found, COMPILER: problem} if problem else found


def lacking_packages(names: Iterable[str]) -> dict[str, str]:
    """Those of these packages that are too old, with their version, or not there, with an empty one."""
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None and not _is_new_enough(name, version)}


def _version(name: str) -> str | None:
    """Empty where there is no such package; None where it is there, and nobody says its version."""
    try:
        if importlib.util.find_spec(name) is None:
            return ""
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
    except (ImportError, ValueError):  # as if it were not there
        return ""


def _is_new_enough(name: str, version: str) -> bool:
    return _parts(version) >= _parts(OLDEST[name])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _problem_of_c(environ: Mapping[str, str]) -> str:
    """Why Triton could compile nothing, or nothing. It takes CC, whatever that is, else gcc, else clang (its runtime/build.py)."""
    path = environ.get("PATH")
    compiler = environ.get("CC", shutil.which("gcc", path=path) or shutil.which("clang", path=path))
    if compiler is None:
        return "no gcc and no clang in PATH"
    name = f"CC={compiler}" if "CC" in environ else compiler
    try:
        with tempfile.TemporaryDirectory() as folder:
            problem = _compile(compiler, Path(folder), environ)
    except OSError as error:
        problem = error.strerror or str(error)
    return problem and f"{name}: {problem}"


def _compile(compiler: str, folder: Path, environ: Mapping[str, str]) -> str:
    source = folder / "module.c"
    source.write_text(_SOURCE, encoding="utf-8")
    scheme = sysconfig.get_default_scheme()
    headers = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]  # as Triton: Debian's is another one
    command = [compiler, str(source), "-O3", "-shared", "-fPIC", "-o", str(folder / "module.so"), f"-I{headers}"]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_S:g} s"
    return (_first_error(done.stderr) or f"exit code {done.returncode}") if done.returncode else ""


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "error: " in line or "cannot find" in line), lines[0] if lines else "")
    return first.rpartition("error: ")[2][:_MOST_TEXT]  # before it stands a path that differs between ranks


def _problem_of_cpp(environ: Mapping[str, str]) -> str:
    """The same for a CPU, where torch takes CXX, else g++ (torch/_inductor/config.py). It is not tried: `cpu.yaml` compiles nothing."""
    compiler = environ.get("CXX", "g++")
    if shutil.which(compiler, path=environ.get("PATH")):
        return ""
    return f"CXX={compiler}: not found" if "CXX" in environ else "no g++ in PATH"
