"""The mean SM clock by counting cycles, beside the one that NVML samples: `torchrun --nproc-per-node gpu tools/gpu/spin_clock.py`.

One thread of one SM counts a number of cycles (torch.cuda._sleep) while the GPU multiplies bf16 matrices; events say how long that took,
so cycles / seconds is that SM's mean clock. Told for each rank and run: both clocks, the rate with and without the counting thread, and
the cycle efficiency by either clock: which of them is steadier decides by which a GPU is to be judged. pytest does not collect this file.
"""

import statistics

import torch
import torch.distributed as dist
from pcie_readings import Meeting, gather
from readings import join_world, say, together, world_size

from gpu_acceptance.inventory.telemetry_sampler import Sampler
from gpu_acceptance.measure.gemm.operands import prepared, square
from gpu_acceptance.measure.gemm.rates import cycle_efficiency_on
from gpu_acceptance.measure.timing import time_block

SHAPE, PREHEAT_S, BLOCK_S, NUM_RUNS, CLOCK_HZ = square(8192), 10.0, 5.0, 7, 1.4e9


def main() -> None:
    device = join_world("cuda")
    if dist.is_initialized():
        Meeting.group = dist.new_group(backend="gloo")
    sampler = Sampler(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    sampler.start()
    lines = []
    with prepared(SHAPE, "bf16", device) as multiplication:
        one_s = time_block(multiplication.run, 50, device).elapsed_s / 50
        time_block(multiplication.run, int(PREHEAT_S / one_s), device)
        for _ in range(NUM_RUNS):
            together(device)
            lines.append(run(multiplication, int(BLOCK_S / one_s), sampler, device))
    for rank, lines_of_rank in enumerate(gather("lines", lines)):
        for figure in lines_of_rank[0]:
            values = [line[figure] for line in lines_of_rank]
            cv_percent = 100 * statistics.stdev(values) / statistics.mean(values)
            say({"rank": rank, "figure": figure, "cv_percent": cv_percent, "values": values})
    if world_size() > 1:
        dist.destroy_process_group()


def run(multiplication, number: int, sampler: Sampler, device: torch.device) -> dict[str, float]:
    alone = time_block(multiplication.run, number, device)
    stream, begin, end = torch.cuda.Stream(device), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles, is_counting = int(0.9 * BLOCK_S * CLOCK_HZ), []

    def multiply() -> None:
        if not is_counting:  # not before: a block begins on a device that is idle
            is_counting.append(True)
            with torch.cuda.stream(stream):
                begin.record()
                torch.cuda._sleep(cycles)
                end.record()
        multiplication.run()

    beside = time_block(multiply, number, device)
    torch.cuda.synchronize(device)
    counted_mhz = cycles / (begin.elapsed_time(end) / 1e3) / 1e6
    sampled_mhz = sampler.window(beside.begin_s, beside.end_s).spans["sm_clock_mhz"].mean
    rates = {name: number * SHAPE.num_flops / block.elapsed_s / 1e12 for name, block in {"alone": alone, "beside": beside}.items()}
    efficiency = {
        "counted": cycle_efficiency_on(device, "bf16", rates["beside"], counted_mhz),
        "sampled": cycle_efficiency_on(device, "bf16", rates["beside"], sampled_mhz),
    }
    return {**rates, "counted_mhz": counted_mhz, "sampled_mhz": sampled_mhz, **efficiency}


if __name__ == "__main__":
    main()
