"""Readings of measure/corruption/ on real hardware, without pytest: is equal work equal, how often, and what does a hash cost?

    torchrun --nproc-per-node gpu tools/gpu/corruption_readings.py > readings.jsonl
    torchrun --nproc-per-node gpu tools/gpu/corruption_readings.py --kernel=mm_bf16 --seconds=60 --pulse-s=1
    torchrun --nproc-per-node gpu tools/gpu/corruption_readings.py --kernel=mm_bf16 --plant=always
    torchrun --nproc-per-node gpu tools/gpu/corruption_readings.py --drill

Prints JSON lines from rank 0; what ranks tell each other goes over gloo, not over the GPUs in doubt. `--plant` flips a bit on the
last rank, `--drill` proves what a CPU cannot: hashes equal to a CPU's, settings that are refused, faults that are found.
pytest does not collect this file.
"""

import argparse
import ctypes
import os
import sys
from dataclasses import asdict

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first cuBLAS call, and so before torch comes in

import torch
import torch.distributed as dist
from readings import name, say, world_size  # first: it finds the checkout

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.hashing import Flip, as_text, hash_tensors
from gpu_acceptance.measure.corruption.kernels import drawing
from gpu_acceptance.measure.corruption.repeat import RepeatResult, deterministic, repeat
from gpu_acceptance.measure.corruption.survey import excluded_rate_per_minute, majority

PLANTS = {"once": Flip(repetition=1, element=77, bit=3), "always": Flip(repetition=None, element=77, bit=3)}
CPU = torch.device("cpu")


def main() -> None:
    options = read_options()
    device = join_world(options.device)
    say({"versions": versions.read() | {"cublas": cublas_version()}, "world_size": world_size(), "device": name(device)})
    with deterministic(device):
        if options.drill:
            drill(device)
        else:
            for kernel in options.kernel or kernels.NAMES:
                for size in options.size or kernels.SIZES:
                    read(kernel, size, options, device)
    if dist.is_initialized():
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # a thread of gloo that still wants the GIL would end a healthy process with SIGABRT (cpython#87135)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Repeat every kernel on every GPU, compare all hashes, print JSON lines.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--kernel", action="append", choices=kernels.NAMES, help="default: all")
    parser.add_argument("--size", action="append", choices=kernels.SIZES, help="default: all")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each kernel at each size")
    parser.add_argument("--pulse-s", type=float, help="seconds of load, and then of rest; default: no rest")
    parser.add_argument("--plant", choices=PLANTS, help="flip a bit of an output on the last rank, to see that it is found")
    parser.add_argument("--drill", action="store_true", help="prove on this device what a CPU cannot, then end")
    return parser.parse_args()


def join_world(device_type: str) -> torch.device:
    device = torch.device(device_type, int(os.environ.get("LOCAL_RANK", "0"))) if device_type == "cuda" else CPU
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    return device


def read(kernel_name: str, size: str, options: argparse.Namespace, device: torch.device) -> None:
    if reason := kernels.unsupported(kernel_name, device):
        say({"kernel": kernel_name, "size": size, "unsupported": reason})
        return
    kernel = kernels.make(kernel_name, size, device)
    flip = PLANTS[options.plant] if options.plant and rank() == world_size() - 1 else None
    result = repeat(kernel, seconds=options.seconds, pulse_s=options.pulse_s, flip=flip)
    del kernel
    if device.type == "cuda":
        torch.cuda.empty_cache()
    say(line(size, gathered(asdict(result) | {"gpu": name(device)})))


def line(size: str, results: list[dict]) -> dict:
    verdicts = {kind: peers_by_model(results, kind) for kind in ("input_hash", "hash")}
    bad = {f"rank {number}": one for number, one in enumerate(results) if one["mismatches"] or one["inputs_changed"]}
    agree = not bad and all(len(peers["hashes"]) == 1 for kind in verdicts.values() for peers in kind.values())
    return {
        "kernel": results[0]["kernel"],
        "size": size,
        "shape": results[0]["shape"],
        "repetitions": [one["num_repetitions"] for one in results],
        "repetitions_per_s": [round((one["num_repetitions"] - 1) / (one["exposure_s"] + one["hash_s"]), 2) for one in results],
        "kernel_ms": [round(1e3 * one["exposure_s"] / (one["num_repetitions"] - 1), 4) for one in results],
        "hash_ms": [round(1e3 * one["hash_s"] / (one["num_repetitions"] - 1), 4) for one in results],
        "hash_share": [round(one["hash_s"] / (one["exposure_s"] + one["hash_s"]), 4) for one in results],
        "inputs": verdicts["input_hash"],
        "outputs": verdicts["hash"],
        "all_agree": agree,
        "mismatches": bad,
        "excluded_per_minute": excluded_rate_per_minute(min(one["exposure_s"] for one in results)) if agree else None,
        "planted": [one["planted"] for one in results if one["planted"]],
    }


