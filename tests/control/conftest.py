"""One real store on 127.0.0.1, in which each test has its own keys."""

import pytest
from torch.distributed import PrefixStore, TCPStore


@pytest.fixture(scope="module")
def server():
    return TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.fixture
def connect(server, request):
    """A client of its own for each thread."""
    return lambda: PrefixStore(request.node.name, TCPStore("127.0.0.1", server.port, None, is_master=False))
