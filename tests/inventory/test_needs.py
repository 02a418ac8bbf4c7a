"""Libraries and tools that only some validations need, with real packages and real compilers."""

import os
import shutil
import sysconfig
from importlib import metadata

import pytest

from gpu_acceptance.inventory.needs import COMPILER, OLDEST, lacking, lacking_packages

can_compile = pytest.mark.needs("gcc", "python3-dev")


def test_the_packages_of_this_python_are_not_lacking():
    assert lacking_packages(OLDEST) == {}


@pytest.mark.parametrize(
    ("version", "is_lacking"),
    [*((old, True) for old in ("0.16.9", "0.9", "0.16.0.dev0")), *((new, False) for new in ("0.17.0", "0.20.1", "1.0", "0.17.0rc1"))],
)
def test_a_package_that_is_too_old_is_lacking(monkeypatch, version, is_lacking):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert lacking_packages(["peft"]) == ({"peft": version} if is_lacking else {})


def test_a_package_that_is_not_there_has_no_version(monkeypatch):
    monkeypatch.setitem(OLDEST, "no_such_package", "1.0")
    assert lacking_packages(["no_such_package", "peft"]) == {"no_such_package": ""}


def test_a_package_of_unknown_version_is_accepted(monkeypatch, tmp_path):
    (tmp_path / "from_a_checkout.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(OLDEST, "from_a_checkout", "1.0")
    assert lacking_packages(["from_a_checkout"]) == {}


def problem(*, has_gpu=True, without=(), **variables):
    environ = {name: value for name, value in os.environ.items() if name not in {"CC", "CXX", *without}}
    return lacking(has_gpu=has_gpu, environ={**environ, **variables}).get(COMPILER, "")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@can_compile
def test_a_compiler_that_works_is_not_lacking():
    assert problem() == ""
    assert problem(CC="gcc") == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/nonsense/gcc", "CC=/nonsense/gcc: No such file or directory"),
        ("ccache gcc", "CC=ccache gcc: No such file or directory"),  # Triton takes it for the name of one program as well
        ("/etc/passwd", "CC=/etc/passwd: Permission denied"),
        ("false", "CC=false: exit code 1"),
    ],
)
def test_a_cc_that_is_no_compiler(name, text, monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)  # a folder in it that this user may not enter makes it "Permission denied"
    assert problem(CC=name) == text


def test_no_compiler_at_all(tmp_path):
    assert problem(PATH=str(tmp_path)) == "no gcc and no clang in PATH"


@pytest.mark.parametrize(
    ("name", "output", "text"),
    [
        ("clang", "x.c:1:10: fatal error: Python.h: No such file or directory", "Python.h: No such file or directory"),
        ("gcc", "/usr/bin/ld: cannot find crti.o\\ncollect2: error: ld returned 1", "/usr/bin/ld: cannot find crti.o"),
    ],
)
def test_the_first_error_of_gcc_or_else_clang_is_named(tmp_path, name, output, text):
    path = program(tmp_path, name, f"printf '{output}\\n' >&2; exit 1")
    assert problem(PATH=str(tmp_path)) == f"{path}: {text}"


@can_compile
def test_a_python_without_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    assert problem(without=("CPATH", "C_INCLUDE_PATH")) == f"{shutil.which('gcc')}: Python.h: No such file or directory"


def test_without_a_gpu_it_is_the_compiler_of_c_plus_plus(tmp_path):
    program(tmp_path, "g++", "exit 0")
    assert problem(has_gpu=False, PATH=str(tmp_path)) == ""
    assert problem(has_gpu=False, PATH="/nonsense") == "no g++ in PATH"
    assert problem(has_gpu=False, CXX="/nonsense/g++") == "CXX=/nonsense/g++: not found"