def peers_by_model(results: list[dict], kind: str) -> dict[str, dict]:
    """By GPU model: the different hashes, and the ranks that do not have the majority's; None where there is no majority."""
    answer = {}
    for gpu in {one["gpu"] for one in results}:
        hashes = {f"rank {number}": one[kind] for number, one in enumerate(results) if one["gpu"] == gpu}
        common = majority(list(hashes.values()))
        minority = [unit for unit, text in hashes.items() if text != common] if common else None
        answer[gpu] = {"hashes": sorted(set(hashes.values())), "minority": minority}
    return answer


# --- what only this device can prove ---------------------------------------------------------------------------------------------


def drill(device: torch.device) -> None:
    """Each line says what was tried and whether it came out right; rank 0's device."""
    if rank():
        return
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        here, there = (as_text(hash_tensors([drawing(1, where)(1000, 20_011, dtype=dtype)])) for where in (device, CPU))
        say({"drill": f"20 million inputs in {dtype} and their hash equal a CPU's", "right": here == there})
    for kernel_name in kernels.NAMES:
        if not kernels.unsupported(kernel_name, device):
            drill_faults(kernel_name, device)
    if not kernels.unsupported("mm_tf32", device):
        tf32, fp32 = (repeat(kernels.make(f"mm_{kind}", "large", device), num_repetitions=2) for kind in ("tf32", "fp32"))
        say({"drill": "TF32 is another arithmetic than fp32", "right": tf32.hash != fp32.hash and tf32.input_hash == fp32.input_hash})
    if device.type == "cuda":
        say({"drill": "a hash needs no sync with the host", "right": hashes_without_sync(device)})
        say({"drill": "memory of a hash beside 1 GiB", "mib": hash_memory_mib(device)})


def drill_faults(kernel_name: str, device: torch.device) -> None:
    kernel = kernels.make(kernel_name, "ragged", device)
    healthy, once, always = (repeat(kernel, num_repetitions=20, flip=flip) for flip in (None, *PLANTS.values()))
    say({"drill": f"{kernel_name}: 20 repetitions are equal", "right": not healthy.mismatches})
    say({"drill": f"{kernel_name}: one flipped bit is found, and where it was", "right": found_once(once)})
    say({"drill": f"{kernel_name}: a bit that is always wrong gives another hash", "right": always.hash != healthy.hash})


def found_once(result: RepeatResult) -> bool:
    (difference,) = result.differences or [None]
    return result.mismatches == (1,) and difference is not None and (difference.first, int(difference.xor_bits, 16)) == ((77,), 8)


def hashes_without_sync(device: torch.device) -> bool:
    """A kernel of 50 ms and more is still at work when the hash behind it has been enqueued."""
    hash_tensors([torch.ones(5, device=device)])
    torch.cuda.synchronize(device)
    torch.cuda._sleep(200_000_000)
    hash_tensors([torch.ones(5, device=device)])
    busy = not torch.cuda.current_stream(device).query()
    torch.cuda.synchronize(device)
    return busy


def hash_memory_mib(device: torch.device) -> int:
    tensor = torch.ones(2**28, device=device)
    hash_tensors([tensor])
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    hash_tensors([tensor])
    return (torch.cuda.max_memory_allocated(device) - before) >> 20


# --- the world -------------------------------------------------------------------------------------------------------------------


def cublas_version() -> str:
    """Return the version of the library that torch has loaded (cublasGetProperty: major, minor, patch); empty without CUDA."""
    if not torch.version.cuda:
        return ""
    library = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}")
    parts = [ctypes.c_int() for _ in range(3)]
    answers = [library.cublasGetProperty(number, ctypes.byref(part)) for number, part in enumerate(parts)]
    assert answers == [0, 0, 0], f"cublasGetProperty answered {answers}"
    return ".".join(str(part.value) for part in parts)


def gathered(own: dict) -> list[dict]:
    if not dist.is_initialized():
        return [own]
    every: list = [None] * world_size()
    dist.all_gather_object(every, own)
    return every


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


if __name__ == "__main__":
    main()
