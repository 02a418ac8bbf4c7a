"""Settings of torch that a validation can change, and that the next one relies on.

The state of its random generators is none of them: every random number changes it, so what needs a certain one seeds its own.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from copy import deepcopy
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

_BACKENDS = torch.backends
_MATMUL, _CUDNN, _MKLDNN = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
# From the widest to the narrowest: to set one may set those behind it.
_PRECISIONS: dict[str, Any] = {
    "all": _BACKENDS,
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
    """How float32 may be computed, by backend."""
    found = {name: backend.fp32_precision for name, backend in _PRECISIONS.items() if hasattr(backend, "fp32_precision")}
    try:
        return {**found, _LEGACY: torch.get_float32_matmul_precision()}
    except RuntimeError:  # what was set by the older name and by the newer one contradict each other
        return {**found, _LEGACY: "contradicts matmul"}


def _put_back_precisions(before: dict[str, str]) -> None:
    torch.set_float32_matmul_precision(before[_LEGACY])  # first: it sets the newer ones as well
    for name, backend in _PRECISIONS.items():
        if name in before:
            backend.fp32_precision = before[name]


def _autocast() -> dict[str, tuple[bool, str]]:
    return {kind: (torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))) for kind in ("cuda", "cpu")}


def _put_back_autocast(before: dict[str, tuple[bool, str]]) -> None:
    for kind, (is_enabled, dtype) in before.items():
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, getattr(torch, dtype.removeprefix("torch.")))
    torch.clear_autocast_cache()


def _of_cuda(read: Callable[[], Any], at_first: Any = None) -> Callable[[], Any]:
    """`at_first` until something has opened the GPU: to ask would open it."""
    return lambda: read() if torch.cuda.is_initialized() else at_first  # type: ignore[no-untyped-call]


def _keeps_denormals() -> bool:
    """Whether this thread computes with numbers below the smallest normal one: torch.set_flush_denormal has no reader."""
    return bool(torch.finfo(torch.float64).smallest_normal / 2 > 0.0)


def _modes() -> tuple[int, int]:
    """How many modes hang in each operation: of functions without the one of a default device, and of dispatch."""
    modes = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]  # type: ignore[no-untyped-call]
    return len(modes), torch._C._len_torch_dispatch_stack()


_HOOKS = {
    name: table
    for owner in (nn_module, nn_optimizer)
    for name, table in vars(owner).items()
    if name.startswith("_global_") and isinstance(table, dict)
}


def _global_hooks() -> dict[str, tuple[tuple[object, Identity], ...]]:
    """What is called for every module or optimizer, by the table that it hangs in."""
    return {name: tuple((key, Identity(hook)) for key, hook in table.items()) for name, table in _HOOKS.items() if table}


def _put_back_hooks(before: dict[str, tuple[tuple[object, Identity], ...]]) -> None:
    for name, table in _HOOKS.items():
        table.clear()
        table.update({key: hook.held for key, hook in before.get(name, ())})


def _saved_tensor_hooks() -> tuple[Identity, ...]:
    """What is called for each tensor that a backward pass will need: the innermost pair."""
    return tuple(map(Identity, torch._C._autograd._top_saved_tensors_default_hooks(True) or ()))


def _stance() -> str:
    """What torch.compile does with a function (torch.compiler.set_stance)."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    stance = dynamo._stance if dynamo else None
    return "default" if stance is None else f"{stance.stance}{f' with {stance.backend}' if stance.backend else ''}"


