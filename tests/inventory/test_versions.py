import platform
import subprocess
import sys

import pytest
import torch

from gpu_acceptance.inventory import nvml, versions


def test_versions_that_are_there_are_read_without_opening_a_gpu():
    found = versions.read()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["kernel"] == platform.release()
    assert not torch.cuda.is_initialized()


def test_the_driver_is_nvmls(monkeypatch):
    monkeypatch.setattr(nvml, "read", lambda: nvml.NvmlReading(driver_version="580.159.04"))
    assert versions.read()["driver"] == "580.159.04"


def test_what_is_not_there_has_no_entry(monkeypatch):
    monkeypatch.setattr(nvml, "read", lambda: nvml.NvmlReading(problem="NVML does not start"))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not {"driver", "cuda"} & versions.read().keys()


def test_nccl_is_told_with_all_its_parts(monkeypatch):
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


def test_what_is_no_checkout_says_none(tmp_path):
    assert versions.checkout(tmp_path) == {}
    (tmp_path / ".git").mkdir()
    assert versions.checkout(tmp_path) == {}


def test_a_driver_that_is_known_is_not_asked_for_again():
    assert versions.read("580.159.04")["driver"] == "580.159.04"
    assert "driver" not in versions.read("")
