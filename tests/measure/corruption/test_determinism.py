import pytest
import torch
from torch.backends import cudnn

from gpu_acceptance.measure.corruption.repeat import deterministic, is_deterministic

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def flags():
    matmul = torch.backends.cuda.matmul
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (cudnn.enabled, cudnn.deterministic, cudnn.benchmark),
        "precision": matmul.fp32_precision,
        "reduced": (matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction),
    }


@pytest.fixture(autouse=True)
def _put_back():
    with deterministic(CPU):
        yield


@pytest.mark.parametrize(("algorithms", "warn_only"), [(False, False), (True, True), (True, False)])
def test_flags_are_set_inside_and_put_back(algorithms, warn_only):
    torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
    cudnn.benchmark, cudnn.deterministic = True, False
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    before = flags()
    with deterministic(CPU):
        assert flags() == {
            "algorithms": True,
            "warn_only": False,
            "fill": False,
            "cudnn": (True, True, False),
            "precision": "ieee",
            "reduced": (False, False),
        }
        assert is_deterministic()
    assert flags() == before
    assert is_deterministic() == (algorithms and not warn_only)


def test_flags_are_put_back_after_an_error():
    cudnn.benchmark = True
    before = flags()
    with pytest.raises(ZeroDivisionError), deterministic(CPU):
        raise ZeroDivisionError
    assert flags() == before


@pytest.mark.parametrize(("value", "was"), [(None, "is not set"), (":8:1", "is ':8:1'")])
def test_a_gpu_without_the_variable_is_refused(value, was, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if value:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    text = f"^CUBLAS_WORKSPACE_CONFIG {was}; needed is :4096:8 or :16:8, before the first cuBLAS call: set it where the process is started$"
    before = flags()
    with pytest.raises(RuntimeError, match=text), deterministic(GPU):
        pass
    assert flags() == before


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
def test_a_gpu_with_the_variable_is_taken(value, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    with deterministic(GPU):
        assert is_deterministic()


def test_a_variable_that_decides_over_tf32_is_refused(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    text = "^NVIDIA_TF32_OVERRIDE is '0': libraries would not use the precision that is asked for; unset it$"
    with pytest.raises(RuntimeError, match=text), deterministic(GPU):
        pass
