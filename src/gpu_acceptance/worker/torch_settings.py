"""Settings of torch that a validation can change, and on which the next one relies.

The state of its random generators is not among them: every random number changes it. Code that needs a certain state seeds its own.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as nn_optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils import deterministic
from torch.utils._config_module import _UNSET_SENTINEL
from torch.utils._device import DeviceContext

from gpu_acceptance.worker.settings import Identity, Setting, are_same, attribute

_MATMUL, _CUDNN, _MKLDNN = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
# From the widest to the narrowest: to set one may set those behind it.
_PRECISIONS: dict[str, Any] = {
    "all": torch.backends,
    "cudnn": _CUDNN,
    "mkldnn": _MKLDNN,
    "matmul": _MATMUL,
    "cudnn.conv": getattr(_CUDNN, "conv", None),
    "cudnn.rnn": getattr(_CUDNN, "rnn", None),
    "mkldnn.matmul": getattr(_MKLDNN, "matmul", None),
    "mkldnn.conv": getattr(_MKLDNN, "conv", None),
    "mkldnn.rnn": getattr(_MKLDNN, "rnn", None),
}
_LEGACY = "float32_matmul_precision"  # the older name of a part of the same


def _precisions() -> dict[str, str]:
    """Return how float32 may be computed, by backend."""
    found = {name: backend.fp32_precision for name, backend in _PRECISIONS.items() if hasattr(backend, "fp32_precision")}
    try:
        return {**found, _LEGACY: torch.get_float32_matmul_precision()}
    except RuntimeError:  # the values of the older name and of the newer one contradict each other
        return {**found, _LEGACY: "contradicts matmul"}


def _put_back_precisions(before: dict[str, str]) -> None:
    torch.set_float32_matmul_precision(before[_LEGACY])  # first: it sets the newer ones as well
    for name, backend in _PRECISIONS.items():
        if name in before:
            backend.fp32_precision = before[name]


def _put_back_autocast(before: dict[str, tuple[bool, str]]) -> None:
    for kind, (is_enabled, dtype) in before.items():
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, getattr(torch, dtype.removeprefix("torch.")))
    torch.clear_autocast_cache()


def _of_cuda(read: Callable[[], Any], at_first: Any = None) -> Callable[[], Any]:
    """Return a reader that answers `at_first` until the GPU is open: to ask would open it."""
    return lambda: read() if torch.cuda.is_initialized() else at_first  # type: ignore[no-untyped-call]


def _keeps_denormals() -> bool:
    """Return True where this thread computes with denormal numbers: torch.set_flush_denormal has no reader."""
    return bool(torch.finfo(torch.float64).smallest_normal / 2 > 0.0)


def _modes() -> tuple[int, int]:
    """Return the numbers of modes: of functions, without the one of a default device, and of dispatch."""
    modes = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]  # type: ignore[no-untyped-call]
    return len(modes), torch._C._len_torch_dispatch_stack()


_HOOKS = {
    name: table
    for owner in (nn_module, nn_optimizer)
    for name, table in vars(owner).items()
    if name.startswith("_global_") and isinstance(table, dict)
}


def _put_back_hooks(before: dict[str, tuple[tuple[object, Identity], ...]]) -> None:
    for name, table in _HOOKS.items():
        table.clear()
        table.update({key: hook.held for key, hook in before.get(name, ())})


def _stance() -> str:
    """Return what torch.compile does with a function (torch.compiler.set_stance)."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    stance = dynamo._stance if dynamo else None
    return "default" if stance is None else f"{stance.stance}{f' with {stance.backend}' if stance.backend else ''}"


