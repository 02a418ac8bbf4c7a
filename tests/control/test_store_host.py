"""The control store where no launcher hosts one: its clients, the processes that it outlives, and its end."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import psutil
import pytest
from ports import free_port
from torch.distributed import PrefixStore, TCPStore
from waiting import wait_until

from gpu_acceptance.control.control import Control, control_prefix
from gpu_acceptance.control.messages import Bye
from gpu_acceptance.control.rank import LaunchError, Rank, RefusedError
from gpu_acceptance.control.secret import Secret
from gpu_acceptance.control.session import begin_session
from gpu_acceptance.control.store_host import host_store
from gpu_acceptance.run import starting

pytestmark = pytest.mark.slow

SECRET = Secret(b"of this test", is_of_run=True)
SESSION = begin_session(SECRET)
UNSTOPPED = SimpleNamespace(poll=lambda: None, reason=None)  # StopSignals would replace the handlers of this process

STARTS_ONE_AND_DIES = """
import os, signal, sys
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.session import Session
from gpu_acceptance.control.store_host import host_store
host_store(Rank(world_size=2, local_world_size=2, store_port=int(sys.argv[1])), "gpu-acceptance/none", Session(b"of this test"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place():
    """Rank 0 of 2; whatever it started is gone afterwards."""
    made = Rank(world_size=2, local_world_size=2, store_port=free_port())
    yield made
    for process in hosts_of(made.store_port):
        process.kill()


def hosts_of(port):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "gpu_acceptance.control.store_host" in command and str(port) in command and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_it_is_no_descendant_of_a_rank_and_outlives_its_starter(place):
    died = subprocess.run([sys.executable, "-c", STARTS_ONE_AND_DIES, str(place.store_port)], check=False)
    assert died.returncode == -signal.SIGKILL
    (host,) = hosts_of(place.store_port)
    assert os.getsid(host.pid) == host.pid
    assert host.pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    other = Control(replace(place, rank=1, local_rank=1), SECRET, connect_s=30)
    other.close(timeout_s=5)


def test_it_lets_in_more_than_the_usual_limit_of_open_files_allows(place):
    """A thousand ranks may come; here the limit is small."""
    limited = ["prlimit", "--nofile=64:", sys.executable, "-c", STARTS_ONE_AND_DIES, str(place.store_port)]
    assert subprocess.run(limited, check=False).returncode == -signal.SIGKILL
    clients = [TCPStore("127.0.0.1", place.store_port, None, is_master=False, timeout=timedelta(seconds=20)) for _ in range(80)]
    clients[-1].set("last", "there")
    assert clients[0].get("last") == b"there"


def test_it_ends_once_all_ranks_have_closed(place):
    host_store(place, control_prefix(place), SESSION)
    first, second = (Control(replace(place, rank=rank, local_rank=rank), SECRET) for rank in (0, 1))
    second.send(0, Bye())
    assert first.incoming.get(timeout=30) == (1, Bye())
    first.close(timeout_s=5)
    assert not wait_until(lambda: not hosts_of(place.store_port), 3)  # rank 1 still uses it
    second.close(timeout_s=5)
    assert wait_until(lambda: not hosts_of(place.store_port), 30)
    host_store(place, control_prefix(place), SESSION)  # the port is free again


def test_who_is_to_stop_does_not_wait_for_it(place):
    with pytest.raises(LaunchError, match="did not start within 600 s"):
        host_store(place, control_prefix(place), SESSION, 600, lambda: "SIGTERM")
    with pytest.raises(RefusedError, match=r"^interrupted by SIGTERM before"):
        starting._begin(place, 600, SimpleNamespace(poll=lambda: "SIGTERM", reason="SIGTERM"))
    assert wait_until(lambda: not hosts_of(place.store_port))


def test_it_ends_without_heartbeats(place, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    host_store(place, control_prefix(place), SESSION)
    store = PrefixStore(f"{control_prefix(place)}/{SESSION.name}", TCPStore("127.0.0.1", place.store_port, None, is_master=False))
    for beat in range(35):  # more rounds than it waits for one
        assert hosts_of(place.store_port), f"gone before beat {beat}"
        store.set("beat/1", SESSION.sign("beat/1", 1, beat, "null"))
        wait_until(lambda: False, 1)
    assert wait_until(lambda: not hosts_of(place.store_port))


def test_a_port_that_is_taken_is_one_line(place):
    with socket.socket() as taken:
        taken.bind(("", place.store_port))
        taken.listen()
        with pytest.raises(LaunchError) as caught:
            host_store(place, control_prefix(place), SESSION)
    start = f"rank 0 cannot host the control store on port {place.store_port} of {place.host}"
    pattern = rf"{start}: .*address already in use.*; MASTER_PORT names another one, the same for all ranks"
    assert re.fullmatch(pattern, str(caught.value), re.IGNORECASE)


def test_an_address_that_leads_nowhere_is_one_line(place, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.control.store_host._REACH_S", 1)
    with pytest.raises(LaunchError) as caught:
        host_store(replace(place, store_host="nowhere.invalid"), control_prefix(place), SESSION)
    start = f"rank 0 is on {place.host}, and MASTER_ADDR=nowhere.invalid does not lead there, to port {place.store_port}"
    assert re.fullmatch(rf"{start}: .*(name resolution|Name or service not known).*; name the host of rank 0", str(caught.value))


def test_a_store_that_does_not_start_is_one_line(place, monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"^rank 0 cannot host the control store on port .*: it ended; MASTER_PORT "):
        host_store(place, control_prefix(place), SESSION)
    with pytest.raises(LaunchError, match=r": it did not start within 0\.001 s; MASTER_PORT "):
        host_store(place, control_prefix(place), SESSION, 0.001)


def test_it_may_take_as_long_to_start_as_ranks_wait_for_each_other(place, monkeypatch):
    monkeypatch.setattr(starting, "START_S", 0.001)
    with pytest.raises(LaunchError, match=r": it did not start within 0\.001 s; MASTER_PORT "):
        starting._begin(place, 0.0001, UNSTOPPED)
    starting._begin(place, 60.0, UNSTOPPED)
