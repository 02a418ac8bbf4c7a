"""CPU time of each NVML call: `python tools/gpu/nvml_costs.py`. One GPU, idle and under load; a line of JSON for each.

The sampler asks by these figures (src/gpu_acceptance/inventory/telemetry_sampler.py). pytest does not collect this file.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from gpu_acceptance.inventory.nvml import Asker, library
from gpu_acceptance.inventory.telemetry_sampler import _FAST, _PCIE, SampleReader

NUM_CALLS, PAUSE_S = 40, 0.002


def main() -> None:
    with library() as pynvml:
        asker = Asker(pynvml)
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        reader = SampleReader(pynvml, pynvml.nvmlDeviceGetUUID(handle))
        questions = {
            "fields, fast": lambda: asker.fields(handle, list(_FAST.values())),
            "fields, PCIe": lambda: asker.fields(handle, list(_PCIE.values())),
            "clock": lambda: asker.ask("nvmlDeviceGetClockInfo", handle, 1, make=int),
            "reasons": lambda: asker.ask("nvmlDeviceGetCurrentClocksEventReasons", handle, make=int),
            "temperature": lambda: asker.ask("nvmlDeviceGetTemperature", handle, 0, make=int),
            "margin": lambda: asker.ask("nvmlDeviceGetMarginTemperature", handle, make=int),
            "utilisation": lambda: asker.ask("nvmlDeviceGetUtilizationRates", handle, make=lambda rates: rates.gpu),
            "memory": lambda: asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: info.used),
            "one sample": reader.read,
        }
        for load, stop in {"idle": None, "bf16 products": threading.Event()}.items():
            if stop:
                threading.Thread(target=multiply_until, args=(stop,)).start()
                time.sleep(2)
            print(json.dumps({"load": load, "cpu_us": {name: cpu_us(question) for name, question in questions.items()}}), flush=True)
            if stop:
                stop.set()


def cpu_us(question: Callable[[], object]) -> float:
    """CPU time of this thread for one call."""
    begin_s = time.thread_time()
    for _ in range(NUM_CALLS):
        question()
        time.sleep(PAUSE_S)
    return (time.thread_time() - begin_s) / NUM_CALLS * 1e6


def multiply_until(stop: threading.Event) -> None:
    device = torch.device("cuda", 0)
    one = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(one)
    while not stop.is_set():
        torch.mm(one, one, out=out)
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