class _CompilersConfig:
    """Values that differ from the default in one module of settings of torch's compiler, which may not be imported yet."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._overrides: list[Any] = []
        self._are_variables = False
        self._values: tuple[object, ...] = ()
        self._can_change_in_place = False
        self._found: dict[str, object] = {}

    def read(self) -> dict[str, object]:
        entries = getattr(sys.modules.get(self.module), "_config", {})
        if len(entries) != len(self._overrides) or not self._are_variables:
            self._overrides = [entry.user_override for entry in entries.values()]
            # Of torch 2.13; else the values themselves.
            self._are_variables = bool(self._overrides) and isinstance(self._overrides[0], ContextVar)
        values = tuple(variable.get() for variable in self._overrides) if self._are_variables else tuple(self._overrides)
        if self._can_change_in_place or not are_same(values, self._values):
            self._values = values
            self._can_change_in_place = any(isinstance(value, list | dict | set) for value in values)
            pairs = zip(entries.items(), values, strict=True)
            changed = ((key, value) for (key, entry), value in pairs if value is not _UNSET_SENTINEL and value != entry.default)
            self._found = {key: deepcopy(value) for key, value in changed}
        return self._found

    def put_back(self, before: dict[str, object]) -> None:
        config: Any = sys.modules[self.module]
        for key in self.read().keys() | before.keys():
            setattr(config, key, before[key] if key in before else config._config[key].default)


_of_torch = partial(Setting, may_change_at_import=True)
_compilers_configs = [_CompilersConfig(module) for module in ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")]
_sharing, _sdp, _mha, _future, _cuda = torch.multiprocessing, torch.backends.cuda, torch.backends.mha, torch.__future__, torch.cuda
_REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
_CONVERSIONS = ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion")
_NUMERICS = (
    Setting("torch default_dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch default_tensor_type", torch._C._get_default_device),
    Setting("torch default_device", torch.get_default_device, torch.set_default_device),
    Setting("torch deterministic", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    attribute(deterministic, "fill_uninitialized_memory", "torch fill_uninitialized_memory"),
    Setting("torch fp32_precision of", _precisions, _put_back_precisions),
    *(attribute(_MATMUL, name, f"torch matmul.{name}") for name in _REDUCED),
    *(attribute(_CUDNN, name, f"torch cudnn.{name}") for name in ("enabled", "benchmark", "benchmark_limit", "deterministic")),
    *(attribute(_MKLDNN, name, f"torch mkldnn.{name}") for name in ("enabled", "deterministic")),
    Setting(
        "torch autocast of",
        lambda: {kind: (torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))) for kind in ("cuda", "cpu")},
        _put_back_autocast,
    ),
    Setting("torch autocast_cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(
        Setting(f"torch {name}_sdp", getattr(_sdp, f"{name}_sdp_enabled"), getattr(_sdp, f"enable_{name}_sdp"))
        for name in ("flash", "mem_efficient", "math", "cudnn")
    ),
    Setting("torch reduction_math_sdp", _sdp.fp16_bf16_reduction_math_sdp_allowed, _sdp.allow_fp16_bf16_reduction_math_sdp),
    Setting("torch blas_library", _sdp.preferred_blas_library, _sdp.preferred_blas_library),
    Setting("torch linalg_library", _sdp.preferred_linalg_library, _sdp.preferred_linalg_library),
    Setting("torch denormals are kept", _keeps_denormals, lambda before: torch.set_flush_denormal(not before)),
    Setting("torch fastpath of attention", _mha.get_fastpath_enabled, _mha.set_fastpath_enabled),
    Setting("torch nnpack", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled),
)
_EXECUTION = (
    Setting("torch num_threads", torch.get_num_threads, torch.set_num_threads),
    Setting("torch grad", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("torch inference_mode", torch.is_inference_mode_enabled),
    Setting("torch anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    Setting("torch modes (function, dispatch)", _modes),
    Setting("torch profiler", torch._C._autograd._profiler_enabled),
    Setting("torch sharing_strategy", _sharing.get_sharing_strategy, _sharing.set_sharing_strategy),
    Setting("the default process group", lambda: Identity(dist.distributed_c10d._world.default_pg)),
    Setting("torch sparse invariants", torch._C._check_sparse_tensor_invariants, torch._C._set_check_sparse_tensor_invariants),
    Setting("torch autograd multithreading", torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    Setting("torch warns always", torch.is_warn_always_enabled, torch.set_warn_always),
    *(Setting(f"torch {name}", getattr(_future, f"get_{name}"), getattr(_future, f"set_{name}")) for name in _CONVERSIONS),
    Setting("torch.distributed debug level", dist.get_debug_level, dist.set_debug_level),
    _of_torch(
        "torch hooks of all modules or optimizers",
        lambda: {name: tuple((key, Identity(hook)) for key, hook in table.items()) for name, table in _HOOKS.items() if table},
        _put_back_hooks,
    ),
    Setting("torch saved-tensor hooks", lambda: tuple(map(Identity, torch._C._autograd._top_saved_tensors_default_hooks(True) or ()))),
    Setting("torch refusal of saved-tensor hooks", torch._C._autograd._saved_tensors_hooks_get_disabled_error_message),
    _of_torch("torch.compiler stance", _stance, lambda _before: torch.compiler.set_stance("default")),
    *(_of_torch(config.module, config.read, config.put_back) for config in _compilers_configs),
)
_CUDA = (
    Setting("torch.cuda current_device", _of_cuda(_cuda.current_device), _cuda.set_device),
    Setting(
        "torch.cuda is on its default stream",
        _of_cuda(lambda: _cuda.current_stream() == _cuda.default_stream(), True),
        lambda _before: _cuda.set_stream(_cuda.default_stream()),
    ),
    Setting("torch.cuda sync_debug_mode", _of_cuda(_cuda.get_sync_debug_mode, 0), _cuda.set_sync_debug_mode),
    *(
        Setting("torch.cuda memory_fraction", _of_cuda(getattr(_cuda, name), 1.0), _cuda.set_per_process_memory_fraction)
        for name in ["get_per_process_memory_fraction"]
        if hasattr(_cuda, name)  # not in older torch
    ),
)
SETTINGS: tuple[Setting, ...] = (*_NUMERICS, *_EXECUTION, *_CUDA)
