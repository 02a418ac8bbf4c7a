"""The secret of a run: handed over on one node by real processes, read from the environment on several."""

import os
import socket
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest

from gpu_acceptance.control import secret as module
from gpu_acceptance.control.rank import LaunchError, Rank, RefusedError
from gpu_acceptance.control.secret import KEY, NO_SECRET, find_secret, hide_key

ASKS = """
import os, sys
if sys.argv[2] != "0":
    os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.secret import find_secret
print(find_secret(Rank(int(sys.argv[1]), 1, 3, 3, store_port=1, run_id=sys.argv[3]), float(sys.argv[4]), lambda: None).key.hex())
"""
HOLDS = """
import os, socket, sys
os.setuid(65534)
held = []
for number in range(8):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\\0gpu-acceptance/" + sys.argv[1] + f"/{number}")
    listener.listen()
    held.append(listener)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place():
    """Rank 0 of a run that no other test has."""
    return Rank(world_size=3, local_world_size=3, store_port=1, run_id=uuid.uuid4().hex)


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.setattr(module, "_given", [])


def ask(place, rank, *, user=0, patience_s=20.0):
    command = [sys.executable, "-c", ASKS, str(rank), str(user), place.run_id, str(patience_s)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rank_0_hands_a_new_secret_to_each_rank_of_its_node_once(place):
    secret = find_secret(place, 0, lambda: None)
    assert secret.is_of_run
    assert len(secret.key) == 32
    assert [ask(place, rank).stdout.strip() for rank in (2, 1)] == [secret.key.hex()] * 2
    assert "it has given it to another process that is rank 1" in ask(place, 1, patience_s=0.5).stderr


def test_two_runs_at_a_time_have_secrets_of_their_own(place):
    other = replace(place, run_id=uuid.uuid4().hex)
    secrets = [find_secret(one, 0, lambda: None).key.hex() for one in (place, other)]
    assert [ask(one, 1).stdout.strip() for one in (place, other)] == secrets
    assert len(set(secrets)) == 2


@pytest.mark.needs("root")
def test_another_user_gets_no_secret(place, monkeypatch):
    monkeypatch.setattr(module, "_name_of", lambda _place: "secret/of-root")
    find_secret(place, 0, lambda: None)
    code = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
    code += "s.connect('\\0gpu-acceptance/secret/of-root/0'); s.settimeout(30); s.send(b'1'); print(s.recv(100))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout in {"", "b''\n"}, done.stdout


@pytest.mark.needs("root")
def test_a_user_who_holds_all_names_of_the_socket_is_named_in_the_refusal(place):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, module._name_of(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(RefusedError, match=r"^all names of the socket are in use; end that process, or give all ranks the same key in "):
        find_secret(place, 0, lambda: None)
    with pytest.raises(RefusedError, match=r"a process of user id 65534 holds a name of the socket"):
        find_secret(replace(place, rank=1, local_rank=1), 0.5, lambda: None)
    process.communicate("")


def test_a_wait_for_the_secret_ends_with_a_signal(place):
    with pytest.raises(RefusedError, match=r"it did not come, or it ended$"):
        find_secret(replace(place, rank=1, local_rank=1), 600, lambda: "SIGTERM")


def test_the_key_leaves_the_environment_and_all_nodes_have_it(place):
    environ = {KEY: "k" * 32, "HOME": "/root"}
    hide_key(environ)
    assert environ == {"HOME": "/root"}
    several = replace(place, num_nodes=3, local_world_size=1)
    first, second = (find_secret(replace(several, rank=rank, node=rank), 0, lambda: None) for rank in (0, 1))
    assert first == second
    assert not first.is_of_run
    assert first.is_known_to_us_alone
    assert "kkk" not in repr(first)


def test_several_nodes_without_a_key_have_no_secret(place):
    assert find_secret(replace(place, num_nodes=3, local_world_size=1), 0, lambda: None) is NO_SECRET


def test_a_key_that_is_too_short_is_refused(place):
    hide_key({KEY: "short"})
    with pytest.raises(LaunchError, match=rf"^{KEY} in the environment has 5 characters; allowed: 32 or more"):
        find_secret(place, 0, lambda: None)


def test_a_world_of_one_needs_no_socket(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    assert len(find_secret(Rank(), 0, lambda: None).key) == 32
    assert KEY not in os.environ
