"""A nest: a copy of a process as it was when it had only imported what takes long. The processes of Python that it starts are forked there.

torchrun starts its ranks, and each rank its fork server, as `python -m MODULE`. Where the module is one of these, and nothing is different
that Python or a library of it reads at its start, `subprocess.Popen` asks the nest: the new process is a fork of it, a child of who asked,
with the environment, folder, session, command line and descriptors that exec would have given it. Everything else is started anew.
"""

import ctypes
import fcntl
import gc
import importlib.util
import io
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warm_package import be_found_in

_MODULES = ("pytest", "gpu_acceptance.worker.fork_server", "gpu_acceptance.control.torchrun")
_HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"  # which has Popen by a name of its own
# What Python, the dynamic linker, torch or a library of it reads once, at the start: a process that has another of these is started anew.
_READ_ONCE = (
    "PYTHON",
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "TORCH_",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "GOMP_",
    "LC_",
    "LANG",
    "TZ",
    "FAKETIME",
    *("HF_", "PEFT_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRANSFORMERS_", "TRITON_"),
)
_READ_LATER = "TORCH_NCCL_"  # when a group is formed; torchrun sets one
_OPTIONS = {"env", "cwd", "stdin", "stdout", "stderr", "pass_fds", "start_new_session", "process_group"}
_REQUEST_BYTES = 200_000  # below what a socket of this kind takes (net.core.wmem_default)
_MOST_DESCRIPTORS = 16
_HIGH, _END = 512, 1024  # descriptors that wait here for their places
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37  # prctl(2)
_Popen = subprocess.Popen
_PYTHON = sys.executable
_libc = ctypes.CDLL(None, use_errno=True)


def _loaded(path: Path) -> Any:
    """By a name of its own: a fork imports the package itself, from wherever its checkout is."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_process_title = _loaded(Path(__file__).parents[1] / "src" / "gpu_acceptance" / "base" / "process.py")


def read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_ONCE) and not name.startswith(_READ_LATER)}


def become(request: dict[str, Any]) -> None:
    """All but the descriptors that exec would have given this process."""
    environment, target, arguments = request["environment"], request.get("script", ""), request["arguments"]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # a library asked for it at its import
    platform._uname_cache = None  # type: ignore[attr-defined]  # it may be of another host
    if not target:
        _process_title.show(request.get("command", [sys.executable, "-m", request["module"], *arguments]), environment)
    sys.path[:1] = [str(Path(target).parent if target else Path.cwd()), *request.get("paths", ())]
    sys.argv = [target or "-m", *arguments]
    be_found_in([Path("src").absolute(), *map(Path, request.get("paths", ()))])
    gc.enable()


def lay_nest(*, for_one: bool = False) -> dict[str, Any] | None:
    """Lays the nest of this process, and returns None; in each process that was forked there, returns what that is to run.

    `for_one`: it ends with the first process that is started: it would be one of the descendants that this one waits for.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if not (nest := os.fork()):
        ours.close()
        return _serve(theirs, parent, for_one=for_one)
    theirs.close()
    _FromNest.nest, _FromNest.owner, _FromNest.ends = ours, os.getpid(), nest * for_one
    subprocess.Popen = _FromNest  # type: ignore[misc]
    if handler := sys.modules.get(_HANDLER):
        handler.Popen = _FromNest  # type: ignore[attr-defined]
    return None


class _FromNest(_Popen[Any]):
    """subprocess.Popen, whose process comes from the nest where it can."""

    nest: socket.socket
    owner = ends = 0  # process ids: whose nest it is, and of one that ends with the first process
    _lock = threading.Lock()

    def __init__(self, args: Any, **options: Any) -> None:
        request = _request(args, options) if os.getpid() == self.owner else None
        pid = self._ask(request, options) if request else 0
        if self.ends and self.owner == os.getpid():
            self.nest.close()
            os.waitpid(self.ends, 0)
            _FromNest.owner = 0
        if not pid:
            super().__init__(args, **options)
            return
        self.args, self.pid, self.returncode = args, pid, None
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock, self._child_created, self._sigint_wait_secs = threading.Lock(), True, 0.25

    def _ask(self, request: dict[str, Any], options: dict[str, Any]) -> int:
        """The process id; 0 where the nest is gone."""
        with self._lock, Path(os.devnull).open("r+b") as nothing:
            given = [options.get(name) for name in ("stdin", "stdout", "stderr")]
            streams = [_descriptor(one, number, nothing.fileno()) for number, one in enumerate(given)]
            was_subreaper = ctypes.c_int()
            _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was_subreaper), 0, 0, 0)
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self.nest, [json.dumps(request).encode()], [*streams, *options.get("pass_fds", ())])
                return int(self.nest.recv(20) or 0)
            except OSError:
                return 0
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, was_subreaper.value, 0, 0, 0)


