"""What must be the same before every validation."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "cudnn.benchmark": (lambda: _CUDNN.benchmark, lambda value: setattr(_CUDNN, "benchmark", value)),
    "cudnn.fp32_precision": (lambda: _CUDNN.fp32_precision, lambda value: setattr(_CUDNN, "fp32_precision", value)),
    "matmul.fp32_precision": (lambda: _MATMUL.fp32_precision, lambda value: setattr(_MATMUL, "fp32_precision", value)),
    "matmul.bf16_reduced": (
        lambda: _MATMUL.allow_bf16_reduced_precision_reduction,
        lambda value: setattr(_MATMUL, "allow_bf16_reduced_precision_reduction", value),
    ),
    "matmul.fp16_reduced": (
        lambda: _MATMUL.allow_fp16_reduced_precision_reduction,
        lambda value: setattr(_MATMUL, "allow_fp16_reduced_precision_reduction", value),
    ),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, torch.set_default_device),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
}


class Surroundings:
    """What a validation may change and the next one must not see: torch's settings, the environment, the working directory.

    Made before the validations are collected, so that no import changes it unseen, and before each call, to be put back after it.
    """

    def __init__(self) -> None:
        self._settings = {name: read() for name, (read, _) in _SETTINGS.items()}
        self._environment = _environment()
        self._folder = Path.cwd()

    def changes(self) -> list[str]:
        """What is different now, in words."""
        changed = [f"torch {name} is {read()}, was {self._settings[name]}" for name, read in self._different()]
        now = _environment()
        names = sorted(name for name in now.keys() | self._environment.keys() if now.get(name) != self._environment.get(name))
        changed += [f"{name}={now.get(name)!r}, was {self._environment.get(name)!r}" for name in names]
        return changed + ([f"the working directory is {Path.cwd()}"] if Path.cwd() != self._folder else [])

    def restore(self) -> None:
        """Puts everything back."""
        for name, _ in self._different():
            _SETTINGS[name][1](self._settings[name])
        now = _environment()
        for name in now.keys() - self._environment.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in self._environment.items() if now.get(name) != value})
        os.chdir(self._folder)

    def _different(self) -> list[tuple[str, Callable[[], Any]]]:
        return [(name, read) for name, (read, _) in _SETTINGS.items() if read() != self._settings[name]]  # a write may import half of torch


def _environment() -> dict[str, str]:
    """All variables but those that a library writes there by itself: pytest what runs, torch's compiler where its cache is."""
    written = ("PYTEST_", "TORCHINDUCTOR_CACHE_DIR")
    return {name: value for name, value in os.environ.items() if not name.startswith(written)}
