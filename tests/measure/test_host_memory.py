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


def test_a_thread_runs_on_these_cpus_inside_the_block_and_on_its_own_after_it(own):
    one = frozenset({min(own)})
    with running_on(one) as is_bound:
        assert is_bound
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == own


def test_after_an_exception_too(own):
    with pytest.raises(KeyError, match="inside"), running_on(frozenset({min(own)})):
        raise KeyError("inside")
    assert os.sched_getaffinity(0) == own


def test_where_no_cpu_may_be_used_it_says_so_and_stays(own):
    with running_on(NO_SUCH_CPU) as is_bound:
        assert not is_bound
        assert os.sched_getaffinity(0) == own
    assert os.sched_getaffinity(0) == own


def test_of_several_cpus_those_that_may_be_used_are_enough(own):
    with running_on(NO_SUCH_CPU | {min(own)}) as is_bound:
        assert is_bound
        assert os.sched_getaffinity(0) == {min(own)}


def test_no_cpus_are_no_binding(own):
    with running_on(None) as is_bound:
        assert not is_bound
        assert os.sched_getaffinity(0) == own


def test_the_memory_is_mapped_by_a_thread_on_these_cpus(own, monkeypatch):
    one, seen = frozenset({max(own)}), []
    real = pcie.mmap.mmap

    def mapped(*arguments, **options):
        seen.append(os.sched_getaffinity(0))
        return real(*arguments, **options)

    monkeypatch.setattr(pcie.mmap, "mmap", mapped)
    with taken(cpus=one) as memory:
        assert memory.is_bound
        assert os.sched_getaffinity(0) == own
    assert seen == [one]


def test_what_cannot_be_had_leaves_the_affinity_as_it_was(own):
    with pytest.raises(OSError, match="Cannot allocate memory"), taken(2**60, frozenset({min(own)})):
        pass
    assert os.sched_getaffinity(0) == own


@pytest.mark.parametrize(("cpus", "is_bound"), [(None, False), (NO_SUCH_CPU, False), ("first", True)])
def test_a_result_says_whether_its_memory_was_first_touched_on_the_cpus_that_were_named(own, cpus, is_bound):
    cpus = frozenset({min(own)}) if cpus == "first" else cpus
    assert pcie.measure("h2d", buffer_bytes=4096, num_copies=1, num_samples=2, device=CPU, cpus=cpus).is_bound == is_bound


@needs_numa_maps
def test_all_pages_are_there_before_anybody_writes_and_each_lies_on_a_node():
    with taken() as memory:
        assert sum(memory.pages_by_node().values()) == memory.num_pages() == 64
        assert not memory.data.any()


def test_pages_are_those_of_this_memory_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(pcie, "NUMA_MAPS", tmp_path / "numa_maps")
    with taken() as memory:
        start = memory.data.data_ptr()
        own = r"default file=/dev/zero\040(deleted) dirty=64 active=0 N0=60 N11=4 kernelpagesize_kB=4"
        lines = [f"{start - 4096:x} default anon=3 N0=3", f"{start:x} {own}", f"{start:x}0 default N1=7", f"{start + 2**20:x} default N1=9"]
        (tmp_path / "numa_maps").write_text("\n".join(lines) + "\n")
        assert memory.pages_by_node() == {0: 60, 11: 4}
        (tmp_path / "numa_maps").write_text(lines[0])
        assert memory.pages_by_node() == {}


@pytest.mark.parametrize(
    ("num_bytes", "size", "num_pages"),
    [
        (2**20, " kernelpagesize_kB=4", 256),
        (2**20, " kernelpagesize_kB=64", 16),
        (2**20 + 1, " kernelpagesize_kB=64", 17),
        (2**20, " kernelpagesize_kB=2048", 1),
        (64 * PAGE_BYTES, "", 64),
        (64 * PAGE_BYTES, " kernelpagesize_kB=0", 64),
    ],
)
def test_pages_are_counted_in_the_size_that_the_kernel_says(num_bytes, size, num_pages, monkeypatch, tmp_path):
    monkeypatch.setattr(pcie, "NUMA_MAPS", tmp_path / "numa_maps")
    with taken(num_bytes) as memory:
        (tmp_path / "numa_maps").write_text(f"{memory.data.data_ptr():x} default N0=7{size}\n")
        assert memory.num_pages() == num_pages


def test_a_kernel_that_does_not_tell_is_not_guessed(monkeypatch, tmp_path):
    monkeypatch.setattr(pcie, "NUMA_MAPS", tmp_path / "none")
    with taken() as memory:
        assert memory.pages_by_node() == {}
        assert memory.num_pages() == 64


@pytest.fixture
def driver(monkeypatch):
    """Record the calls to CUDA, in order. `answers`: of registering and of the opposite; `synchronize`: what waiting raises."""
    asked = SimpleNamespace(answers=[0, 0], synchronize=None, calls=[])

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


def test_for_a_gpu_it_is_pinned_until_the_last_copy_has_ended(driver):
    with pytest.raises(IndexError), pinned():
        driver.calls[9]  # what goes wrong inside
    assert driver.calls == [("register", 4096, 1), "cuda:3", "unregister"]


def test_memory_that_cannot_be_pinned_is_not_used(driver):
    driver.answers[0] = 2
    text = r"^cuda:3: cudaHostRegister of 4096 bytes of host memory failed with CUDA error 2$"
    with pytest.raises(RuntimeError, match=text), pinned():
        driver.calls.append("inside")
    assert driver.calls == [("register", 4096, 1)]


def test_a_gpu_that_fails_while_it_copies_leaves_no_memory_registered(driver):
    driver.synchronize = RuntimeError("an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"), pinned():
        pass
    assert driver.calls == [("register", 4096, 1), "cuda:3", "unregister"]


def test_memory_that_stays_registered_is_an_error(driver):
    driver.answers[1] = 700
    text = r"^cuda:3: cudaHostUnregister of 4096 bytes of host memory failed with CUDA error 700$"
    with pytest.raises(RuntimeError, match=text), pinned():
        pass


def test_what_went_wrong_inside_says_more_than_that(driver):
    driver.answers[1] = 700
    with pytest.raises(IndexError), pinned():
        driver.calls[9]
    assert driver.calls[-1] == "unregister"


def test_what_went_wrong_while_it_waited_says_more_than_that(driver):
    driver.answers[1], driver.synchronize = 700, RuntimeError("an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"), pinned():
        pass
    assert driver.calls[-1] == "unregister"


def test_a_result_says_how_many_pages_it_had():
    result = pcie.measure("bidirectional", buffer_bytes=16 * PAGE_BYTES, num_copies=1, num_samples=2, device=CPU)
    assert result.num_pages == 32
