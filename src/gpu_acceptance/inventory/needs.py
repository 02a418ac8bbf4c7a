"""Libraries and tools that only some validations need and this machine lacks. They are not imported, which would take seconds."""

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
# Modules that validations import which need one of these. Each takes seconds.
IMPORTS = {
    "transformers": ("torch._dynamo", "transformers.modeling_utils", "gpu_acceptance.measure.train.throughput"),
    "peft": ("peft", "gpu_acceptance.measure.lora.convergence"),
}
COMPILER = "compiler"
KNOWN = (*OLDEST, COMPILER)

# Triton compiles such an extension module of this Python for any model on a GPU (triton/backends/nvidia/driver.c).
_SOURCE = "#include <Python.h>\nint gpu_acceptance(void) { return 0; }\n"
_PATIENCE_S = 20.0
_MOST_TEXT = 160  # characters of a compiler's error


def imported_for(needs: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that validations with these needs import."""
    wanted = set(needs)
    return tuple(name for need, names in IMPORTS.items() if need in wanted for name in names)


def lacking(*, has_gpu: bool, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the names of KNOWN that cannot be used here, each with the old version, the compiler's error, or nothing."""
    found = lacking_packages(OLDEST)
    problem = _problem_of_c(environ) if has_gpu else _problem_of_cpp(environ)
    return {**found, COMPILER: problem} if problem else found


def lacking_packages(names: Iterable[str]) -> dict[str, str]:
    """Return the packages that are too old, with their version, and those that are not there, with an empty one."""
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None and _parts(version) < _parts(OLDEST[name])}


def _version(name: str) -> str | None:
    """Return the version, empty without such a package, None where it has none."""
    try:
        return metadata.version(name) if importlib.util.find_spec(name) else ""
    except metadata.PackageNotFoundError:
        return None
    except (ImportError, ValueError):  # as if it were not there
        return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _problem_of_c(environ: Mapping[str, str]) -> str:
    """Return the reason why Triton cannot compile. It uses CC if it is set, else gcc, else clang (its runtime/build.py)."""
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
    # As in Triton; Debian's scheme is another one.
    headers = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
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
    return first.rpartition("error: ")[2][:_MOST_TEXT]  # without the path before it, which differs between ranks


def _problem_of_cpp(environ: Mapping[str, str]) -> str:
    """Return the reason why torch has no compiler for a CPU: CXX, else g++ (torch/_inductor/config.py). `cpu.yaml` compiles nothing."""
    compiler = environ.get("CXX", "g++")
    if shutil.which(compiler, path=environ.get("PATH")):
        return ""
    return f"CXX={compiler}: not found" if "CXX" in environ else "no g++ in PATH"
