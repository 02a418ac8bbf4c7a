"""Names and exceptions that would take over a page, a terminal or a parser that believed them."""

import os

import pytest
import torch
import torch.distributed as dist

HOSTILE = "<script>alert(1)</script>&\x1b[31mred\x1b]0;title\x07\udcff\u202e]]>"


@pytest.mark.parametrize("name", [HOSTILE], ids=[HOSTILE])
def test_named(name, check):
    check("hostile_text.value", 5.0, "GB/s")


def test_fault(check, ranks):
    check("hostile_text.value", 5.0, "GB/s")
    if ranks.rank == 0:
        os.write(1, HOSTILE.encode("utf-8", "surrogateescape"))  # print would depend on the locale
        raise OSError(HOSTILE + "x" * 10_000_000)
    dist.all_reduce(torch.ones(1))
