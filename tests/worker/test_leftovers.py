"""Leftovers of a validation are put back, or named. Each way is tried in a process of its own."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import wait_until

from gpu_acceptance.worker import threads
from gpu_acceptance.worker.leftovers import Leftovers
from gpu_acceptance.worker.threads import own_children

# Leftovers that come back, and leftovers that do not: the text of each, and the line of Python that leaves it.
PUT_BACK = {
    "torch default_dtype is torch.float64, was torch.float32": "torch.set_default_dtype(torch.float64)",
    "torch default_device is device(type='meta'), was device(type='cpu')": "torch.set_default_device('meta')",
    "torch deterministic is 2, was 0": "torch.use_deterministic_algorithms(True)",
    "torch deterministic is 1, was 0": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "torch grad is False, was True": "torch.set_grad_enabled(False)",
    "torch anomaly detection is True, was False": "torch.autograd.set_detect_anomaly(True)",
    "torch fp32_precision of matmul is 'tf32', was 'none'": "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch fp32_precision of float32_matmul_precision is 'high', was 'highest'": "torch.set_float32_matmul_precision('high')",
    "torch fp32_precision of cudnn.conv is 'none', was 'tf32'": "torch.backends.cudnn.allow_tf32 = False",
    "torch cudnn.benchmark is True, was False": "torch.backends.cudnn.benchmark = True",
    "torch autocast of cpu is (True, 'torch.float16'), was (False, 'torch.bfloat16')": "torch.autocast('cpu', torch.float16).__enter__()",
    "torch math_sdp is False, was True": "torch.backends.cuda.enable_math_sdp(False)",
    "torch denormals are kept is False, was True": "torch.set_flush_denormal(True)",
    "torch sharing_strategy is 'file_system', was 'file_descriptor'": "torch.multiprocessing.set_sharing_strategy('file_system')",
    "torch warns always is True, was False": "torch.set_warn_always(True)",
    "torch fastpath of attention is False, was True": "torch.backends.mha.set_fastpath_enabled(False)",
    "torch swap_module_params_on_conversion is True": "torch.__future__.set_swap_module_params_on_conversion(True)",
    "torch.distributed debug level is ": "torch.distributed.set_debug_level(torch.distributed.DebugLevel.DETAIL)",
    "module numpy is None, was None": "sys.modules['numpy'] = None",
    "module torch.nn is module, was None": "sys.modules['torch.nn'] = math",
    "functions at the end of the process is (print,), was ()": "atexit.register(print)",
    "environment NCCL_ALGO is 'TREE', was None": "os.environ['NCCL_ALGO'] = 'TREE'",
    "environment HOME is None, was '/somewhere'": "del os.environ['HOME']",
    "the working directory is '/', was ": "os.chdir('/')",
    "umask is '0077', was ": "os.umask(0o77)",
    "timer ITIMER_REAL is True, was False": "signal.alarm(60)",
    "timer ITIMER_PROF is True, was False": "signal.setitimer(signal.ITIMER_PROF, 60)",
    "handler of SIGTERM is print, was Handlers": "signal.signal(signal.SIGTERM, print)",
    "resource limit RLIMIT_CORE is (1, ": "resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))",
    "gc (enabled, thresholds, debug) is (False, ": "gc.disable()",
    "gc frozen is True, was False": "gc.freeze()",
    "gc.callbacks is (zip,), was ()": "gc.callbacks.append(zip)",
    "recursion limit is 400, was 1000": "sys.setrecursionlimit(400)",
    "stack size of new threads is 65536, was 0": "threading.stack_size(65536)",
    "digits of an integer as text is 1000, was 4300": "sys.set_int_max_str_digits(1000)",
    "filters of the root logger is (": "logging.root.addFilter(print)",
    "time zone is (": "os.environ['TZ'] = 'Asia/Kabul'; time.tzset()",
    "switch interval is 0.5, was 0.005": "sys.setswitchinterval(0.5)",
    "sys.stderr is StringIO, was TextIOWrapper": "sys.stderr = io.StringIO()",
    "sys.excepthook is print, was ": "sys.excepthook = print",
    "sys.setprofile is <lambda>, was None": "sys.setprofile(lambda *_: None)",
    "threading.settrace is <lambda>, was None": "threading.settrace(lambda *_: None)",
    "locale is 'C.UTF-8', was ": "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "socket timeout is 1.0, was None": "socket.setdefaulttimeout(1)",
    "start method of multiprocessing is 'spawn', was 'fork'": "multiprocessing.set_start_method('spawn', force=True)",
    "tempfile.tempdir is '/', was '": "tempfile.tempdir = '/'",
    "logging.disable is 50, was 0": "logging.disable()",
    "level of the root logger is 10, was 30": "logging.root.setLevel(logging.DEBUG)",
    "tracemalloc is True, was False": "tracemalloc.start()",
    "sys.path is ('/left', ": "sys.path.insert(0, '/left')",
    "sys.meta_path is (": "sys.meta_path.insert(0, keep)",
    "decimal context is (2, ": "decimal.getcontext().prec = 2",
    "numpy.seterr of over is 'raise', was 'warn'": "numpy.seterr(over='raise')",
    "environment of C libraries NCCL_ALGO is 'Tree', was None": "os.putenv('NCCL_ALGO', 'Tree')",
    "environment of C libraries HOME is 'unset', was None": "os.unsetenv('HOME')",
    "rounding of floats is ": "libc.fesetround(libc.fegetround() ^ 0xC00)",
    "transparent huge pages are off is 1, was 0": "libc.prctl(41, 1, 0, 0, 0)",
    "timer slack in ns is 1000000, was 50000": "libc.prctl(29, 1000000, 0, 0, 0)",
    "can dump core is 0, was 1": "libc.prctl(4, 0, 0, 0, 0)",
    "signal when the parent ends is 15, was 0": "libc.prctl(1, 15, 0, 0, 0)",
    "adopts orphans is 1, was 0": "libc.prctl(36, 1, 0, 0, 0)",
    "torch sparse invariants is True, was False": "torch.sparse.check_sparse_tensor_invariants.enable()",
    "torch autograd multithreading is False, was True": "torch.autograd.set_multithreading_enabled(False)",
    "torch nnpack is False, was True": "torch.backends.nnpack.set_flags(False)",
    "torch hooks of all modules or optimizers _global_forward_hooks is ((": "torch.nn.modules.module.register_module_forward_hook(print)",
    "torch hooks of all modules or optimizers _global_optimizer_post_hooks": "register_optimizer_step_post_hook(print)",
    "torch.compiler stance is 'force_eager', was 'default'": "torch.compiler.set_stance('force_eager')",
    "torch._dynamo.config recompile_limit is 1, was None": "torch._dynamo.config.recompile_limit = 1",
    "torch._dynamo.config traceable_tensor_subclasses is {'left'}, was None": "read_before().add('left')",
    "torch._inductor.config max_autotune is True, was None": "import torch._inductor.config as c; c.max_autotune = True",
}
IN_DOUBT = {
    "replacement of time.monotonic is <lambda>, was None": "time.monotonic = lambda: 0.0",
    "replacement of math.sqrt is <lambda>, was None": "math.sqrt = lambda x: x",
    "replacement of torch.cuda.synchronize is <lambda>, was None": "torch.cuda.synchronize = lambda *_: None",
    "replacement of torch.cuda.Event.elapsed_time is <lambda>, was None": "torch.cuda.Event.elapsed_time = lambda *_: 1.0",
    "replacement of torch.distributed.all_reduce is <lambda>, was None": "torch.distributed.all_reduce = lambda *_: None",
    "replacement of torch.equal is <lambda>, was None": "torch.equal = lambda *_: True",
    "replacement of torch.allclose is _ANY, was None": "import unittest.mock; torch.allclose = unittest.mock.ANY",  # it equals anything
    "replacement of torch.Tensor.equal is <lambda>, was None": "torch.Tensor.equal = lambda *_: True",
    "replacement of torch.Tensor.__add__ is <lambda>, was None": "torch.Tensor.__add__ = lambda self, _: self",
    "replacement of torch.nn.functional.linear is <lambda>, was None": "torch.nn.functional.linear = lambda *_: None",
    "replacement of torch.nn.Linear.forward is <lambda>, was None": "torch.nn.Linear.forward = lambda *_: None",
    "replacement of torch.nn.Linear.__call__ is <lambda>, was None": "torch.nn.Linear.__call__ = lambda *_: None",
    "replacement of torch.optim.AdamW.step is <lambda>, was None": "torch.optim.AdamW.step = lambda *_: None",
    "replacement of builtins.sum is <lambda>, was None": "import builtins; builtins.sum = lambda *_: 0",
    "replacement of os.fsync is <lambda>, was None": "os.fsync = lambda _: None",
    "replacement of os.sched_yield is None, was None": "del os.sched_yield",
    "replacement of random.random is <lambda>, was None": "random.random = lambda: 0.5",
    "replacement of statistics.median is <lambda>, was None": "import statistics; statistics.median = torch.no_grad()(lambda _: 1)",
    "replacement of time.perf_counter is device_count, was None": "time.perf_counter = torch.cuda.device_count",
    "replacement of torch.nn.functional.gelu is <lambda>, was None": "torch.nn.functional.gelu = torch._dynamo.disable(lambda x: x)",
    "kernel in Python of aten/mm/CPU is 'registered', was None": "keep.append(own_kernel())",
    "I/O priority is ": "psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)",
    "memory policy is ": "libc.syscall({'x86_64': 238}.get(platform.machine(), 237), 4, None, 0)",  # set_mempolicy(MPOL_LOCAL)
    "torch saved-tensor hooks is (print, print), was ()": "torch.autograd.graph.saved_tensors_hooks(print, print).__enter__()",
    "torch refusal of saved-tensor hooks is 'left', was None": "torch._C._autograd._saved_tensors_hooks_disable('left')",
    "replacement of gpu_acceptance.measure.timing.time_blocks is <lambda>, was None": "timing.time_blocks = lambda *_: None",
    "blocked signals is [<Signals.SIGTERM: 15>], was []": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})",
    "nice is ": "os.nice(1)",
    "resource limit RLIMIT_STACK is (1048576, 1048576), was ": "resource.setrlimit(resource.RLIMIT_STACK, (2**20, 2**20)); drop_rights()",
    "handler of SIGUSR1 is print, was Handlers": "signal.signal(signal.SIGUSR1, print)",
    "signals with a handler in C is ['SIGSEGV', ": "faulthandler.unregister(signal.SIGUSR1)",
    "more than half of all descriptors that were free are open is True": "keep.extend(map(os.dup, [0] * 700))",
    "replacement of math.pi is 3.0, was None": "math.pi = 3.0",
    "replacement of gpu_acceptance.measure.timing._OVERSHOOT is 3.0, was None": "timing._OVERSHOOT = 3.0",
    "replacement of gpu_acceptance.measure.timing.Blocks.median_s is property": "timing.Blocks.median_s = property(lambda self: 1.0)",
    "replacement of torch.nn.parallel.DistributedDataParallel.forward is ": "torch.nn.parallel.DistributedDataParallel.forward = print",
    "content of gpu_acceptance.measure.gemm.operands.DTYPES is 'changed', was None": "operands.DTYPES.clear()",
    "replacement of pytest.approx is print": "import pytest; pytest.approx = print",
    "replacement of hashlib.sha256 is print": "import hashlib; hashlib.sha256 = print",
    "replacement of pathlib.Path.read_text is <lambda>": "pathlib.Path.read_text = lambda *_: '1'",
    "replacement of threading.Thread.run is print": "threading.Thread.run = print",
    "replacement of torch.nn.init.normal_ is print": "torch.nn.init.normal_ = print",
    "replacement of posixpath.isdir is print": "os.path.isdir = print",
    "replacement of importlib.util.find_spec is print": "import importlib.util; importlib.util.find_spec = print",
    "replacement of torch.nn.utils.clip_grad_norm_ is print": "torch.nn.utils.clip_grad_norm_ = print",
    "replacement of torch.nn.Linear.__init__ is print": "torch.nn.Linear.__init__ = print",
    "replacement of torch.optim.Optimizer.zero_grad is print": "torch.optim.Optimizer.zero_grad = print",
    "replacement of torch.distributed.ProcessGroup.allreduce is print": "torch.distributed.ProcessGroup.allreduce = print",
    "replacement of torch.utils.flop_counter.FlopCounterMode.get_total_flops is <lambda>": "FlopCounterMode.get_total_flops = lambda _: 1",
    "faulthandler is enabled is False, was True": "faulthandler.disable()",
    "files of descriptors 0, 1, 2 is (": "os.close(1); os.open('/dev/null', os.O_WRONLY)",
    "torch inference_mode is True, was False": "keep.append(torch.inference_mode()); keep[0].__enter__()",
    "torch modes (function, dispatch) is (0, 1), was (0, 0)": "FlopCounterMode(display=False).__enter__()",
    "torch profiler is True, was False": "keep.append(torch.profiler.profile()); keep[0].__enter__()",
    "thread left-alone": "threading.Thread(target=threading.Event().wait, name='left-alone').start()",
    "thread burner (busy: ": "threading.Thread(target=burn, daemon=True, name='burner').start()",
    "thread in-bursts (busy: ": "threading.Thread(target=burn_in_bursts, daemon=True, name='in-bursts').start()",
    "thread later": "Timer(600, torch.set_default_dtype, [torch.float64]).start()",
    "thread loops": "threading.Thread(target=asyncio.new_event_loop().run_forever, daemon=True, name='loops').start()",
    "thread pooled": "keep.append(multiprocessing.pool.ThreadPool(1, named, ['pooled']))",
    "thread without a name": "_thread.start_new_thread(lambda: time.sleep(600), ()); time.sleep(0.1)",
    "process ": "subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
}
# These are no leftovers, though they change what is compared.
NO_CHANGE = (
    "torch.func.vmap(torch.sin)(torch.ones(3))",  # for which torch registers kernels
    "torch.compile(torch.nn.Linear(2, 2), backend='eager')(torch.ones(2)); torch.optim.SGD([keep_grad()]).step()",
    "mask.set(torch.ones(3))",  # a value that cannot be compared
    "Timer(600, print).start()  # of a library",
    "threading.Thread(target=lambda: Timer(600, print).start()).start(); time.sleep(0.1)  # of a library",
)
# One process for each line. It prints the settings that were put back, and those that are left.
SCRIPT = """
import _thread, asyncio, atexit, contextvars, ctypes, decimal, faulthandler, gc, io, json, locale, logging, math, multiprocessing.pool
import os, pathlib, platform, random, resource, signal, socket, subprocess, sys, tempfile, threading, time, tracemalloc
import numpy, psutil, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode
from gpu_acceptance.inventory import needs
from gpu_acceptance.measure import nccl, timing
from gpu_acceptance.measure.corruption import survey
from gpu_acceptance.measure.gemm import operands
from gpu_acceptance.measure.train import data_files, models, step, throughput as trained
from gpu_acceptance.worker.leftovers import Leftovers
from gpu_acceptance.worker.settings import COLLECTOR
from gpu_acceptance.worker import messages, threads
from gpu_acceptance.worker.threads import note_who_asks

