"""What the process that hosts the control store may open."""

import resource
import subprocess

import pytest

from gpu_acceptance.base.process import let_open, num_files_of_store


@pytest.fixture
def process():
    """Another one, which may open 64 files, and 4,096 if it asks."""
    with subprocess.Popen(["prlimit", "--nofile=64:4096", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdin.write(b"x")
        started.stdin.flush()
        started.stdout.read(1)  # it has its limits by now
        yield started
        started.kill()


@pytest.mark.parametrize(("num_ranks", "soft"), [(8, 1088), (100_000, 4096)])
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows(process, num_ranks, soft):
    let_open(process.pid, num_files_of_store(num_ranks))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (soft, 4096)


def test_it_is_never_lowered(process):
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4000, 4096))
    let_open(process.pid, num_files_of_store(8))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (4000, 4096)


def test_a_process_that_is_gone_is_left_alone(process):
    process.kill()
    process.wait()
    let_open(process.pid, num_files_of_store(8))
