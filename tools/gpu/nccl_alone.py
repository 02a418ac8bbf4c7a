"""busbw of the collectives by NCCL alone, called as nccl-tests calls it: `python tools/gpu/nccl_alone.py [GIBIBYTES...]`.

A thread for each GPU, buffers of 8 GiB, 5 operations unmeasured and 20 measured, then blocks as long as ours; out of place and in place.
Beside tools/gpu/readings.py on the same GPUs it tells what of a difference to nccl-tests is the tool's. Prints JSON lines.
"""

import ctypes
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nvidia.nccl
import torch

BUFFER_BYTES, FLOAT_BYTES = 8 << 30, 4
FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
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
        one, other = (torch.rand(BUFFER_BYTES // FLOAT_BYTES, device="cuda") for _ in range(2))
        torch.cuda.synchronize()
        for num_bytes in self._sizes:
            for collective, place, call in self._calls(num_bytes, one.data_ptr(), other.data_ptr()):
                self.lines.append(
                    {"collective": collective, "num_bytes": num_bytes, "place": place, **self._read(collective, num_bytes, call)}
                )

    def _calls(self, num_bytes: int, one: int, other: int) -> Iterator[tuple[str, str, tuple]]:
        own = num_bytes // self._together.parties
        shard = one + self._rank * own
        how = (FLOAT, self._communicator, ctypes.c_void_p(self._stream.cuda_stream))
        reduced = (FLOAT, SUM, *how[1:])
        for place, target in (("out", other), ("in", one)):
            yield "all_reduce", place, (self._nccl.ncclAllReduce, *buffers(one, target, num_bytes), *reduced)
        for place, source in (("out", other), ("in", shard)):
            yield "all_gather", place, (self._nccl.ncclAllGather, *buffers(source, one, own), *how)
        for place, target in (("out", other), ("in", shard)):
            yield "reduce_scatter", place, (self._nccl.ncclReduceScatter, *buffers(one, target, own), *reduced)

    def _read(self, collective: str, num_bytes: int, call: tuple) -> dict[str, object]:
        ranks = self._together.parties
        moved_gb = num_bytes * (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1) / 1e9
        self._elapsed_s(5, call)
        as_nccl_tests = [round(moved_gb / self._elapsed_s(20, call), 1) for _ in range(3)]
        per_block = max(20, int(BLOCK_S * LINK_GB_PER_S / moved_gb))
        blocks = [round(moved_gb / self._elapsed_s(per_block, call), 1) for _ in range(NUM_BLOCKS)]
        return {"busbw_gb_per_s_of_20": as_nccl_tests, "operations": per_block, "busbw_gb_per_s": blocks}

    def _elapsed_s(self, times: int, call: tuple) -> float:
        function, *arguments = call
        torch.cuda.synchronize()
        self._together.wait()
        start = time.perf_counter()
        for _ in range(times):
            check(function(*arguments))
        self._stream.synchronize()
        return (time.perf_counter() - start) / times


def buffers(source: int, target: int, num_bytes: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(source), ctypes.c_void_p(target), ctypes.c_size_t(num_bytes // FLOAT_BYTES)


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
    main([int(float(size) * 2**30) for size in sys.argv[1:]] or [2**26, 2**28, 2**30, 4 * 2**30])
