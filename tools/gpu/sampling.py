"""The sampler on real GPUs under load: `python tools/gpu/sampling.py [SECONDS]`. A line of JSON for each GPU, without and with it.

One process for each GPU multiplies bf16 matrices, first without a sampler and then with one. Told: the rate of products (what sampling
costs the load), the sampler's share of a core, what was found, and which sources had no answer.
The mean power stands beside that of NVML's energy counter, which runs on its own.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.nvml import Asker, library
from gpu_acceptance.inventory.telemetry_sampler import Sampler
from gpu_acceptance.record.gpu_telemetry import facts, findings, steady_facts, steady_findings
from gpu_acceptance.supervisor.gpu_watch import telemetry_of

SETTLE_S, SIZE = 10.0, 8192


def main(seconds: str) -> int:
    gpus = range(torch.cuda.device_count() or 1)
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # NVML's order
    children = [subprocess.Popen([sys.executable, __file__, "--gpu", str(index), seconds], env=environment) for index in gpus]
    return max(child.wait() for child in children)


def one_gpu(index: int, seconds: float) -> None:
    with library() as pynvml:
        asker = Asker(pynvml)
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        work = make_work(index)
        products_per_s(work, SETTLE_S if torch.cuda.is_available() else 0.1)
        for way, sampler in (
            ("none", None),
            ("20 Hz", Sampler(pynvml.nvmlDeviceGetUUID(handle))),
        ):
            if sampler:
                sampler.start()
                time.sleep(0.5)
            begin_s, begin_mj = time.monotonic(), asker.ask("nvmlDeviceGetTotalEnergyConsumption", handle, make=int)
            rate = products_per_s(work, seconds)
            end_s, end_mj = time.monotonic(), asker.ask("nvmlDeviceGetTotalEnergyConsumption", handle, make=int)
            line = {"gpu": index, "sampling": way, "products_per_s": rate}
            if not isinstance(begin_mj, Missing) and not isinstance(end_mj, Missing):
                line["energy_counter_w"] = (end_mj - begin_mj) / 1e3 / (end_s - begin_s)
            if sampler:
                line |= of_sampler(sampler, begin_s, end_s)
            print(json.dumps(line), flush=True)


def of_sampler(sampler: Sampler, begin_s: float, end_s: float) -> dict[str, object]:
    window, latest, sampled = sampler.window(begin_s, end_s), sampler.latest(), sampler.stop()
    bins, seen = sampled.series.bins(), telemetry_of(window)
    found = (*findings(seen), *steady_findings(seen), *facts(seen), *steady_facts(seen))
    return {
        "cpu_percent": 100 * sampled.cpu_s / (bins[-1].end_s - bins[0].begin_s),
        "no_answer": {name: str(value) for name in latest.__slots__ if isinstance(value := getattr(latest, name), Missing)},
        "failures": dict(sampled.failures),
        "problem": sampled.problem,
        "found": {metric: str(value) if isinstance(value, Missing) else value for metric, value, *_ in found},
    }


def make_work(index: int):
    """One product at a time; at a size that a CPU can do where there is no GPU."""
    device = torch.device("cuda", index) if torch.cuda.is_available() else torch.device("cpu")
    size = SIZE if device.type == "cuda" else 64
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(one)

    def work() -> None:
        torch.mm(one, other, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return work


def products_per_s(work, seconds: float) -> float:
    begin_s, number = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - begin_s) < seconds:
        work()
        number += 1
    return number / elapsed_s


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gpu"]:
        one_gpu(int(sys.argv[2]), float(sys.argv[3]))
    else:
        sys.exit(main(*(sys.argv[1:] or ["60"])))
