import os
from types import SimpleNamespace

import pytest
import torch

from gpu_acceptance.measure import pcie
from gpu_acceptance.measure.pcie import running_on

CPU = torch.device("cpu")
NO_SUCH_CPU = frozenset({8191})  # NR_CPUS of Linux ends at 8192
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
needs_numa_maps = pytest.mark.skipif(not pcie.NUMA_MAPS.exists(), reason="a kernel without NUMA")


@pytest.fixture
def own():
    """The CPUs of this thread, which it has again after the test."""
    before = os.sched_getaffinity(0)
    assert NO_SUCH_CPU.isdisjoint(before)
    yield before
    os.sched_setaffinity(0, before)


def taken(num_bytes=64 * PAGE_BYTES, cpus=None):
    return pcie.host_memory(num_bytes, CPU, cpus)


@pytest.mark.parametrize(
    ("cpus_of", "is_bound"),
    [(lambda one: None, False), (lambda one: NO_SUCH_CPU, False), (lambda one: one, True), (lambda one: NO_SUCH_CPU | one, True)],
)
def test_a_thread_runs_on_the_named_cpus_that_it_may_use_and_says_whether_it_does(cpus_of, is_bound, own):
    one = frozenset({min(own)})
    cpus = cpus_of(one)
    with running_on(cpus) as seen:
        assert seen == is_bound
        assert os.sched_getaffinity(0) == (one if is_bound else own)
    assert os.sched_getaffinity(0) == own
    with pytest.raises(KeyError, match="inside"), running_on(cpus):
        raise KeyError("inside")
    assert os.sched_getaffinity(0) == own
    result = pcie.measure("bidirectional", buffer_bytes=16 * PAGE_BYTES, num_copies=1, num_samples=2, device=CPU, cpus=cpus)
    assert (result.is_bound, result.num_pages) == (is_bound, 32)


def test_the_memory_is_mapped_by_a_thread_on_these_cpus(own, monkeypatch):
    one, seen = frozenset({max(own)}), []
    real = pcie.mmap.mmap

    def mapped(*arguments, **options):
        seen.append(os.sched_getaffinity(0))
        return real(*arguments, **options)

    monkeypatch.setattr(pcie.mmap, "mmap", mapped)
    with taken(cpus=one) as (_, is_bound):
        assert is_bound
        assert os.sched_getaffinity(0) == own
    assert seen == [one]


def test_what_cannot_be_had_leaves_the_affinity_as_it_was(own):
    with pytest.raises(OSError, match="Cannot allocate memory"), taken(2**60, frozenset({min(own)})):
        pass
    assert os.sched_getaffinity(0) == own


@needs_numa_maps
def test_all_pages_are_there_before_anybody_writes_and_each_lies_on_a_node():
    with taken() as (memory, _):
        by_node, num_pages = pcie.pages_of(memory)
        assert sum(by_node.values()) == num_pages == 64
        assert not memory.any()


def test_pages_are_those_of_this_memory_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(pcie, "NUMA_MAPS", tmp_path / "numa_maps")
    with taken() as (memory, _):
        start = memory.data_ptr()
        own = r"default file=/dev/zero\040(deleted) dirty=64 active=0 N0=60 N11=4 kernelpagesize_kB=4"
        lines = [f"{start - 4096:x} default anon=3 N0=3", f"{start:x} {own}", f"{start:x}0 default N1=7", f"{start + 2**20:x} default N1=9"]
        (tmp_path / "numa_maps").write_text("\n".join(lines) + "\n")
        assert pcie.pages_of(memory)[0] == {0: 60, 11: 4}
        (tmp_path / "numa_maps").write_text(lines[0])
        assert pcie.pages_of(memory)[0] == {}


@pytest.mark.parametrize(
    ("num_bytes", "size", "num_pages"),
    [
        (2**20, " kernelpagesize_kB=4", 256),
        (2**20, " kernelpagesize_kB=64", 16),
        (2**20 + 1, " kernelpagesize_kB=64", 17),
        (2**20, " kernelpagesize_kB=2048", 1),
        (64 * PAGE_BYTES, "", 64),
        (64 * PAGE_BYTES, " kernelpagesize_kB=0", 64),
        (64 * PAGE_BYTES, None, 64),  # a kernel that does not tell
    ],
)
def test_pages_are_counted_in_the_size_that_the_kernel_says(num_bytes, size, num_pages, monkeypatch, tmp_path):
    monkeypatch.setattr(pcie, "NUMA_MAPS", tmp_path / "numa_maps")
    with taken(num_bytes) as (memory, _):
        if size is not None:
            (tmp_path / "numa_maps").write_text(f"{memory.data_ptr():x} default N0=7{size}\n")
        assert pcie.pages_of(memory) == ({} if size is None else {0: 7}, num_pages)


@pytest.fixture
def driver(monkeypatch):
    """Record the calls to CUDA, in order. `answers`: of registering and of the opposite; `synchronize`: what waiting raises."""
    asked = SimpleNamespace(answers=[0, 0], synchronize=None, calls=[])

    def inside(error):
        asked.calls.append("inside")
        if error is not None:
            raise error

    asked.inside = inside

    def register(start, num_bytes, flags):
        asked.calls.append(("register", num_bytes, flags))
        return asked.answers[0]

    def unregister(start):
        asked.calls.append("unregister")
        return asked.answers[1]

    def synchronize(device):
        asked.calls.append(str(device))
        if asked.synchronize is not None:
            raise asked.synchronize

    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return asked


def pinned():
    return pcie.host_memory(4096, torch.device("cuda", 3), None)


LOST = RuntimeError("an illegal memory access was encountered")
FAILED = r"^cuda:3: {} of 4096 bytes of host memory failed with CUDA error {}$"
ALL = ["register", "inside", "cuda:3", "unregister"]


@pytest.mark.parametrize(
    ("answers", "waiting", "inside", "error", "calls"),
    [
        ([0, 0], None, IndexError("inside"), "^inside$", ALL),  # until the last copy has ended
        ([2, 0], None, None, FAILED.format("cudaHostRegister", 2), ALL[:1]),
        ([0, 0], LOST, None, "illegal memory access", ALL),  # a GPU that fails while it copies leaves no memory registered
        ([0, 700], None, None, FAILED.format("cudaHostUnregister", 700), ALL),
        ([0, 700], None, IndexError("inside"), "^inside$", ALL),  # the first error says more than that
        ([0, 700], LOST, None, "illegal memory access", ALL),
    ],
)
def test_memory_for_a_gpu_is_pinned_inside_the_block_and_the_first_error_is_told(answers, waiting, inside, error, calls, driver):
    driver.answers, driver.synchronize = answers, waiting
    with pytest.raises((RuntimeError, IndexError), match=error), pcie.host_memory(4096, torch.device("cuda", 3), None):
        driver.inside(inside)
    assert [call[0] if isinstance(call, tuple) else call for call in driver.calls] == calls
    assert driver.calls[0] == ("register", 4096, 1)
