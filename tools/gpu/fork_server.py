"""Workers that are forked, on a real GPU: `python tools/gpu/fork_server.py OUT`. A line PASS or FAIL for each thing that must hold.

Two runs of one rank and five generations, as a suite of the tests: one with its fork server, one in which that is killed as soon as it is
seen, so that all workers are started anew. Then forks of one server that are told of all GPUs, of none and of the first.
OUT gets what each worker and each look at the fork server found, and both runs.
Without a GPU it looks at the same on a CPU, for the sake of this script.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from clean_environment import clean_environment
from fork_servers import Starter
from suite import finished, make_suite, torchrun_command
from this_gpu import for_this_gpu
from waiting import wait_until

from gpu_acceptance.base.process import become_subreaper
from gpu_acceptance.inventory.nvml import library

HAS_GPU = torch.cuda.is_available()
VALIDATIONS = """
import json, os, sys, time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

ENVIRONMENTS = [{}, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, {}, {"NCCL_DEBUG": "INFO"}, {"CUDA_VISIBLE_DEVICES": "0"}]
HELD = []  # from one validation to the next of this worker, if there were one

def look(number, ranks):
    began_s = time.monotonic()
    device = ranks.device
    size = 4096 if device.type == "cuda" else 64
    one = torch.randn(size, size, device=device)
    HELD.append(one)
    product, total = one @ one, torch.ones(1, device=device)
    dist.all_reduce(total)
    deterministic = "not asked"
    if device.type == "cuda" and "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        torch.use_deterministic_algorithms(True)
        deterministic = bool(((one @ one) == (one @ one)).all())
        torch.use_deterministic_algorithms(False)
    seen = {
        "pid": os.getpid(),
        "is_child_of_supervisor": os.getppid() == int(os.environ["GPU_ACCEPTANCE_SUPERVISOR"]),
        "is_forked": sys.modules["__main__"].__spec__.name == "gpu_acceptance.worker.fork_server",
        "command": Path("/proc/self/cmdline").read_text().split("\\0")[1:3],
        "is_bad_fork": torch.cuda._is_in_bad_fork(),
        "right": bool(torch.isfinite(product).all()) and float(total) == ranks.world_size,
        "deterministic": deterministic,
        "draws": [torch.initial_seed(), float(one.flatten()[0])],
        "num_held": len(HELD),
        "num_devices": torch.cuda.device_count(),
        "took_s": time.monotonic() - began_s,
    }
    Path(f"seen-{number}.json").write_text(json.dumps(seen))
    time.sleep(2)  # to be looked at
    return seen["right"]
""" + "".join(
    f"""
@pytest.mark.worker(fresh=True, env=ENVIRONMENTS[{number}])
def test_generation_{number}(check, ranks):
    check("passes.value", 5.0 if look({number}, ranks) else 0.0, "GB/s")
"""
    for number in range(5)
)

COUNTS = """
import os, sys
from pathlib import Path
import torch

usable = sum(int(torch.ones(1, device=f"cuda:{number}")) for number in range(torch.cuda.device_count()))
part = Path(f"part-{os.getpid()}")
part.write_text(f"{sys.modules['__main__'].__spec__.name} {usable}")
part.rename(f"count-{os.getpid()}")
"""


def main(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    (forked, looks, forked_cpu_s), (anew, _, anew_cpu_s) = run(out, "forked"), run(out, "anew")
    verdicts = [*judge_server(looks, forked), *judge_workers(forked, anew), *judge_visible()]
    cost = f"CPU seconds of both runs: {forked_cpu_s:.1f} forked, {anew_cpu_s:.1f} anew, ratio {forked_cpu_s / anew_cpu_s:.2f}"
    lines = [f"{'PASS' if holds else 'FAIL'} {text}" for holds, text in verdicts] + [cost]
    (out / "fork-server.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if all(holds for holds, _ in verdicts) else 1


def run(out: Path, name: str) -> tuple[list[dict[str, object]], list[dict[str, object]], float]:
    """Return the workers' readings, the state of the fork server meanwhile, and the CPU seconds of all processes of the run."""
    suite = for_this_gpu(make_suite(Path(mkdtemp()) / "suite", "passes"))
    (suite / "acceptance" / "test_passes.py").write_text(VALIDATIONS)
    before = cpu_s()
    command, environment = torchrun_command("acceptance/", ranks=1), {**clean_environment(), "OMP_NUM_THREADS": "2"}
    looks, log_file = [], out / f"fork-server-{name}.log"
    with log_file.open("w") as log:
        process = subprocess.Popen(command, cwd=suite, env=environment, stdout=log, stderr=log)
    while process.poll() is None:
        if server := fork_server_of(process.pid):
            looks.append(look(server))
            if name == "anew":
                server.kill()
        time.sleep(0.2)
    ended = finished(process.wait(), log_file.read_text(), suite)
    seen = [json.loads(file.read_text()) for file in sorted(suite.glob("seen-*.json"))]
    if ended.folder is None or len(seen) != 5:
        raise SystemExit(f"FAIL {name}: the run did not come to its end:\n{ended.output[-3000:]}")
    seen[3]["nccl_told"] = "NCCL INFO" in (ended.folder / "logs" / "rank-00000.log").read_text().partition("=== generation 4 ===")[2]
    (out / f"fork-server-{name}.json").write_text(json.dumps({"looks": looks, "workers": seen, "verdict": ended.verdict_line}, indent=1))
    shutil.make_archive(str(out / f"fork-server-{name}"), "gztar", ended.folder)
    print(f"{name}: {ended.verdict_line}")
    return seen, looks, cpu_s() - before


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fork_server_of(launcher: int) -> psutil.Process | None:
    try:
        for process in psutil.Process(launcher).children(recursive=True):
            if "gpu_acceptance.worker.fork_server" in process.cmdline():
                return process
    except psutil.Error:  # it ends
        return None
    return None


