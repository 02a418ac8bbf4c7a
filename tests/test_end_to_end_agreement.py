"""All ranks stop at the same validation, and two agents end as one."""

import socket

import pytest
from suite import PYTHON, finished, make_suite, start, torchrun

pytestmark = pytest.mark.launcher


def test_x_stops_all_ranks_at_the_same_validation(tmp_path):
    stopped = torchrun(make_suite(tmp_path, "stops_at_the_first_failure"), "-x")
    assert stopped.rank_exit_codes == {0: 1, 1: 1}, stopped.output
    assert stopped.outcomes() == {"test_first": "passed", "test_second": "failed", "test_third": "not run"}
    assert stopped.row("test_third").message == "the run stopped before it (-x or --maxfail)"
    assert [line["nodeid"].rsplit("::", 1)[-1] for line in stopped.journal_of(1) if line["kind"] == "rank"][1:-1] == [
        "test_first",
        "test_second",
    ]
    assert "::test_third: the run stopped before it (-x or --maxfail)" in stopped.reasons
    for text in (stopped.output, stopped.terminal_of(1)):
        assert "stopping after 1 failures" in text


def test_two_agents_agree_and_both_end(tmp_path):
    suite = make_suite(tmp_path, "misses_on_one_rank")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rendezvous = (
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=two-agents",
        "--local-addr=127.0.0.1",
    )
    agent = [PYTHON, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node=1", "-m", "pytest", "acceptance/"]
    agents = [start(agent, suite) for _ in range(2)]
    outputs = [agent.communicate(timeout=180)[0] for agent in agents]
    both = [finished(agent.returncode, output, suite) for agent, output in zip(agents, outputs, strict=True)]
    assert [one.returncode for one in both] == [1, 1], outputs
    codes = [one.rank_exit_codes for one in both]
    assert sorted(codes, key=str) == [{0: 1}, {1: 1}], outputs
    line = both[0].verdict_line
    assert line.startswith("REJECTED: 1 limit missed in 1 of 2 validations (")
    assert [error.split("\n")[0] for one in both for error in one.rank_errors.values()] == [line, line]
    assert both[0].record.conclusion.coverage.nodes == 2
    assert [identity.node for identity in both[0].record.ranks] == [0, 1]