keep, libc = [], ctypes.CDLL(None)
mask = contextvars.ContextVar("mask")
mask.set(torch.zeros(3))

def own_kernel():
    of_torch = torch.library.Library("aten", "IMPL")
    of_torch.impl("mm", lambda a, b: a, "CPU")
    return of_torch

class Timer(threading.Timer):
    daemon, name = True, "later"

def named(name):
    threading.current_thread().name = name

def burn():
    while True:
        pass

def burn_in_bursts():
    from time import sleep, thread_time
    while True:
        end = thread_time() + 0.15
        while thread_time() < end:
            pass
        sleep(0.15)

def read_before():
    import torch._dynamo.config
    return torch._dynamo.config.traceable_tensor_subclasses  # a copy that torch makes when it is read first

def keep_grad():
    return torch.ones(1, requires_grad=True)

def drop_rights():
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)

def tried(line):
    read_fd, write_fd = os.pipe()
    if os.fork() == 0:
        os.environ["HOME"] = "/somewhere"
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        COLLECTOR.freeze()
        if "read_before" in line:
            read_before()
        if "burn" in line:
            threads._CALM = 0.02  # a busy machine may give a thread less than a tenth of a CPU
        leftovers = Leftovers()
        file = "/site-packages/library.py" if "burn" in line or "library" in line else "/suite/test_line.py"
        exec(compile(line, file, "exec"))
        COLLECTOR.collect()
        changed = leftovers.put_back()
        left = [*map(str, leftovers.changes()), *([] if changed else leftovers.running(is_calm=False))]
        os.write(write_fd, json.dumps([[str(one) for one in changed if str(one) not in left], left]).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        return json.loads(pipe.read() or '[[], ["it died"]]')

note_who_asks(pathlib.Path("/suite"))
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(json.dumps({line: tried(line) for line in json.load(sys.stdin)}))
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """By line: the settings that were put back, and those that are left."""
    lines = json.dumps([*PUT_BACK.values(), *IN_DOUBT.values(), *NO_CHANGE])
    command, folder = [sys.executable, "-c", SCRIPT], tmp_path_factory.mktemp("tried")
    ended = subprocess.run(command, input=lines, cwd=folder, capture_output=True, text=True, start_new_session=True, check=True)
    return json.loads(ended.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("said", "line"), PUT_BACK.items(), ids=PUT_BACK.values())
def test_settings_that_can_be_put_back(tried, said, line):
    put_back, left = tried[line]
    assert [one for one in put_back if one.startswith(said)], (put_back, left)
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize(("said", "line"), IN_DOUBT.items(), ids=IN_DOUBT.values())
def test_leftovers_that_cannot_be_put_back(tried, said, line):
    put_back, left = tried[line]
    assert [one for one in left if one.startswith(said)], (put_back, left)


@pytest.mark.slow
@pytest.mark.parametrize("line", NO_CHANGE)
def test_changes_that_are_no_leftovers(tried, line):
    assert tried[line] == [[], []]


def test_variables_of_pytest_are_no_change(monkeypatch):
    leftovers = Leftovers()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another one")
    assert leftovers.changes() == []


def test_an_import_of_a_library_may_change_hooks_but_no_variable(monkeypatch):
    leftovers = Leftovers()
    monkeypatch.setattr(sys, "excepthook", print)
    monkeypatch.setenv("NCCL_ALGO", "TREE")
    assert [change.setting for change in leftovers.changes()] == ["environment", "sys.excepthook"]
    assert [str(change) for change in leftovers.changes(at_import=True)] == ["environment NCCL_ALGO is 'TREE', was None"]


def test_changes_of_a_wider_fixture_are_no_leftovers_until_it_is_torn_down(monkeypatch):
    leftovers = Leftovers()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="held")
    with leftovers.holding() as outer:
        monkeypatch.setenv("HELD", "1")
        thread.start()
        with leftovers.holding() as inner:
            monkeypatch.setenv("HELD", "2")
        monkeypatch.setenv("HELD_TOO", "1")
    assert (leftovers.changes(), leftovers.running(is_calm=True)) == ([], [])
    os.environ["LEFT"] = "1"
    assert [str(change) for change in leftovers.put_back()] == ["environment LEFT is '1', was None"]
    leftovers.release(inner)
    monkeypatch.setenv("HELD", "1")
    leftovers.release(outer)
    assert [str(change) for change in leftovers.changes()] == ["environment HELD is '1', was None", "environment HELD_TOO is '1', was None"]
    assert leftovers.running(is_calm=True) == ["thread held"]
    go.set()
    thread.join()


