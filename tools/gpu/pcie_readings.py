"""Readings of the host links on real hardware, from memory near and far, and a planted fault.

    python tools/gpu/pcie_readings.py
    torchrun --nproc-per-node gpu tools/gpu/pcie_readings.py
    torchrun --nproc-per-node 2 tools/gpu/pcie_readings.py --device=cpu --buffer-bytes=1048576

One rank for each GPU of one node. From rank 0 a JSON line for each rank: every direction, first alone, one rank after the other,
then all ranks at once, with host memory on the GPU's own NUMA node (`near`) and, where there are several, on one far from it.
`planted`: the bytes that were counted wrong where one was flipped. Ends with 1 where a byte was wrong, or where a planted one was
not found. pytest does not collect this file.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from readings import join_world, name, say, together, took_s, world_size  # first: it finds the checkout

from gpu_acceptance.inventory import binding, cpu, gpu_health, gpu_reader, infiniband, node, system, versions
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.binding import HostSide
from gpu_acceptance.measure import pcie
from gpu_acceptance.worker.session import take_turns


class Meeting:
    """The store in which ranks meet after they joined their world."""

    group: dist.ProcessGroup | None = None


def main() -> None:
    options = read_options()
    device = join_world(options.device)
    if dist.is_initialized():
        Meeting.group = dist.new_group(backend="gloo")
    say({"versions": versions.read(), "world_size": world_size(), "device": name(device)})
    sizes = {"buffer_bytes": options.buffer_bytes, "num_copies": options.num_copies, "num_samples": options.num_samples}
    begin_s = together(device)
    own, nodes = own_node(device), nodes_with_cpus()
    numbers = near_and_far(own, list(nodes))
    read = [reading(direction, number, nodes[number], device, sizes) for number in numbers for direction in pcie.DIRECTIONS]
    for one in read:
        one["near"] = one["node"] == own
    found = planted(device, sizes)
    every = gather("line", {"own_node": own, "readings": read, "planted": found, "took_s": took_s(begin_s)})
    for rank, line in enumerate(every):
        say({"rank": rank, **line})
    if dist.is_initialized():
        dist.destroy_process_group()
    wrong = [way[key] for line in every for way in line["readings"] for key in ("alone_wrong", "together_wrong") if way[key]]
    sys.exit(bool(wrong) or any(line["planted"] != {"h2d": 1, "d2h": 1, "bidirectional": 2} for line in every))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read host links from every NUMA node; print JSON lines.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--buffer-bytes", type=int, default=512 * 2**20)
    parser.add_argument("--num-copies", type=int, default=16)
    parser.add_argument("--num-samples", type=int, default=7)
    return parser.parse_args()


def own_node(device: torch.device) -> object:
    """The number of the GPU's NUMA node, or the reason why nobody knows it."""
    if device.type != "cuda":
        return "no GPU"
    gpus = gpu_reader.read(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    gpu = gpu_health.gpu_of(gpus, f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    own = binding.own_node(cpu.read(), infiniband.place_of(gpu, node.places_of(gpus)))
    return str(own) if isinstance(own, Missing) else own.number


def nodes_with_cpus() -> dict[int | None, frozenset[int] | None]:
    """NUMA node -> its CPUs. Where nobody knows them: one reading that is bound to none."""
    nodes = cpu.read().numa_nodes
    known = {} if isinstance(nodes, Missing) else {one.number: HostSide(one).cpus for one in nodes}
    return {number: cpus for number, cpus in known.items() if cpus} or {None: None}


def near_and_far(own: object, numbers: list[int | None]) -> list[int | None]:
    """As many on every rank: a GPU's own node and the one whose number is farthest from it; where its own is not known, first and last."""
    if own in numbers:
        return list(dict.fromkeys([own, max(numbers, key=lambda number: abs(number - own))]))
    return list(dict.fromkeys([numbers[0], numbers[-1]]))


def reading(direction: str, number: int | None, cpus: frozenset[int] | None, device: torch.device, sizes: dict) -> dict:
    alone = pcie.measure(direction, **sizes, device=device, cpus=cpus, in_turn=in_turn)
    at_once = pcie.measure(direction, **sizes, device=device, cpus=cpus, before_sample=lambda: gather("sample", 0))
    line = {"direction": direction, "node": number, "is_bound": alone.is_bound, "pages_by_node": alone.pages_by_node}
    line["num_pages"] = alone.num_pages
    for way, result in {"alone": alone, "together": at_once}.items():
        line |= {f"{way}_gb_per_s": result.gb_per_s, f"{way}_best": result.spread.best, f"{way}_cv_percent": result.spread.percent}
        line[f"{way}_wrong"] = result.num_wrong
    return line


def planted(device: torch.device, sizes: dict) -> dict[str, int]:
    """Return the count of wrong bytes with one flipped bit in each destination after every copy."""
    real = torch.Tensor.copy_

    def copy(dst: torch.Tensor, src: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        real(dst, src, *arguments, **options)
        if "non_blocking" in options:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()  # the host must not flip what has not come yet
            dst.view(torch.uint8)[12_345].bitwise_xor_(1)
        return dst

    torch.Tensor.copy_ = copy
    try:
        return {direction: pcie.measure(direction, **sizes, device=device).num_wrong for direction in pcie.DIRECTIONS}
    finally:
        torch.Tensor.copy_ = real


def in_turn(work):
    return take_turns(work, rank=dist.get_rank() if dist.is_initialized() else 0, host=system.hostname(), gather=gather)


def gather(key: str, value: object) -> list:
    """Gather a value from every rank over the host's network: waiting ranks put no load on their GPUs. `key` separates meetings."""
    if not dist.is_initialized():
        return [value]
    every = [None] * world_size()
    dist.all_gather_object(every, value, group=Meeting.group)
    return every


if __name__ == "__main__":
    main()
