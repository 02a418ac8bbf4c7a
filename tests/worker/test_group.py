"""The device of a rank."""

import re

import pytest

from gpu_acceptance.record.outcome import Cause, cause_of
from gpu_acceptance.worker.group import open_device


@pytest.mark.usefixtures("no_gpu")
def test_a_torch_without_gpus_on_a_node_that_has_some_is_an_error_that_says_so():
    with pytest.raises(RuntimeError, match=re.escape("sees none: is it a CPU build, or the driver too old for it?")) as raised:
        open_device(0, expects_gpu=True)
    assert cause_of(raised.value) is Cause.TORCH_SEES_NO_GPU
    assert open_device(0, expects_gpu=False).type == "cpu"


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def test_an_exception_that_claims_a_cause_in_words_has_none():
    error = ValueError("x")
    error.cause = "crashed"
    assert cause_of(error) is None
