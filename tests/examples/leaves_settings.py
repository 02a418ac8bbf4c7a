"""Validations that leave a setting behind, and after each of them one that must find it as it was."""

import gc
import locale
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import pytest
import torch


def leave_nofile():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def leave_folder():
    os.chdir(tempfile.mkdtemp())
    Path.cwd().rmdir()


def umask():
    os.umask(was := os.umask(0o22))
    return was


def timers():
    return [signal.getitimer(which) != (0.0, 0.0) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]


def traces():
    return sys.gettrace(), sys.getprofile(), threading.gettrace()


def leave_traces():
    threading.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    sys.settrace(lambda *_: None)


MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
# What is left by name, and what the next one looks at. An alarm of 1 s would end a later validation.
LEFT = {
    "alarm": (lambda: signal.alarm(1), timers),
    "virtual_timer": (lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 0.5), timers),
    "profiling_timer": (lambda: signal.setitimer(signal.ITIMER_PROF, 0.5), timers),
    "handler": (lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGALRM)),
    "open_files": (leave_nofile, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    "umask": (lambda: os.umask(0o77), umask),
    "folder": (leave_folder, Path.cwd),
    "environment": (lambda: os.environ.update(NCCL_ALGO="TREE"), lambda: os.environ.get("NCCL_ALGO")),
    "gc_off": (gc.disable, gc.isenabled),
    "gc_thresholds": (lambda: gc.set_threshold(1), gc.get_threshold),
    "recursion": (lambda: sys.setrecursionlimit(500), sys.getrecursionlimit),
    "switch_interval": (lambda: sys.setswitchinterval(0.5), sys.getswitchinterval),
    "stdout": (lambda: setattr(sys, "stdout", None), lambda: sys.stdout is sys.__stdout__),
    "excepthook": (lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook is print),
    "traces": (leave_traces, traces),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: warnings.filters[:1]),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    "socket_timeout": (lambda: socket.setdefaulttimeout(0.001), socket.getdefaulttimeout),
    "default_dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "default_device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "num_threads": (lambda: torch.set_num_threads(7), torch.get_num_threads),
    "grad": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True, warn_only=True), torch.get_deterministic_debug_mode),
    "cudnn": (lambda: CUDNN.set_flags(False, True, None, True), lambda: (CUDNN.enabled, CUDNN.benchmark, CUDNN.deterministic)),
    "tf32": (lambda: setattr(MATMUL, "allow_tf32", True), lambda: (MATMUL.fp32_precision, torch.get_float32_matmul_precision())),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16).__enter__(), lambda: torch.is_autocast_enabled("cpu")),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
    "denormals": (lambda: torch.set_flush_denormal(True), lambda: float(torch.tensor(sys.float_info.min) / 2) == 0.0),
}
# Looked at when this file is collected: pytest has its own filters for warnings then.
BEFORE = {name: look() for name, (_, look) in LEFT.items() if name != "warnings"}


@pytest.mark.parametrize("what", [way for name in LEFT for way in (f"leave-{name}", f"find-{name}")])
def test_setting(what, check):
    way, _, name = what.partition("-")
    leave, look = LEFT[name]
    is_sound = name == "warnings" or look() == BEFORE[name]
    check("leaves_settings.value", 5.0 if is_sound else 0.0, "GB/s")
    if way == "leave":
        leave()
    elif name == "warnings":
        warnings.warn("no error here", stacklevel=1)


@pytest.fixture(scope="module")
def holds():
    """Changes of a fixture of the module stay until the module is done."""
    child, stop = subprocess.Popen(["sleep", "4322"]), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    os.umask(was := os.umask(0o77))
    os.umask(0o77)
    os.environ["HELD"] = "1"
    yield child
    child.kill()
    child.wait()
    stop.set()
    thread.join()
    del os.environ["HELD"]
    os.umask(was)


@pytest.mark.parametrize("time", [1, 2])
def test_held(time, holds, check, monkeypatch):
    monkeypatch.setenv("OF_ONE_VALIDATION", str(time))
    is_held = umask() == 0o77 and holds.poll() is None and os.environ["HELD"] == "1"
    check("leaves_settings.value", 5.0 if is_held else 0.0, "GB/s")


@pytest.fixture(scope="module")
def nested(holds):
    os.environ["HELD"] = "2"
    yield
    os.environ["HELD"] = "1"


def test_nested(nested, check):
    os.environ["LEFT_BY_THE_CALL"] = "1"
    check("leaves_settings.value", 5.0 if os.environ["HELD"] == "2" else 0.0, "GB/s")
