"""Snapshots of this machine beside `nvidia-smi -q -x` of the same seconds, idle and under load: `python tools/gpu/snapshots.py OUT`.

They hold serial numbers; tools/redact_snapshots.py takes them out. Printed is what the readers took, and each value that the two do not
agree on; the exit code is 1 where there is one.
"""

import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from nvidia_smi import differences

from gpu_acceptance.cli.snapshot_file import take, write_snapshot
from gpu_acceptance.inventory import gpu_reader

WARM_S, LOADED_S = 10, 40
SIDE, COPIED = 8192, 256 << 20


def main(out: Path) -> int:
    found = keep(out, "idle")
    load = subprocess.Popen([sys.executable, __file__, "--load"], stdout=subprocess.PIPE)
    assert load.stdout
    assert load.stdout.readline() == b"ready\n"
    time.sleep(WARM_S)
    found += keep(out, "loaded")
    load.terminate()
    load.wait()
    return 1 if found else 0


def keep(out: Path, name: str) -> list[str]:
    """Writes the two, and returns what they do not agree on."""
    shown = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, check=True, text=True).stdout
    start = time.perf_counter()
    snapshot = take()
    took = time.perf_counter() - start
    (out / f"{name}.xml").write_text(shown, encoding="utf-8")
    write_snapshot(out / f"{name}.json", snapshot)
    start = time.perf_counter()
    gpu_reader.read()
    print(f"{name}: snapshot {took:.3f} s, of that the GPUs {time.perf_counter() - start:.3f} s", flush=True)
    found = differences(snapshot.node.gpus, shown)
    print("\n".join([*found, f"{name}: {len(found)} differences from nvidia-smi"]), flush=True)
    return found


def load() -> None:
    """GEMM on every GPU and copies from and to the host, for a while."""
    work = [Work(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    print("ready", flush=True)
    end = time.monotonic() + LOADED_S
    while time.monotonic() < end:
        for one in work:
            one.enqueue()
        for one in work:
            torch.cuda.synchronize(one.device)


class Work:
    """The load that keeps one GPU busy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.factor = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
        self.product = torch.empty_like(self.factor)
        self.on_host = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
        self.on_device = torch.empty(COPIED, dtype=torch.uint8, device=device)
        self.stream = torch.cuda.Stream(device)

    def enqueue(self) -> None:
        with torch.cuda.device(self.device):
            for _ in range(20):
                torch.mm(self.factor, self.factor, out=self.product)
            with torch.cuda.stream(self.stream):
                for _ in range(4):
                    self.on_device.copy_(self.on_host, non_blocking=True)
                    self.on_host.copy_(self.on_device, non_blocking=True)


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        load()
    else:
        sys.exit(main(Path(sys.argv[1])))
