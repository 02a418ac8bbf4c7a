"""Ranks that no torchrun started: each launcher with the environment that it really sets, and no store but the one that rank 0 starts."""

import shlex

import pytest
from faults import Fault
from hosts import ADDRESSES, PORT, connected, held_port, needs_hosts
from needs import INTEL_MPI
from suite import PYTHON, processes_in, shipped_suite
from waiting import wait_until

pytestmark = pytest.mark.launcher

PYTEST = [PYTHON, "-m", "pytest", "acceptance/"]
STORE_ENDS_WITHIN_S = 60  # it looks every second, and gives up after 30
PORT_TAKEN = Fault(
    "something that never answers holds the port of the store that rank 0 would start", "usage error, exit code 4; exit code 6 elsewhere"
)
OTHER_STORE = Fault("at the address of rank 0 is the store of another run", "usage error, exit code 4: the other run stays")
OTHER_NUMBERS = Fault("ranks were told unequal numbers of ranks", "usage error, exit code 4, on each node")


@pytest.fixture
def hosts(tmp_path):
    with connected([shipped_suite(tmp_path / f"node-{node}", "environment") for node in (0, 1)]) as hosts:
        yield hosts


def bare(hosts, node, *arguments, **changes):
    """One rank on a host, by its environment alone."""
    place = {"RANK": node, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT}
    hosts[node].start([*PYTEST, *arguments], {name: str(value) for name, value in {**place, **changes}.items()})


def said_by(run):
    """Every line, but that torch found no name for an address."""
    return [line for line in run.output.splitlines() if "The hostname of the client socket" not in line]


def accepted(run):
    assert run.returncode == 0, run.output
    assert run.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)"
    return run.record.conclusion.coverage


@needs_hosts
def test_hosts_whose_ranks_are_told_by_their_environment(hosts):
    bare(hosts, 1)  # it waits for rank 0, which hosts the store
    bare(hosts, 0)
    ended = [hosts[node].wait() for node in (0, 1)]
    coverage = accepted(ended[0])
    assert (coverage.nodes, coverage.ranks) == (2, 2)
    assert ended[1].returncode == 0, ended[1].output
    assert [identity.host for identity in ended[0].record.ranks] == ["node-0", "node-1"]
    assert all(hosts[node].is_quiet_within(STORE_ENDS_WITHIN_S) for node in (0, 1)), [hosts[node].pids() for node in (0, 1)]


@needs_hosts
def test_a_rank_that_cannot_find_rank_0_and_one_that_waits_in_vain_say_so(hosts):
    bare(hosts, 0, "--join-timeout=20s")
    bare(hosts, 1, "--join-timeout=5", MASTER_ADDR=ADDRESSES[7])  # of no host
    ended = [hosts[node].wait() for node in (0, 1)]
    assert [one.returncode for one in ended] == [6, 6], [one.output for one in ended]
    assert "waiting for rank 1 (node 1), 5 s more at most (--join-timeout)\n" in ended[0].output
    assert "rank 1 (node 1) did not arrive within 20 s; see what its shell said there" in ended[0].output
    (said,) = said_by(ended[1])
    assert said.startswith(f"Exit: no control store at {ADDRESSES[7]}:{PORT} within 5 s: ")


@needs_hosts
def test_a_port_that_something_else_holds_is_one_line_on_each_host(hosts, seen):
    """The holder takes connections and says nothing: torch's own client would wait for it without an end."""
    with held_port(hosts[0]):
        bare(hosts, 0, "--join-timeout=5")
        bare(hosts, 1, "--join-timeout=5")
        ended = [hosts[node].wait() for node in (0, 1)]
    assert [one.returncode for one in ended] == [4, 6], [one.output for one in ended]
    assert f"ERROR: rank 0 cannot host the control store on port {PORT} of node-0: " in ended[0].output
    told = f"no control store at {ADDRESSES[0]}:{PORT} within 5 s: what listens there does not answer as one does"
    assert said_by(ended[1]) == [f"Exit: {told}"]
    seen.told(PORT_TAKEN, f"rank 0 cannot host the control store on port {PORT} of node-0: ...; on node 1: {told}", 0)


