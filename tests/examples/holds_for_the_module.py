"""Processes that a fixture of the module holds stay until the module is done, and is not left behind."""

import multiprocessing
import os
import subprocess

import pytest


@pytest.fixture(scope="module", autouse=True)
def held():
    os.environ["NCCL_ALGO"] = "RING"
    with subprocess.Popen(["sleep", "600"]) as process:
        yield
        process.kill()
    del os.environ["NCCL_ALGO"]


def test_first(check):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        check("holds_for_the_module.value", pool.map(abs, [-5.0])[0], "GB/s")
        pool.close()
        pool.join()


def test_second(check):
    check("holds_for_the_module.value", 5.0 if os.environ.get("NCCL_ALGO") == "RING" else 0.0, "GB/s")
