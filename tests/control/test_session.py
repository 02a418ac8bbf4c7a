"""A client of the control store comes in time or not at all, whatever is at the other end. The error is one line."""

import hmac
import os
import socket
import subprocess
import sys

import pytest
from ports import free_port
from torch.distributed import TCPStore

from gpu_acceptance.control import session as module
from gpu_acceptance.control.control import Control, UnreachableError
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.secret import NO_SECRET, Secret
from gpu_acceptance.control.session import NoStoreError, Session, begin_session, store_client

pytestmark = pytest.mark.slow

# torch itself would wait without an end: the interpreter must not wait for it.
ASKS = """
import sys
from gpu_acceptance.control import session
session._ANSWER_S = 1.0
try:
    session.store_client("127.0.0.1", int(sys.argv[1]), 1.0)
except session.NoStoreError as error:
    print(error)
"""


@pytest.fixture(params=[128, 0], ids=["takes every connection", "takes one connection"])
def silent(request):
    """A listener that never answers. Where it takes one connection, torch's own client waits for a second one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(request.param)
        yield taken.getsockname()[1]


def test_a_store_that_is_there_answers():
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    store_client("127.0.0.1", store.port, 30).set("key", "value")
    assert store.get("key") == b"value"


def test_a_port_of_another_program_is_one_line_and_the_interpreter_ends(silent):
    paths = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", ASKS, str(silent)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "what listens there does not answer as one does\n"), done.stderr


@pytest.mark.parametrize(("host", "why"), [("127.0.0.1", "Connection refused"), ("nowhere.invalid", "")])
def test_without_a_listener_torch_is_not_called(capfd, host, why):
    with pytest.raises(NoStoreError) as caught:
        store_client(host, free_port(), 1)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_stop_ends_the_wait(silent, monkeypatch):
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    for port in (free_port(), silent):
        with pytest.raises(NoStoreError):
            store_client("127.0.0.1", port, 3600, stopped=lambda: "SIGTERM")


def test_a_rank_without_a_store_names_the_address():
    place = Rank(world_size=2, local_world_size=2, store_port=free_port())
    with pytest.raises(UnreachableError, match=rf"^no control store at 127\.0\.0\.1:{place.store_port} within 1 s: Connection refused$"):
        Control(place, NO_SECRET, connect_s=1)


@pytest.mark.parametrize("size", [0, 1, 64, 5000])
def test_a_code_is_the_hmac_of_channel_and_message(size):
    session, body = begin_session(Secret(b"of this test", is_of_run=True)), b"7 1 " + b"x" * size
    assert session._code("box/1", body) == hmac.digest(session.key, b"box/1\0" + body, "sha256").hex()[:32]


def test_a_key_of_a_session_fits_a_block_of_the_hash():
    """HMAC takes a longer key only after it was hashed."""
    with pytest.raises(ValueError, match="65 bytes; allowed: 64"):
        Session(b"k" * 65)