class _CompilersConfig:
    """What is set to another value than the default in one module of settings of torch's compiler, which may not be imported yet."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._overrides: list[Any] = []
        self._are_variables = False
        self._values: tuple[object, ...] = ()
        self._can_change_in_place = False
        self._found: dict[str, object] = {}

    def read(self) -> dict[str, object]:
        entries = getattr(sys.modules.get(self._module), "_config", {})
        if len(entries) != len(self._overrides) or not self._are_variables:
            self._overrides = [entry.user_override for entry in entries.values()]
            self._are_variables = bool(self._overrides) and isinstance(
                self._overrides[0], ContextVar
            )  # torch 2.13; else the values themselves
        values = tuple(variable.get() for variable in self._overrides) if self._are_variables else tuple(self._overrides)
        if self._can_change_in_place or not are_same(values, self._values):
            self._values = values
            self._can_change_in_place = any(isinstance(value, list | dict | set) for value in values)
            self._found = dict(_set_otherwise(zip(entries.items(), values, strict=True)))
        return self._found

    def put_back(self, before: dict[str, object]) -> None:
        config: Any = sys.modules[self._module]
        for key in self.read().keys() | before.keys():
            setattr(config, key, before[key] if key in before else config._config[key].default)


def _set_otherwise(entries: Iterable[tuple[tuple[str, Any], object]]) -> Iterator[tuple[str, object]]:
    for (key, entry), value in entries:
        if value is not _UNSET_SENTINEL and value != entry.default:
            yield key, deepcopy(value)


def _settings() -> Iterable[Setting]:
    yield Setting("torch default_dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Setting("torch default_tensor_type", torch._C._get_default_device)
    yield Setting("torch default_device", torch.get_default_device, torch.set_default_device)
    yield Setting("torch num_threads", torch.get_num_threads, torch.set_num_threads)
    yield Setting("torch grad", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Setting("torch inference_mode", torch.is_inference_mode_enabled)
    yield Setting("torch anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled)
    yield Setting("torch modes (function, dispatch)", _modes)
    yield Setting("torch profiler", torch._C._autograd._profiler_enabled)
    yield Setting("torch deterministic", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode)
    yield attribute(deterministic, "fill_uninitialized_memory", "torch fill_uninitialized_memory")
    yield Setting("torch fp32_precision of", _precisions, _put_back_precisions)
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation"):
        yield attribute(_MATMUL, name, f"torch matmul.{name}")
    for name in ("enabled", "benchmark", "benchmark_limit", "deterministic"):
        yield attribute(_CUDNN, name, f"torch cudnn.{name}")
    for name in ("enabled", "deterministic"):
        yield attribute(_MKLDNN, name, f"torch mkldnn.{name}")
    yield Setting("torch autocast of", _autocast, _put_back_autocast)
    yield Setting("torch autocast_cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    sdp = torch.backends.cuda
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        yield Setting(f"torch {name}_sdp", getattr(sdp, f"{name}_sdp_enabled"), getattr(sdp, f"enable_{name}_sdp"))
    yield Setting("torch reduction_math_sdp", sdp.fp16_bf16_reduction_math_sdp_allowed, sdp.allow_fp16_bf16_reduction_math_sdp)
    yield Setting("torch blas_library", sdp.preferred_blas_library, sdp.preferred_blas_library)
    yield Setting("torch linalg_library", sdp.preferred_linalg_library, sdp.preferred_linalg_library)
    yield Setting("torch denormals are kept", _keeps_denormals, lambda before: torch.set_flush_denormal(not before))
    sharing = torch.multiprocessing
    yield Setting("torch sharing_strategy", sharing.get_sharing_strategy, sharing.set_sharing_strategy)
    yield Setting("the default process group", lambda: Identity(dist.distributed_c10d._world.default_pg))
    yield Setting("torch sparse invariants", torch._C._check_sparse_tensor_invariants, torch._C._set_check_sparse_tensor_invariants)
    yield Setting("torch autograd multithreading", torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled)
    yield Setting("torch warns always", torch.is_warn_always_enabled, torch.set_warn_always)
    mha, future = torch.backends.mha, torch.__future__
    yield Setting("torch fastpath of attention", mha.get_fastpath_enabled, mha.set_fastpath_enabled)
    for name in ("overwrite", "swap"):
        key = f"{name}_module_params_on_conversion"
        yield Setting(f"torch {key}", getattr(future, f"get_{key}"), getattr(future, f"set_{key}"))
    yield Setting("torch.distributed debug level", dist.get_debug_level, dist.set_debug_level)
    yield Setting("torch nnpack", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled)
    yield Setting("torch hooks of all modules or optimizers", _global_hooks, _put_back_hooks, may_change_at_import=True)
    yield Setting("torch saved-tensor hooks", _saved_tensor_hooks)
    yield Setting("torch refusal of saved-tensor hooks", torch._C._autograd._saved_tensors_hooks_get_disabled_error_message)
    yield Setting("torch.compiler stance", _stance, lambda _before: torch.compiler.set_stance("default"), may_change_at_import=True)
    for module in ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config"):
        config = _CompilersConfig(module)
        yield Setting(module, config.read, config.put_back, may_change_at_import=True)
    yield from _settings_of_cuda()


def _settings_of_cuda() -> Iterable[Setting]:
    cuda = torch.cuda
    yield Setting("torch.cuda current_device", _of_cuda(cuda.current_device), cuda.set_device)
    yield Setting(
        "torch.cuda is on its default stream",
        _of_cuda(lambda: cuda.current_stream() == cuda.default_stream(), True),
        lambda _before: cuda.set_stream(cuda.default_stream()),
    )
    yield Setting("torch.cuda sync_debug_mode", _of_cuda(cuda.get_sync_debug_mode, 0), cuda.set_sync_debug_mode)
    if hasattr(cuda, "get_per_process_memory_fraction"):
        fraction = _of_cuda(cuda.get_per_process_memory_fraction, 1.0)
        yield Setting("torch.cuda memory_fraction", fraction, cuda.set_per_process_memory_fraction)


SETTINGS = tuple(_settings())
