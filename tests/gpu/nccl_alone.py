"""busbw of all_gather by NCCL alone, called as nccl-tests calls it: `python tests/gpu/nccl_alone.py [GIBIBYTES...]`.

A thread for each GPU, buffers of 8 GiB, 5 operations unmeasured and 20 measured, then blocks as long as ours; out of place and in place.
Beside tests/gpu/readings.py on the same GPUs it tells what of a difference to nccl-tests is the tool's. Prints JSON lines.
"""

import ctypes
import json
import sys
import threading
import time
from pathlib import Path

import nvidia.nccl
import torch

BUFFER_BYTES, FLOAT = 8 << 30, 7  # ncclFloat32
BLOCK_S, NUM_BLOCKS = 0.3, 7
LINK_GB_PER_S = 450


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Rank(threading.Thread):
    """One GPU. `together` is where all of them meet before each block."""

    def __init__(self, nccl: ctypes.CDLL, unique_id: UniqueId, rank: int, together: threading.Barrier, sizes: list[int]) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []
        self._nccl, self._unique_id, self._rank, self._together, self._sizes = nccl, unique_id, rank, together, sizes

    def run(self) -> None:
        torch.cuda.set_device(self._rank)
        self._communicator, self._stream = ctypes.c_void_p(), torch.cuda.Stream()
        check(self._nccl.ncclCommInitRank(ctypes.byref(self._communicator), self._together.parties, self._unique_id, self._rank))
        shard, whole = (torch.ones(BUFFER_BYTES // 4, device="cuda") for _ in range(2))
        torch.cuda.synchronize()
        for num_bytes in self._sizes:
            own = num_bytes // self._together.parties
            for place, source in (("out", shard.data_ptr()), ("in", whole.data_ptr() + self._rank * own)):
                self.lines.append(self._read(num_bytes, place, source, whole.data_ptr(), own // 4))

    def _read(self, num_bytes: int, place: str, source: int, target: int, count: int) -> dict[str, object]:
        self._elapsed_s(5, source, target, count)
        as_nccl_tests = [self._busbw(num_bytes, 20, source, target, count) for _ in range(3)]
        per_block = max(20, int(BLOCK_S * LINK_GB_PER_S * 1e9 / num_bytes))
        blocks = [self._busbw(num_bytes, per_block, source, target, count) for _ in range(NUM_BLOCKS)]
        return {"num_bytes": num_bytes, "place": place, "busbw_gb_per_s_of_20": as_nccl_tests, "busbw_gb_per_s": blocks}

    def _busbw(self, num_bytes: int, times: int, *buffers: int) -> float:
        ranks = self._together.parties
        return round(num_bytes / self._elapsed_s(times, *buffers) / 1e9 * (ranks - 1) / ranks, 1)

    def _elapsed_s(self, times: int, source: int, target: int, count: int) -> float:
        torch.cuda.synchronize()
        self._together.wait()
        start = time.perf_counter()
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        for _ in range(times):
            sizes = (ctypes.c_size_t(count), FLOAT, self._communicator, stream)
            check(self._nccl.ncclAllGather(ctypes.c_void_p(source), ctypes.c_void_p(target), *sizes))
        self._stream.synchronize()
        return (time.perf_counter() - start) / times


def check(result: int) -> None:
    assert result == 0, f"NCCL answered {result}"


def main(sizes: list[int]) -> None:
    (library,) = (Path(next(iter(nvidia.nccl.__path__))) / "lib").glob("libnccl.so*")
    nccl, unique_id = ctypes.CDLL(str(library)), UniqueId()
    check(nccl.ncclGetUniqueId(ctypes.byref(unique_id)))
    together = threading.Barrier(torch.cuda.device_count())
    ranks = [Rank(nccl, unique_id, rank, together, sizes) for rank in range(together.parties)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    for line in ranks[0].lines:
        print(json.dumps({"gpus": len(ranks), **line}))


if __name__ == "__main__":
    main([int(float(size) * 2**30) for size in sys.argv[1:]] or [2**30, 4 * 2**30])
