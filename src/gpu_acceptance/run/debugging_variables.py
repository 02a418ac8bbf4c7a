"""Variables of debuggers, profilers and checkers that people forget in the environment: they slow or break a measurement.

A run with one of them is refused, since its figures say nothing about the machine. More logging, and the machine's own settings
(`NCCL_*`, `CUDA_VISIBLE_DEVICES`), are no reason to refuse; the record keeps them. TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which NVIDIA's
container of PyTorch sets, is allowed as well: validations that measure a precision ask for it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_OFF = re.compile(r"\s*(0|off|no|none|false|disabled?)?\s*", re.IGNORECASE)
_UNSET = re.compile(r"\s*")
_ANYTHING = re.compile(r".*", re.DOTALL)
_DEBUG_LEVEL = re.compile(r"debug|trace|data|func|poll|req", re.IGNORECASE)
_MOST_SHOWN = 200  # characters of a value


@dataclass(frozen=True)
class Debugging:
    """Variables with the same effect. `bad` matches the values that have it; values that `off` matches never do."""

    names: tuple[str, ...]
    does: str
    source: str
    bad: re.Pattern[str] = _ANYTHING
    only_with: tuple[str, re.Pattern[str]] | None = None  # another variable and its values, without which there is no effect
    off: re.Pattern[str] = _OFF


_PYTHON = "https://docs.python.org/3/using/cmdline.html"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide, CUDA Environment Variables"
_TORCH = "https://docs.pytorch.org/docs/stable/torch_environment_variables.html"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_MPS = "https://docs.nvidia.com/deploy/mps, Environment Variables"
_FAKETIME = "https://github.com/wolfcw/libfaketime, README 4b to 4e"
_PRELOADED = re.compile(r".*libfaketime.*", re.DOTALL)
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
    Debugging(("TORCHINDUCTOR_NAN_ASSERTS",), "compiled code looks for NaN in each result", "torch/_inductor/config.py"),
    Debugging(
        ("TORCH_LOGS",),
        "torch writes down what it compiles",
        "https://docs.pytorch.org/docs/stable/logging.html",
        re.compile(r"(?:.*,)?\s*[^\s,-].*", re.DOTALL),  # `-dynamo` writes down less
    ),
    Debugging(("TORCH_TRACE",), "torch writes down what it compiles", "torch/_logging/_internal.py; https://docs.rs/crate/tlparse"),
    Debugging(
        ("PYTORCH_JIT",),
        "torch.jit compiles nothing",
        "https://docs.pytorch.org/docs/stable/jit.html, Disable JIT for Debugging",
        re.compile(r"\s*0\s*"),
        off=_UNSET,
    ),
    Debugging(
        ("NVIDIA_TF32_OVERRIDE",),
        "libraries of NVIDIA do not use the precision that a validation asks for",
        "https://deeprec.readthedocs.io/en/latest/NVIDIA-TF32.html",
        off=_UNSET,  # 0 turns TF32 off
    ),
    Debugging(("PYTORCH_NO_CUDA_MEMORY_CACHING",), "torch asks the driver for each tensor's memory", _TORCH),
    Debugging(("TRITON_INTERPRET", "TRITON_DEBUG"), "Triton interprets or checks its kernels", "https://triton-lang.org: Debugging Triton"),
    Debugging(
        ("TRITON_ALWAYS_COMPILE", "MLIR_ENABLE_DUMP"),
        "Triton compiles each kernel anew, or writes down how",
        "https://github.com/triton-lang/triton, README.md: Tips for hacking",
    ),
    Debugging(("CUDA_LAUNCH_BLOCKING",), "the CPU waits for each kernel", _CUDA),
    Debugging(
        ("CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT"), "CUDA ignores the kernels that were built for this GPU, or builds none", _CUDA
    ),
    Debugging(
        ("CUDA_INJECTION64_PATH", "CUDA_DEVICE_WAITS_ON_EXCEPTION", "CUDA_DEBUGGER_SOFTWARE_PREEMPTION"),
        "a profiler, a checker or a debugger is loaded into each process that uses CUDA",
        "https://docs.nvidia.com/cupti, https://docs.nvidia.com/cuda/cuda-gdb",
    ),
    Debugging(
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",),
        "MPS gives each process a part of the GPU's multiprocessors",
        _MPS,
        re.compile(r"(?!\s*100(?:\.0*)?\s*$).*", re.DOTALL),
    ),
    Debugging(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",), "MPS gives each process a part of the GPU's memory", _MPS),
    Debugging(
        ("CUDA_DISABLE_PERF_BOOST",), "the GPU does not raise its clocks for CUDA", "release notes of NVIDIA's Linux driver 580.105.08"
    ),
    Debugging(("NCCL_PROFILER_PLUGIN",), "NCCL tells a profiler of each step", "https://github.com/NVIDIA/nccl, ext-profiler/README.md"),
    Debugging(
        ("NVSHMEM_DEBUG",),
        "NVSHMEM writes down each step",
        "https://docs.nvidia.com/nvshmem/api/gen/env.html",
        re.compile("TRACE", re.IGNORECASE),
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
    Debugging(("PYTHONPERFSUPPORT", "PYTHON_PERF_JIT_SUPPORT"), "Python makes a trampoline for each function that it calls", _PYTHON),
    Debugging(("PYTHONINSPECT",), "Python does not end where its program does", _PYTHON),
    Debugging(
        ("PYTHONWARNINGS",), "a warning of any library is an error", _PYTHON, re.compile(r"(?:.*,)?\s*error.*", re.IGNORECASE | re.DOTALL)
    ),
    Debugging(
        ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "COV_CORE_SOURCE"),
        "coverage.py counts each line that runs",
        "https://coverage.readthedocs.io: Managing processes; coverage/control.py, process_startup",
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
        "https://github.com/google/sanitizers, valgrind(1), heaptrack(1), electric fence efence(3), scalene/scalene_preload.py, "
        "https://docs.nvidia.com/compute-sanitizer and https://docs.nvidia.com/nsight-compute: folders `target` and `compute-sanitizer`",
        re.compile(
            r".*(?:lib(?:a|t|ub|m|l|hwa)san|clang_rt\.\w*san|libefence|libduma|vgpreload|libc_malloc_debug|libheaptrack|tcmalloc_debug|libprofiler"
            r"|libmemusage|libpcprofile|libbytehound|ToolsInjection|libinterceptor|libmemray|libscalene"
            r"|libTreeLauncher|libInterceptorInjection).*",
            re.DOTALL,
        ),
    ),
    Debugging(
        ("LD_PRELOAD",), "what is written to a disk never has to reach it", "eatmydata(1)", re.compile(r".*libeatmydata.*", re.DOTALL)
    ),
    Debugging(
        ("FAKETIME",),
        "the clock stands still or runs at another speed",
        _FAKETIME,
        re.compile(r"(?!\s*(?:[+-][\d.,]+[smhdy]?|@[^xi]*)\s*$).*", re.DOTALL),  # an offset or a date to start at changes no speed
        only_with=("LD_PRELOAD", _PRELOADED),
    ),
    Debugging(
        ("LD_PRELOAD",),
        "a file may say how fast the clock runs",
        _FAKETIME,
        _PRELOADED,
        only_with=("FAKETIME", _UNSET),
    ),
)


def find_debugging(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name each variable that is on, with its effect and how to unset it; None where no one is set."""
    found = list(_on(environ))
    if not found:
        return None
    told = "; ".join(f"{name}={environ[name][:_MOST_SHOWN]}: {one.does}" for name, one in found)
    return f"left in the environment from debugging, and no figure under it counts: {told}; unset {' '.join(name for name, _ in found)}"


def _on(environ: Mapping[str, str]) -> Iterator[tuple[str, Debugging]]:
    for one in VARIABLES:
        for name in one.names:
            value = environ.get(name, "")
            other, values = one.only_with or ("", _ANYTHING)
            if not one.off.fullmatch(value) and one.bad.fullmatch(value) and values.fullmatch(environ.get(other, "")):
                yield name, one