def _request(args: Any, options: dict[str, Any]) -> dict[str, Any] | None:
    """None where the process has to be started anew."""
    command = list(map(os.fspath, args)) if isinstance(args, Sequence) and not isinstance(args, str | bytes) else []
    python, *rest = [*command, ""]
    is_unbuffered = rest[0] == "-u"
    option, module, *arguments = [*rest[is_unbuffered:-1], "", ""]
    environment = dict(options.get("env") or os.environ)
    paths = _new_paths(environment)
    is_known = python == _PYTHON and option == "-m" and module in _MODULES and options.keys() <= _OPTIONS
    is_apart = options.get("start_new_session") or options.get("process_group") == 0
    if not is_known or not is_apart or paths is None:
        return None
    told = {"module": module, "arguments": arguments[:-2], "command": command}
    fds = list(options.get("pass_fds", ()))
    told |= {
        "environment": environment,
        "cwd": str(options.get("cwd") or Path.cwd()),
        "fds": fds,
        "is_unbuffered": is_unbuffered,
        "paths": paths,
    }
    return told if len(json.dumps(told)) < _REQUEST_BYTES and len(fds) < _MOST_DESCRIPTORS - 3 else None


def _new_paths(environment: Mapping[str, str]) -> list[str] | None:
    """The folders of a PYTHONPATH that this process has not; None where there is more that is different and read once."""
    ours, theirs = read_once(os.environ), read_once(environment)
    paths = theirs.pop("PYTHONPATH", "").split(os.pathsep) if "PYTHONPATH" not in ours else []
    has_code = any((Path(path) / f"{name}.py").exists() for path in paths if path for name in ("sitecustomize", "usercustomize"))
    return None if ours != theirs or has_code else [path for path in paths if path]


def _descriptor(given: Any, number: int, nothing: int) -> int:
    if given is None:
        return number
    return nothing if given == subprocess.DEVNULL else given if isinstance(given, int) else int(given.fileno())


def _serve(channel: socket.socket, parent: int, *, for_one: bool) -> dict[str, Any]:
    """The nest itself, until its process ends or it has served; returns in a fork."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    os.setsid()
    os.chdir("/")
    _process_title.show(["(nest)"], {})  # it is no process of a run
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    while True:
        content, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, _MOST_DESCRIPTORS)
        if not content:
            os._exit(0)
        if _forked():
            request = json.loads(content)
            _take_places(channel, request, descriptors)
            return dict(request)
        if for_one:
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _forked() -> bool:
    """True in a new process, once its parent is the process of the nest: the one between them has ended, and that is a subreaper."""
    if between := os.fork():
        os.waitpid(between, 0)
        return False
    has_ended = os.pidfd_open(os.getpid())
    if os.fork():
        os._exit(0)
    select.select([has_ended], [], [])
    return True


def _unbuffered(number: int, errors: str) -> io.TextIOWrapper:
    """As `python -u` has it: a hook may end the process at once."""
    return io.TextIOWrapper(os.fdopen(number, "wb", 0, closefd=False), "utf-8", errors, write_through=True)


def _take_places(channel: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    os.setsid()
    told, *given = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number in (channel.fileno(), *descriptors)]
    channel.detach()
    os.closerange(3, _HIGH)
    for descriptor, place in zip(given, [0, 1, 2, *request["fds"]], strict=True):
        os.dup2(descriptor, place)
    if request["is_unbuffered"]:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = _unbuffered(1, "strict"), _unbuffered(2, "backslashreplace")
    become(request)
    os.write(told, str(os.getpid()).encode())
    os.closerange(_HIGH, _END)
