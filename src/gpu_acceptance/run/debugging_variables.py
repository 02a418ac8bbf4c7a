"""Variables that debuggers, profilers and checkers use, and that people forget in the environment: they slow or break what is measured.

A run that has one is refused, since a figure under it says nothing about the machine. What is only logged more, and the machine's own
settings (`NCCL_*`, `CUDA_VISIBLE_DEVICES`), are no reason to refuse; the record keeps them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_OFF = re.compile(r"\s*(0|off|no|none|false|disabled?)?\s*", re.IGNORECASE)
_ANYTHING = re.compile(r".*", re.DOTALL)
_DEBUG_LEVEL = re.compile(r"debug|trace|data|func|poll|req", re.IGNORECASE)
_MOST_SHOWN = 200  # characters of a value


@dataclass(frozen=True)
class Debugging:
    """Variables that do the same. `bad`: the values, in full, that do it; what says off never does."""

    names: tuple[str, ...]
    does: str
    source: str
    bad: re.Pattern[str] = _ANYTHING
    only_with: tuple[str, re.Pattern[str]] | None = None  # another variable and its values, without which it does nothing


_PYTHON = "https://docs.python.org/3/using/cmdline.html"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide, CUDA Environment Variables"
_TORCH = "https://docs.pytorch.org/docs/stable/torch_environment_variables.html"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_MALLOC = "mallopt(3), mtrace(3)"
VARIABLES = (
    Debugging(
        ("TORCH_DISTRIBUTED_DEBUG",),
        "torch checks each collective with another one, and crashes in DDP",
        "https://docs.pytorch.org/docs/stable/distributed.html; issues 75011 and 129672 of pytorch",
    ),
    Debugging(("TORCH_SHOW_CPP_STACKTRACES",), "torch looks up the symbols of each C++ exception, for up to minutes", _TORCH),
    Debugging(
        ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG"),
        "torch waits for, or looks into, each collective",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    ),
    Debugging(
        ("TORCH_COMPILE_DEBUG", "TORCHDYNAMO_REPRO_AFTER", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS"),
        "torch.compile compiles nothing, or writes down all that it does",
        "torch/_dynamo/config.py, torch/_inductor/config.py",
    ),
    Debugging(("PYTORCH_NO_CUDA_MEMORY_CACHING",), "torch asks the driver for each tensor's memory", _TORCH),
    Debugging(("TRITON_INTERPRET", "TRITON_DEBUG"), "Triton interprets or checks its kernels", "https://triton-lang.org: Debugging Triton"),
    Debugging(("CUDA_LAUNCH_BLOCKING",), "the CPU waits for each kernel", _CUDA),
    Debugging(
        ("CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT"), "CUDA ignores the kernels that were built for this GPU, or builds none", _CUDA
    ),
    Debugging(
        ("CUDA_INJECTION64_PATH", "CUDA_DEVICE_WAITS_ON_EXCEPTION", "CUDA_DEBUGGER_SOFTWARE_PREEMPTION"),
        "a profiler, a checker or a debugger is loaded into each process that uses CUDA",
        "https://docs.nvidia.com/cupti, https://docs.nvidia.com/cuda/cuda-gdb",
    ),
    Debugging(("NCCL_DEBUG",), "NCCL writes down each step", _NCCL, re.compile("TRACE", re.IGNORECASE)),
    Debugging(
        ("NCCL_DEBUG_SUBSYS",),
        "NCCL writes down each call",
        _NCCL,
        re.compile(r"(?:.*,)?\s*(ALL|COLL|CALL|PROXY|PROFILE)\s*(?:,.*)?", re.IGNORECASE),
        only_with=("NCCL_DEBUG", re.compile("INFO|TRACE|ABORT", re.IGNORECASE)),
    ),
    Debugging(("NCCL_CHECK_POINTERS",), "NCCL checks the pointers of each call", _NCCL),
    Debugging(
        ("CUBLAS_LOGINFO_DBG", "CUDNN_LOGINFO_DBG", "MKL_VERBOSE", "ONEDNN_VERBOSE", "DNNL_VERBOSE"),
        "a library writes down each call",
        "its own documentation",
    ),
    Debugging(
        ("CUBLASLT_LOG_LEVEL", "CUDNN_LOGLEVEL_DBG"), "a library writes down each call", "its own documentation", re.compile("[2-9]")
    ),
    Debugging(("UCX_LOG_LEVEL", "FI_LOG_LEVEL"), "the network library writes down each message", "ucx_info -f; fi_fabric(7)", _DEBUG_LEVEL),
    Debugging(("PYTHONOPTIMIZE",), "no assertion is checked", _PYTHON),
    Debugging(("PYTHONMALLOC",), "Python checks each piece of its memory", _PYTHON, re.compile(".*debug.*", re.IGNORECASE)),
    Debugging(
        ("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONDUMPREFS", "PYTHONASYNCIODEBUG"),
        "Python checks or writes down what it does",
        _PYTHON,
    ),
    Debugging(("PYTHONINSPECT",), "Python does not end where its program does", _PYTHON),
    Debugging(
        ("PYTHONWARNINGS",), "a warning of any library is an error", _PYTHON, re.compile(r"(?:.*,)?\s*error.*", re.IGNORECASE | re.DOTALL)
    ),
    Debugging(
        ("COVERAGE_PROCESS_START", "COV_CORE_SOURCE"),
        "coverage.py counts each line that runs",
        "https://coverage.readthedocs.io: Measuring subprocesses",
    ),
    Debugging(
        ("MALLOC_CHECK_", "MALLOC_PERTURB_", "MALLOC_TRACE"), "the C library checks, fills or writes down each piece of memory", _MALLOC
    ),
    Debugging(
        ("GLIBC_TUNABLES",),
        "the C library checks or fills each piece of memory",
        "glibc manual, Memory Allocation Tunables",
        re.compile(r".*malloc\.(check|perturb)=[^0].*", re.DOTALL),
    ),
    Debugging(("LD_DEBUG", "LD_AUDIT", "LD_PROFILE"), "the dynamic linker writes down or hands on each lookup", "ld.so(8)"),
    Debugging(
        ("LD_PRELOAD",),
        "a checker or a profiler is loaded into each process",
        "https://github.com/google/sanitizers, valgrind(1), heaptrack(1), electric fence efence(3)",
        re.compile(
            r".*(?:lib(?:a|t|ub|m|l|hwa)san|clang_rt\.\w*san|libefence|libduma|vgpreload|libc_malloc_debug|libheaptrack|tcmalloc_debug|libprofiler"
            r"|libmemusage|libpcprofile|libbytehound|ToolsInjection|libinterceptor|libmemray).*",
            re.DOTALL,
        ),
    ),
)


def find_debugging(environ: Mapping[str, str] = os.environ) -> str | None:
    """Names each variable that is on, with what it does, and how to be rid of it; None where there is none."""
    found = list(_on(environ))
    if not found:
        return None
    told = "; ".join(f"{name}={environ[name][:_MOST_SHOWN]}: {one.does}" for name, one in found)
    return f"left in the environment from debugging, and no figure under it counts: {told}; unset {' '.join(name for name, _ in found)}"


def _on(environ: Mapping[str, str]) -> Iterator[tuple[str, Debugging]]:
    for one in VARIABLES:
        for name in one.names:
            value = environ.get(name, "")
            if not _OFF.fullmatch(value) and one.bad.fullmatch(value) and _has_effect(one, environ):
                yield name, one


def _has_effect(one: Debugging, environ: Mapping[str, str]) -> bool:
    return one.only_with is None or bool(one.only_with[1].fullmatch(environ.get(one.only_with[0], "")))