@needs_hosts
def test_ranks_that_were_told_other_numbers_are_no_job(hosts, seen):
    """The second of them is not among those that rank 0 knows of."""
    bare(hosts, 0)
    bare(hosts, 1, RANK=2, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2)
    ended = [hosts[node].wait() for node in (0, 1)]
    numbers = "rank 2 (node-1) is one of 4 ranks, 2 on its node, and rank 0 (node-0) one of 2, 1 on its node"
    told = f"{numbers}: start all ranks with the same numbers"
    assert [one.returncode for one in ended] == [4, 4], [one.output for one in ended]
    assert all(f"ERROR: {told}\n" in one.output for one in ended), [one.output for one in ended]
    seen.told(OTHER_NUMBERS, told, 0)


@needs_hosts
def test_a_second_rank_0_is_a_usage_error_there(hosts, seen):
    """Two that lead would each have waited for ranks that spoke to the other."""
    bare(hosts, 0, "--join-timeout=240")
    assert wait_until(lambda: "store_host" in str(processes_in(hosts[0].suite)))
    bare(hosts, 1, "--join-timeout=240", RANK=0)
    ended = hosts[1].wait()
    assert ended.returncode == 4, ended.output
    text = f"rank 0 is on node-1, and MASTER_ADDR={ADDRESSES[0]} leads to the store of another run: name the host of rank 0"
    assert f"ERROR: {text}" in ended.output
    assert hosts[0].launcher.poll() is None, hosts[0].output
    hosts[0].launcher.terminate()
    assert hosts[0].wait().returncode == 2
    seen.told(OTHER_STORE, text, 0)


def remote_shell(hosts, folder):
    """Start a launcher's own daemon on the second host, as ssh would: `[OPTION...] HOST COMMAND...`."""
    script = folder / "remote-shell"
    here = shlex.join(hosts[1].here(["sh", "-c"]))
    script.write_text(f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nshift\nexec {here} "$*"\n')
    script.chmod(0o755)
    return str(script)


def accepted_on_both(hosts):
    ended = hosts[0].wait()
    coverage = accepted(ended)
    assert (coverage.nodes, coverage.ranks) == (2, 2)
    assert [identity.host for identity in ended.record.ranks] == ["node-0", "node-1"]
    assert all(hosts[node].is_quiet_within(STORE_ENDS_WITHIN_S) for node in (0, 1)), [hosts[node].pids() for node in (0, 1)]


@needs_hosts
@pytest.mark.needs("openmpi-bin")
def test_hosts_by_mpirun(hosts, tmp_path):
    shell = ["--mca", "plm_rsh_agent", remote_shell(hosts, tmp_path), "--mca", "oob_tcp_if_include", "eth0"]
    told = ["-x", f"MASTER_ADDR={ADDRESSES[0]}", *(word for name in ("PYTEST_ADDOPTS", "OMP_NUM_THREADS") for word in ("-x", name))]
    apart = [[*told, "-np", "1", "--host", f"node-{node}", "--wdir", str(hosts[node].suite), *PYTEST] for node in (0, 1)]
    hosts[0].start(["mpirun.openmpi", "--allow-run-as-root", *shell, *apart[0], ":", *apart[1]])
    accepted_on_both(hosts)


@needs_hosts
@pytest.mark.parametrize(
    "mpiexec",
    [
        pytest.param("mpiexec.hydra", marks=pytest.mark.needs("mpich"), id="MPICH"),
        pytest.param(INTEL_MPI, marks=pytest.mark.needs("Intel MPI"), id="Intel MPI"),
    ],
)
def test_hosts_by_mpiexec(hosts, tmp_path, mpiexec):
    shell = ["-bootstrap", "ssh", "-bootstrap-exec", remote_shell(hosts, tmp_path), "-iface", "eth0"]
    apart = [["-n", "1", "-wdir", str(hosts[node].suite), *PYTEST] for node in (0, 1)]
    told = ["-hosts", "node-0,node-1", "-ppn", "1", "-genv", "MASTER_ADDR", ADDRESSES[0]]
    hosts[0].start([mpiexec, *shell, *told, *apart[0], ":", *apart[1]])
    accepted_on_both(hosts)
