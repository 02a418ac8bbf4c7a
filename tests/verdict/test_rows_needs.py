"""Variables that differ within a node, and validations that lack a library or a tool."""

import pytest

from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.verdict.rows import announcement, environment_mismatch, row_without_run, unmet_needs
from tests.judging import (
    make_job,
    with_environment,
)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, ""),
        ({rank: {"NCCL_ALGO": "Ring"} for rank in range(8)}, ""),
        ({rank: {"NCCL_SOCKET_IFNAME": "eth0"} for rank in range(4)}, ""),  # the other node has another interface
        ({1: {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/1", "OMP_NUM_THREADS": "2"}}, ""),
        (
            {rank: {"NCCL_SHM_DISABLE": "1"} for rank in (4, 5, 7)},
            "NCCL_SHM_DISABLE is '1' on ranks 4-5,7, not set on rank 6 (node-01, GPU 2, serial 165390102)",
        ),
        ({0: {"NCCL_ALGO": ""}}, "NCCL_ALGO is '' on rank 0 (node-00, GPU 0, serial 165390000), not set on ranks 1-3"),
    ],
)
def test_variables_that_differ_within_a_node(variables, told):
    assert environment_mismatch(with_environment(make_job(8, 4), variables)) == told


def test_only_some_of_many_variables_are_listed_and_long_values_are_cut():
    told = environment_mismatch(with_environment(make_job(2), {0: {f"NCCL_{number}": "\n" + "x" * 500 for number in range(6)}}))
    assert told.startswith(r"NCCL_0 is '\nxxx")
    assert told.endswith("; and 2 more")
    assert "x" * 79 in told
    assert "x" * 80 not in told
    assert "\n" not in told
    assert "NCCL_4" not in told


DDP = "acceptance/test_ddp.py::test_throughput"
LORA = "acceptance/test_lora_convergence.py::test_training"
PYTHON = "/opt/a b/bin/python"


def job_that_lacks(lacks, world_size=4, gpus_per_node=2):
    """Ranks that lack this: rank -> what -> what is there instead."""
    ranks = make_job(world_size, gpus_per_node).ranks
    return Job(tuple(one.model_copy(update={"lacks": lacks.get(one.rank, {}), "python": PYTHON}) for one in ranks))


def needing(*needs, nodeid=DDP):
    return Validation(nodeid=nodeid, deadline_s=60.0, needs=needs)


def message_of_lack(of, validation):
    row = row_without_run(validation, of, {})
    return row and row.message


def test_where_nothing_is_missing_there_is_no_row():
    validation = needing("peft", "transformers")
    for one in (job_that_lacks({}), job_that_lacks({0: {"compiler": "no gcc and no clang in PATH"}})):
        assert row_without_run(validation, one, {}) is None
    assert message_of_lack(job_that_lacks({0: {"peft": ""}}), needing()) is None


def test_one_rank_that_lacks_it_is_enough_and_its_node_is_named():
    of = job_that_lacks({2: {"transformers": ""}})
    row = row_without_run(needing("transformers"), of, {})
    assert (row.outcome, row.lacks, row.attempts) == (Outcome.NOT_RUN, ("transformers",), ())
    install = "install it there: '/opt/a b/bin/python' -m pip install 'transformers>=5.0'"
    assert row.message == f"needs transformers 5.0 or newer, and node-01 has none; {install}"


def test_nodes_that_have_the_same_are_named_together_and_once():
    of = job_that_lacks({0: {"peft": "0.9"}, 1: {"peft": "0.9"}, 2: {"peft": "0.9"}, 4: {"peft": ""}}, world_size=6)
    assert message_of_lack(of, needing("peft")).startswith("needs peft 0.17 or newer, and node-00, node-01 have 0.9, node-02 has none; ")


def test_of_many_nodes_the_first_are_named():
    of = job_that_lacks({rank: {"peft": ""} for rank in range(8)}, world_size=8, gpus_per_node=1)
    assert ", and node-00, node-01, node-02, node-03 and 4 more have none; " in message_of_lack(of, needing("peft"))


def test_all_that_is_missing_is_installed_at_once():
    of = job_that_lacks({0: {"numpy": "", "transformers": "", "compiler": "CC=/x: No such file or directory"}})
    said = message_of_lack(of, needing("numpy", "compiler"))
    compiler = "needs a compiler, and node-00 has none that works (CC=/x: No such file or directory)"
    packages = "install it there: '/opt/a b/bin/python' -m pip install 'numpy>=1.24'"
    headers = "install there: a compiler with the headers of this Python (Debian, Ubuntu: apt-get install g++ python3-dev)"
    assert said == f"needs numpy 1.24 or newer, and node-00 has none; {compiler}; {packages}; {headers}"


def test_what_is_declared_not_applicable_is_not_missed():
    row = row_without_run(needing("peft", nodeid=LORA), job_that_lacks({0: {"peft": ""}}), {"lora_convergence.*": "no fine-tuning here"})
    assert (row.outcome, row.lacks) == (Outcome.NOT_APPLICABLE, ())
    assert row.message.startswith("not applicable: no fine-tuning here (needs peft 0.17 or newer, and node-00 has none; ")


def test_before_a_run_each_missing_thing_is_one_line():
    of = job_that_lacks({0: {"transformers": "4.57.1", "peft": ""}})
    validations = [needing("transformers"), needing("transformers", nodeid=f"{DDP}[b]"), needing("peft", "transformers", nodeid=LORA)]
    transformers, peft = unmet_needs(validations, of)
    assert (transformers.need, transformers.found, len(transformers.nodeids)) == ("transformers", {"node-00": "4.57.1"}, 3)
    install = "install it there: '/opt/a b/bin/python' -m pip install"
    what = "transformers 5.0 or newer (node-00 has 4.57.1): 3 validations will not run (ddp, lora_convergence)"
    assert announcement(transformers) == f"{what}; {install} 'transformers>=5.0'"
    what = "peft 0.17 or newer (node-00 has none): 1 validation will not run (lora_convergence)"
    assert announcement(peft) == f"{what}; {install} 'peft>=0.17'"


def test_a_record_of_a_later_version_is_read():
    assert message_of_lack(job_that_lacks({0: {"linker": ""}}), needing("linker")) == "needs a linker, and node-00 has none"
