"""Answers of Slurm that are missing, late or of another form."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import slurm, slurm_health
from gpu_acceptance.inventory.answer import Missing, Why
from tests.inventory.slurm_commands import ALL_SAY_IT, CONFIG, JOB, NODE, PARTITION, facts


def lost(commands):
    return commands.found()["round_trip.lost"]


def test_a_step_goes_to_all_nodes_beside_the_one_that_runs(commands):
    commands.print("srun.sh", f"printf '0: Welcome to node1\\n1: \\n'; {ALL_SAY_IT}")  # a prolog of the site may print other lines first
    assert lost(commands) == (0, "")
    (asked,) = [line for line in commands.asked if line.startswith("--jobid")]
    assert asked.startswith("--jobid=7 --nodes=2 --ntasks=2 --overlap --ntasks-per-node=1 --immediate=30 ")
    assert asked.endswith(" printenv SLURMD_NODENAME GPU_ACCEPTANCE_NONCE")


@pytest.mark.parametrize(
    "said",
    [
        'printf "0: node1\\n0: $GPU_ACCEPTANCE_NONCE\\n"',
        'printf "0: node1\\n0: $GPU_ACCEPTANCE_NONCE\\n1: node2\\n"',
        'printf "0: node1\\n0: $GPU_ACCEPTANCE_NONCE\\n1: node2\\n1: 0123\\n"',
        'printf "0: node1\\n1: node2\\n0: $GPU_ACCEPTANCE_NONCE\\n1: $GPU_ACCEPTANCE_NONCE\\n1: and more\\n"',
    ],
)
def test_a_node_that_does_not_say_the_nonce_is_lost(commands, said):
    commands.print("srun.sh", said)
    assert lost(commands) == (1, "node2")


def test_a_step_that_cannot_be_made_says_why(commands):
    commands.print("srun.sh", f"{ALL_SAY_IT}; echo 'srun: error: Unable to create step for job 7: Requested nodes are busy' >&2; exit 1")
    number, said = lost(commands)
    assert number == 2
    assert said.startswith("srun --jobid=7 --nodes=2 --ntasks=2 --overlap ")
    assert said.endswith("srun: error: Unable to create step for job 7: Requested nodes are busy")


def test_a_step_that_does_not_end(commands, monkeypatch):
    monkeypatch.setattr(slurm, "_TIMEOUT_S", 0.5)
    commands.print("srun.sh", "exec sleep 600")
    number, said = lost(commands)
    assert number == 2
    assert "TimeoutExpired" in said


def test_without_srun_nothing_is_known(commands):
    (commands.folder / "srun").unlink()
    commands.environ["PATH"] = str(commands.folder)
    assert next(slurm_health.round_trip((), commands.environ))[1] == Missing(Why.NOT_THERE, "srun is not on PATH")


def test_a_command_that_is_not_there(commands):
    commands.environ["PATH"] = "/nowhere"
    missing = Missing(Why.NOT_THERE, "scontrol is not on PATH")
    assert {value for value, _ in commands.found().values()} == {missing}


def test_a_job_that_the_controller_does_not_know(commands):
    commands.environ["SLURM_JOB_ID"] = "8"
    said = "scontrol --details --oneliner show job 8: exit code 9, 0 characters: "
    assert slurm.job(commands.environ) == Missing(Why.UNREADABLE, said)


@pytest.mark.parametrize("number", ["", "7 8", "all", "-1", "7\n"])
def test_a_number_that_is_no_job_is_not_asked_for(commands, number):
    commands.environ["SLURM_JOB_ID"] = number
    assert slurm.job(commands.environ) == Missing(Why.NOT_THERE, f"SLURM_JOB_ID={number!r} is not the number of a job")
    assert not (commands.folder / "asked").exists()


@pytest.mark.parametrize("name", ["", "node 1", "--help\n"])
def test_a_name_that_is_no_node_is_not_asked_for(commands, name):
    commands.environ["SLURMD_NODENAME"] = name
    lack = Missing(Why.NOT_THERE, f"SLURMD_NODENAME={name!r}: Slurm sets it in each step of a job")
    assert slurm.own_node(commands.environ) == slurm.read_leftovers(commands.environ) == lack


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("job", "JobName=acceptance", "JobName=x UserId=a Partition=other", "job of Slurm: Partition= has the values ['other', 'main']"),
        ("job", "JobName=acceptance", "JobName=x UserId=a JOB_GRES=a Nodes=b CPU_IDs=0 Mem=0 GRES=", "JOB_GRES= has the values ["),
        ("job", "JobId=7 ", "JobId=8 ", "job of Slurm: 0 records of job 7: 'JobId=8 "),
        ("job", "JobId=7 ", "a\nJobId=7 ", "job of Slurm: no JobId=: 'a\\n'"),
        ("job", "EndTime=1795508189", "EndTime=2026-11-24T08:12:50", "EndTime= has the values ['2026-11-24T08:12:50']"),
        ("job", "NodeList=node[1-2] ", "NodeList=(null) ", "NodeList= has the values ['(null)']"),
        ("job", "Mem=16000", "Mem=16G", "1 shares of nodes in "),
        ("job", "gpu:h200:8(IDX:0-7)", "gpu:h200:many", "no generic resources: 'gpu:h200:many'"),
        ("job", "CPU_IDs=0-15", "CPU_IDs=15-0", "no CPU range: 15-0"),
        ("nodes", "State=MIXED", "State=mixed", "node1: not of the form"),
        ("nodes", "NodeName=node1", "NodeName=", "nodes of Slurm: NodeName= has the values ['']"),
        ("partition", "State=UP", "State=UP State=DOWN", "partition of Slurm: State= has the values ['UP', 'DOWN']"),
        ("config", "TaskPlugin ", "TaskPluginn ", "config of Slurm: no TaskPlugin: "),
        ("ping", "Slurmctld", "slurmctld", "controllers of Slurm: no controller in "),
    ],
)
def test_an_answer_of_another_form_is_unreadable(commands, file, old, new, said):
    commands.change(file, old, new)
    unreadable = {metric: value for metric, (value, _) in commands.differing().items() if isinstance(value, Missing)}
    assert unreadable
    assert {value.missing for value in unreadable.values()} == {Why.UNREADABLE}
    assert all(said in value.detail for value in unreadable.values())


def test_an_odd_node_costs_what_is_odd_of_it(commands):
    commands.change("nodes", "State=MIXED", "State=mixed")
    commands.change("nodes", "State=IDLE", "State=IDLE+DRAIN")
    assert list(commands.differing()) == ["allocation.unsound"]
    assert facts(commands) == {"untested": 2, "untested_nodes": "node1 in no known state; node3 IDLE+DRAIN"}
    commands.change("nodes", "State=MIXED", "State=DOWN*")
    assert commands.differing() == {"allocation.unsound": (1, "node2 DOWN+NOT_RESPONDING")}


def test_a_node_s_memory_counts_where_slurm_gave_none(commands):
    commands.change("nodes", " RealMemory=64000", "")
    assert commands.differing() == {}
    commands.change("job", "Mem=32000", "Mem=0")
    told = {value for value, _ in commands.differing().values()}
    assert told == {Missing(Why.UNREADABLE, "node1: RealMemory= has the values []; wanted is one of the form [0-9]{1,12}")}


def test_no_node_at_all(commands):
    commands.print("nodes", "\n")
    lack = Missing(Why.UNREADABLE, "nodes of Slurm: no node")
    assert commands.nodes(slurm.job(commands.environ)) == lack
    assert facts(commands) == {"untested": lack, "untested_nodes": lack}


def test_an_answer_that_does_not_end_is_none(commands, monkeypatch):
    monkeypatch.setattr(slurm, "_MOST_CHARACTERS", 100)
    found = slurm.config(commands.environ)
    assert found.missing is Why.UNREADABLE
    assert found.detail.startswith(f"scontrol show config: exit code 0, {len(CONFIG)} characters: Configuration data")


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("gpu\tXID", "gpu XID"),
        ("gpu\u00a0XID", "gpu XID"),
        ("gpu\nXID 79", "gpu XID 79"),
        ("gpu\n\n State=IDLE", "gpu State=IDLE"),
        ("gpu\u200bXID", "gpu\\u200bXID"),
        ("gpu\x1b[2J\u2028XID", "gpu\\x1b[2J XID"),
    ],
)
def test_any_text_of_a_reason_is_told_on_one_line_and_costs_no_node(commands, reason, told):
    commands.change("nodes", "State=MIXED", "State=MIXED+DRAIN")
    commands.change("nodes", "ExtSensorsTemp=n/s", f"ExtSensorsTemp=n/s Reason={reason} [root@1795504588]")
    assert [node.name for node in slurm.parse_nodes((commands.folder / "nodes").read_text())] == ["node1", "node2", "node3", "node4"]
    assert facts(commands) == {"untested": 1, "untested_nodes": f"node1 MIXED+DRAIN ({told} [root@1795504588])"}


TASK = JOB.replace("JobId=7 ", "JobId=8 ArrayJobId=7 ArrayTaskId=1 ").replace("NodeList=node[1-2]", "NodeList=node[3-4]")
LEADER = JOB.replace("JobId=7 ", "JobId=7 HetJobId=7 HetJobOffset=0 ")
PART = JOB.replace("JobId=7 ", "JobId=8 HetJobId=7 HetJobOffset=1 ").replace("NodeList=node[1-2]", "NodeList=node[3-4]")


@pytest.mark.parametrize(
    "said",
    [
        JOB.replace("JobId=7 ", "JobId=7 ArrayJobId=7 ArrayTaskId=2 ") + TASK,
        TASK + JOB,
        LEADER + PART,
        JOB.replace(" Power= ", " Comment=as Partition=x EndTime=1 Power= "),
        JOB.replace(" Power= ", " Comment=two\nlines Partition=x Power= "),
        JOB.replace("JobName=acceptance", "JobName=a EndTime=1 Partition=x"),
        JOB.replace("Features=(null)", "Features=(null) Reservation=my NodeList=x"),
    ],
)
def test_the_job_is_the_record_of_its_number_without_what_people_wrote(commands, said):
    assert said != JOB
    plain = slurm.job(commands.environ)
    commands.print("job", said)
    assert slurm.job(commands.environ) == plain
    assert commands.differing() == {}


PARSE_JOB = partial(slurm.parse_job, number="7")
PARSERS = [slurm.parse_controllers, PARSE_JOB, slurm.parse_partition, slurm.parse_nodes, slurm.parse_names, slurm.parse_config]
WORDS = [*JOB.split(), *NODE.split(), *PARTITION.split(), *CONFIG.split(), "\n", "=", " Nodes=", "\0"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map(" ".join)))
@pytest.mark.parametrize("parse", [*PARSERS, slurm.leftover_pids])
def test_any_output_is_parsed_or_a_value_error(parse, text):
    try:
        parse(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine, an error of another kind is not


@given(
    st.lists(st.sampled_from(["IDLE", "REBOOT", "DRAIN", "DOWN", "MIXED", "?", "+", "*", "~", "$", "^", "-", "NOT_RESPONDING"])).map(
        "".join
    )
)
def test_no_flag_of_a_state_is_lost_and_none_is_counted_twice(text):
    ((_, state, _, _),) = slurm.parse_nodes(NODE.format(name="node1", state=text, more=""))
    if isinstance(state, Missing):
        return
    words = [state.word, *state.flags]
    assert len(set(state.flags)) == len(state.flags)
    assert all(word in words for mark, word in {**slurm._MARKS, "?": "?"}.items() if mark in text)
    assert "DRAIN" not in text.split("+") or "DRAIN" in words
