"""Do two readers of NVLink counters get in each other's way? `python tools/gpu/nvlink_race.py`, on a node with NVLink. Lines of JSON.

GPU 0: its NVLink errors are read again and again, alone, beside a thread that reads the links' traffic, and beside a process that does.
`bare` is a plain question, `one at a time` goes through the tool's lock (the other thread does as well, in "a thread of the tool"), and
`counters` is what the tool asks. Told: how many readings had no value. pytest does not collect this file.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.counters import _OF_LINK, ALL_LINKS, GpuCounters
from gpu_acceptance.inventory.nvml import Asker, library
from gpu_acceptance.inventory.telemetry_sampler import _NVLINK

NUM_READINGS = 150


def main() -> None:
    with library() as pynvml:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        errors, traffic = ([(getattr(pynvml, name), ALL_LINKS) for name in names] for names in (_OF_LINK.values(), dict(_NVLINK.values())))
        if sys.argv[1:] == ["--traffic"]:
            until(threading.Event(), lambda: pynvml.nvmlDeviceGetFieldValues(handle, traffic))
        asker = Asker(pynvml)
        names_of_errors, names_of_traffic = ([(name, ALL_LINKS) for name in names] for names in (_OF_LINK.values(), dict(_NVLINK.values())))
        counters = GpuCounters(pynvml, pynvml.nvmlDeviceGetUUID(handle))

        def bare() -> bool:
            return any(value.nvmlReturn for value in pynvml.nvmlDeviceGetFieldValues(handle, errors))

        def one_at_a_time() -> bool:
            return any(isinstance(value, Missing) for value in asker.fields(handle, names_of_errors))

        def asked() -> bool:
            values = counters.read(each_link=False).values
            return any(isinstance(values[name, ""], Missing) for name in _OF_LINK)

        for beside, other in {
            "nobody": contextlib.nullcontext,
            "a thread": lambda: thread(lambda: pynvml.nvmlDeviceGetFieldValues(handle, traffic)),
            "a thread of the tool": lambda: thread(lambda: asker.fields(handle, names_of_traffic)),
            "a process": process,
        }.items():
            with other():
                for name, read in {"bare": bare, "one at a time": one_at_a_time, "counters": asked}.items():
                    begin_s = time.monotonic()
                    failed = sum(read() for _ in range(NUM_READINGS))
                    took_s = (time.monotonic() - begin_s) / NUM_READINGS
                    line = {"beside": beside, "read": name, "no_value": failed, "of": NUM_READINGS, "seconds_each": took_s}
                    print(json.dumps(line), flush=True)


@contextlib.contextmanager
def thread(work: Callable[[], Any]) -> Iterator[None]:
    stop = threading.Event()
    worker = threading.Thread(target=until, args=(stop, work))
    worker.start()
    yield
    stop.set()
    worker.join()


@contextlib.contextmanager
def process() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, __file__, "--traffic"])
    time.sleep(2.0)
    yield
    child.kill()
    child.wait()


def until(stop: threading.Event, work: Callable[[], Any]) -> None:
    while not stop.wait(0.002):
        work()


if __name__ == "__main__":
    main()
