"""Versions of software, and libraries as a process has them mapped: from text, and from real processes."""

import mmap
import platform
import subprocess
import sys

import pytest
import torch
from host_root import MAPS, fill, x86_node

from gpu_acceptance.inventory import nvml, versions
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.versions import MappedLibrary


def test_versions_that_are_there_are_read_without_opening_a_gpu():
    found = versions.read()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["kernel"] == platform.release()
    assert not torch.cuda.is_initialized()


def test_the_driver_is_nvmls_unless_it_is_given(monkeypatch):
    monkeypatch.setattr(nvml, "read", lambda: nvml.NvmlReading(driver_version="580.159.04"))
    assert (versions.read()["driver"], versions.read("570.1")["driver"]) == ("580.159.04", "570.1")
    assert "driver" not in versions.read("")


def test_an_unknown_version_has_no_entry(monkeypatch):
    monkeypatch.setattr(nvml, "read", lambda: nvml.NvmlReading(problem="NVML does not start"))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not {"driver", "cuda"} & versions.read().keys()


def test_nccl_has_all_parts_of_its_version(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 28, 9))
    assert versions.read()["nccl"] == "2.28.9"


@pytest.mark.parametrize(("number", "version"), [(91002, "9.10.2"), (90100, "9.1.0"), (8907, "8.9.7")])
def test_cudnn_is_told_as_it_is_written(monkeypatch, number, version):
    monkeypatch.setattr("torch.backends.cudnn.is_available", lambda: True)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: number)
    assert versions.read()["cudnn"] == version


def test_a_cudnn_that_torch_refuses_has_no_version(monkeypatch):
    def refuse():
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr("torch.backends.cudnn.is_available", lambda: True)
    monkeypatch.setattr("torch.backends.cudnn.version", refuse)
    assert "cudnn" not in versions.read()


def test_without_torch_the_rest_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" not in versions.read()
    assert versions.read()["python"] == platform.python_version()


@pytest.mark.needs("git")
def test_a_checkout_says_its_commit_and_whether_it_was_changed(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "file").write_text("a")
    git("init")
    git("add", "file")
    git("commit", "-m", "first")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert versions.checkout(tmp_path) == {"checkout": commit}
    (tmp_path / "file").write_text("b")
    assert versions.checkout(tmp_path) == {"checkout": f"{commit}-dirty"}


def test_outside_of_a_checkout_there_is_no_commit(tmp_path):
    assert versions.checkout(tmp_path) == {}
    (tmp_path / ".git").mkdir()
    assert versions.checkout(tmp_path) == {}


def nccl(tmp_path, *paths):
    lines = "".join(f"7f0a1000000{number}-7f0a20000000 r-xp 00000000 103:02 919191 {path}\n" for number, path in enumerate(paths))
    return versions.read_libraries(fill(tmp_path, {"proc/self/maps": lines})).nccl


def test_a_torch_process(tmp_path):
    found = versions.read_libraries(x86_node(tmp_path))
    assert found.nccl == (MappedLibrary("/opt/venv/nvidia/nccl/lib/libnccl.so.2", "2", deleted=False),)
    others = {"cudart": "13", "cuda": "580.159.04", "nvidia_ml": "580.159.04", "ibverbs": "1.14.39.0"}
    assert {name: [one.file_version for one in getattr(found, name)] for name in others} == {name: [one] for name, one in others.items()}


def test_another_process_is_named_by_its_number(tmp_path):
    fill(tmp_path, {"proc/4242/maps": MAPS.replace("libcudart.so.13", "libcudart-d0da41ae.so.12")})
    assert [library.file_version for library in versions.read_libraries(tmp_path, 4242).cudart] == ["12"]
    assert versions.read_libraries(tmp_path, 4243).cudart == Missing(Why.NOT_THERE, str(tmp_path / "proc/4243/maps"))


def test_copies_of_one_library_are_all_named(tmp_path):
    found = nccl(
        tmp_path, "/usr/lib/libnccl.so.2.28.9", "/opt/x y/libnccl.so.2.27.3", "/usr/lib/libnccl.so.2.28.9", "/a/libnccl.so (deleted)"
    )
    assert found == (
        MappedLibrary("/usr/lib/libnccl.so.2.28.9", "2.28.9", deleted=False),
        MappedLibrary("/opt/x y/libnccl.so.2.27.3", "2.27.3", deleted=False),
        MappedLibrary("/a/libnccl.so", Missing(Why.NOT_THERE, "the file's name has none"), deleted=True),
    )


@pytest.mark.parametrize(
    "path", ["/opt/libnccl-net.so.0", "/opt/libnccl.so.conf", "/opt/libnccl.so.2/data", "/opt/my-libnccl.so.2", "[heap]", ""]
)
def test_other_files_are_other_files(tmp_path, path):
    assert nccl(tmp_path, path) == Missing(Why.NOT_THERE, f"{tmp_path / 'proc/self/maps'} has no libnccl")


def test_a_process_that_has_ended_has_no_libraries_and_no_answer(tmp_path):
    assert nccl(tmp_path).missing is Why.UNREADABLE
    fill(tmp_path, {"proc/self/maps": MAPS + "rubbish\n"})
    assert versions.read_libraries(tmp_path).cuda == Missing(Why.UNREADABLE, f"{tmp_path / 'proc/self/maps'} says 'rubbish'")


def test_a_file_that_this_process_has_mapped(tmp_path):
    path = tmp_path / "libnccl.so.2.28.9"
    path.write_bytes(b"x" * 4096)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert MappedLibrary(str(path), "2.28.9", deleted=False) in versions.read_libraries().nccl
        path.unlink()
        assert MappedLibrary(str(path), "2.28.9", deleted=True) in versions.read_libraries().nccl


HOLD = """
import mmap, sys
file = open(sys.argv[1], "rb")
held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_process_has_mapped(tmp_path):
    path = tmp_path / "libibverbs.so.1.14.39.0"
    path.write_bytes(b"x" * 4096)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "mapped\n"
        found = versions.read_libraries(pid=process.pid).ibverbs
        process.stdin.close()
    assert found == (MappedLibrary(str(path), "1.14.39.0", deleted=False),)
    assert versions.read_libraries(pid=process.pid).ibverbs.missing is Why.NOT_THERE
