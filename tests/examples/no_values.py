"""Results of a measurement that went wrong are no values: they hold no limit."""

import pytest
import torch

VALUES = {"nan": float("nan"), "infinity": float("inf"), "none": None, "tensor": torch.tensor(5.0)}


@pytest.mark.parametrize("kind", VALUES)
def test_value(kind, check):
    check("no_values.value", VALUES[kind], "GB/s")