def test_a_value_that_cannot_be_read_or_compared_is_a_change(monkeypatch, tmp_path):
    class Odd:
        def __eq__(self, other):
            raise RuntimeError

        def __repr__(self):
            raise RuntimeError

        __hash__ = None

    monkeypatch.chdir(tmp_path)
    leftovers = Leftovers()
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "excepthook", Odd())
    said = [str(change) for change in leftovers.put_back()]
    assert said[0] == f"the working directory is unreadable (FileNotFoundError), was {str(tmp_path)!r}"
    assert said[1].startswith("sys.excepthook is test_a_value_that_cannot_be_read_or_compared_is_a_change.<locals>.Odd, was ")
    assert leftovers.changes() == []


def test_a_thread_or_process_that_is_just_ending_is_no_leftover():
    before = Leftovers()
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    with subprocess.Popen(["sleep", "0.2"]):
        assert before.running(is_calm=True) == []
    thread.join()


def test_a_daemon_that_waits_is_no_leftover():
    before, go = Leftovers(), threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    thread.start()
    assert before.running(is_calm=False) == []
    go.set()
    thread.join()


def test_without_leftovers_there_is_no_wait(monkeypatch):
    before = Leftovers()
    monkeypatch.setattr("gpu_acceptance.worker.leftovers.sleep", lambda _seconds: pytest.fail("it waits"))
    monkeypatch.setattr(threads, "sleep", lambda _seconds: pytest.fail("it waits"))
    assert before.running(is_calm=True) == []


def test_a_process_from_before_is_no_leftover():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert Leftovers().running(is_calm=True) == []
        process.communicate(b"\n")


def test_children_are_found_on_a_kernel_that_does_not_list_them(tmp_path):
    (tmp_path / "task" / "1").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert own_children(tmp_path) == own_children()
        assert process.pid in own_children(tmp_path)
        process.communicate(b"\n")


def test_an_idle_pool_of_threads_is_no_leftover_and_a_busy_one_is():
    before = Leftovers()
    go = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        busy = pool.submit(go.wait)
        assert before.running(is_calm=True) == ["thread pool_0"]
        go.set()
        busy.result()
        assert wait_until(lambda: before.running(is_calm=True) == [])


def test_a_pool_of_compilers_may_stay():
    before = Leftovers()
    script = Path("/torch/_inductor/compile_worker/__main__.py")
    with subprocess.Popen([sys.executable, "-c", "input()", str(script)], stdin=subprocess.PIPE) as process:
        found = before.running(is_calm=True)
        process.communicate(b"\n")
    assert found == []