def look(server: psutil.Process) -> dict[str, object]:
    """Threads of the server, what it holds of a GPU, and the processes that NVML knows on any."""
    proc = Path("/proc") / str(server.pid)
    try:
        files = [str(file.readlink()) for file in (proc / "fd").iterdir()]
        mapped = [line.split(maxsplit=5)[5].strip() for line in (proc / "maps").read_text().splitlines() if "/dev/nvidia" in line]
        threads, has_imported = len(list((proc / "task").iterdir())), "libtorch_python" in (proc / "maps").read_text()
    except OSError:  # it ends
        return {}
    held = sorted({*(file for file in files if file.startswith("/dev/nvidia")), *mapped})
    return {"pid": server.pid, "has_imported": has_imported, "threads": threads, "held": held, "on_gpus": pids_on_gpus()}


def pids_on_gpus() -> list[int]:
    if not HAS_GPU:
        return []
    with library() as pynvml:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [process.pid for handle in handles for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def judge_server(looks: list[dict[str, object]], workers: list[dict[str, object]]) -> Iterator[tuple[bool, str]]:
    loaded = [one for one in looks if one.get("has_imported")]
    servers, held = {one["pid"] for one in loaded}, {name for one in loaded for name in one["held"]}
    on_gpus, pids = {pid for one in loaded for pid in one["on_gpus"]}, {worker["pid"] for worker in workers}
    known = "NVML shows workers by these pids" if on_gpus & pids else "NVML shows pids of another namespace, or none: this says nothing"
    yield len(servers) == 1 and len(loaded) > 10, f"one fork server, seen {len(loaded)} times with torch in memory: {sorted(servers)}"
    yield not held, f"it holds no file of a GPU, so no context and no memory: {sorted(held)}"
    yield not servers & on_gpus, f"it is not among the processes on a GPU; {known}"
    yield {one["threads"] for one in loaded[-5:]} == {1}, f"it has one thread: {[one['threads'] for one in loaded[-5:]]}"


def judge_workers(forked: list[dict[str, object]], anew: list[dict[str, object]]) -> Iterator[tuple[bool, str]]:
    yield (
        [one["is_forked"] for one in forked] == [True] * 5,
        "five generations were forked, whatever was asked for of NCCL, cuBLAS and CUDA",
    )
    yield [one["is_forked"] for one in anew] == [False] * 5, "without a fork server five generations were started anew"
    for name, workers in (("forked", forked), ("anew", anew)):
        yield all(one["right"] for one in workers), f"{name}: each multiplied and reduced rightly on its GPU"
        yield len({one["pid"] for one in workers}) == 5, f"{name}: each is a process of its own"
        yield all(one["is_child_of_supervisor"] for one in workers), f"{name}: each is a child of its supervisor"
        yield (
            {tuple(one["command"]) for one in workers} == {("-m", "gpu_acceptance.worker.worker")},
            f"{name}: each shows the command of a worker",
        )
        yield not any(one["is_bad_fork"] for one in workers), f"{name}: torch knows of no CUDA before the fork"
        yield len({str(one["draws"]) for one in workers}) == 5, f"{name}: each draws other random numbers"
        yield all(one["num_held"] == 1 for one in workers), f"{name}: none has what an earlier one left in its module"
        yield workers[1]["deterministic"] in ({True} if HAS_GPU else {"not asked"}), f"{name}: CUBLAS_WORKSPACE_CONFIG came in time"
        yield workers[3]["nccl_told"] == HAS_GPU, f"{name}: NCCL_DEBUG came in time"


def judge_visible() -> Iterator[tuple[bool, str]]:
    """Forks of one server, each told of other GPUs than the server was."""
    become_subreaper()
    folder, number = Path(mkdtemp()), torch.cuda.device_count()
    (folder / "conftest.py").write_text(COUNTS)
    starter = Starter(folder, {name: value for name, value in clean_environment().items() if name != "CUDA_VISIBLE_DEVICES"})
    try:
        for visible, expected in (({}, number), ({"CUDA_VISIBLE_DEVICES": ""}, 0), ({"CUDA_VISIBLE_DEVICES": "0"}, min(number, 1))):
            worker = starter.fork(**visible)
            counted = folder / f"count-{worker.pid}"
            found = counted.read_text() if wait_until(counted.exists, 60) else starter.log
            yield (
                found == f"gpu_acceptance.worker.fork_server {expected}",
                f"a fork with {visible or 'all GPUs'} can use {expected}: {found[-300:]}",
            )
    finally:
        starter.end()


if __name__ == "__main__":
    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
    sys.exit(main(Path(sys.argv[1])))
