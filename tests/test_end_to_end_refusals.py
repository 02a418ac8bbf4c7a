"""Closed doors: ways to start a run that would make its verdict worth nothing. Each ends with exit code 4 or 5 and one text."""

import pytest
from faults import Fault
from suite import make_suite, plain_pytest, torchrun, two_nodes

pytestmark = pytest.mark.launcher


RESTARTS = Fault("launcher that restarts failed ranks (--max-restarts=1)", "usage error, exit code 4")


def assert_refused(finished, text, *, ranks=2):
    """Exit code 4 on all ranks, the text printed once and once more for each rank by torchrun, no results."""
    assert finished.rank_exit_codes == dict.fromkeys(range(ranks), 4), finished.output
    assert finished.output.count(f"ERROR: {text}") == 1, finished.output
    assert finished.output.count(text) == 1 + ranks, finished.output
    assert not finished.has_results


@pytest.fixture
def machine_with_gpus(tmp_path):
    """A /sys with two NVIDIA GPUs on its bus, of which the driver shows nothing."""
    for address in ("0000:01:00.0", "0000:02:00.0"):
        device = tmp_path / "sys" / "bus" / "pci" / "devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    return {"GPU_ACCEPTANCE_EXTRA_SYSFS": str(tmp_path / "sys")}


def test_a_gpu_on_the_bus_is_never_judged_as_a_cpu(tmp_path, machine_with_gpus):
    refused = torchrun(make_suite(tmp_path / "suite", "passes"), env=machine_with_gpus)
    assert_refused(refused, "the cpu profile is for machines without GPUs; the PCI bus or NVML shows 2 on ")
    assert "is its driver loaded? NVML shows none of them" in refused.output
    assert refused.folder is None


@pytest.mark.parametrize("hardware", ["--hardware=cpu", "--measure-only"])
def test_nor_when_asked_to(tmp_path, machine_with_gpus, hardware):
    refused = plain_pytest(make_suite(tmp_path / "suite", "passes"), hardware, env=machine_with_gpus)
    assert refused.returncode == 4, refused.output
    assert "ERROR: the cpu profile is for machines without GPUs" in refused.output


def test_a_profile_of_other_hardware(tmp_path):
    suite = make_suite(tmp_path, "passes")
    (suite / "thresholds" / "h200-sxm.yaml").write_text(
        "extends: base\nmatch: {device_name: NVIDIA H200}\n"
        + (suite / "thresholds" / "cpu.yaml").read_text().replace("extends: base\n", "")
    )
    refused = plain_pytest(suite, "--hardware=h200-sxm")
    assert refused.returncode == 4, refused.output
    assert "ERROR: --hardware=h200-sxm is for 'NVIDIA H200', but rank 0's machine (" in refused.output
    assert ") has no GPU that NVML shows" in refused.output
    assert not refused.has_results


def test_a_node_more_than_was_expected(tmp_path):
    suite = make_suite(tmp_path, "passes")
    refused = two_nodes(*[(suite, ("--expect-nodes=1",), {})] * 2)
    for node, one in enumerate(refused):
        assert one.rank_exit_codes == {node: 4}, one.output
        assert "ERROR: --expect-nodes=1, and 2 nodes take part: " in one.output
        assert not one.has_results


def test_a_node_that_never_came_is_no_acceptance(tmp_path):
    ended = plain_pytest(make_suite(tmp_path, "passes"), "--expect-nodes=2")
    assert ended.returncode == 6, ended.output
    assert ended.outcomes() == {"test_value": "passed"}
    assert ended.verdict_line.startswith("INCOMPLETE: 1 node took part, and --expect-nodes wants 2")


def test_launcher_restarts(tmp_path, seen):
    refused = torchrun(make_suite(tmp_path, "passes"), launcher=("--max-restarts=1",))
    assert refused.returncode != 0
    assert set(refused.rank_exit_codes.values()) <= {4, -15}, refused.output
    assert 4 in refused.rank_exit_codes.values()
    assert "ERROR: TORCHELASTIC_MAX_RESTARTS=1: a restarted job runs until it passes, which proves nothing; " in refused.output
    assert "start torchrun with --max-restarts=0" in refused.output
    assert not refused.has_results
    seen.told(RESTARTS, next(line for line in refused.output.splitlines() if "ERROR: TORCHELASTIC_MAX_RESTARTS" in line), 0)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--lvel=quick", "--lvel=quick: unknown option; did you mean '--level'?"),
        ("--level=quik", "--level=quik: allowed: health, quick, full, soak; did you mean 'quick'?"),
    ],
)
def test_a_mistake_in_the_command_is_printed_by_one_rank_of_the_node_whichever_ends_first(tmp_path, argument, text):
    """torchrun ends the other ranks once one has ended: theirs is a signal, and what they would have said."""
    refused = torchrun(make_suite(tmp_path, "passes"), argument, ranks=3)
    assert set(refused.rank_exit_codes.values()) <= {4, -15}, refused.output
    assert 4 in refused.rank_exit_codes.values()
    assert refused.output.count(f"ERROR: {text}\n") == 1, refused.output
    assert text in {line.strip().removeprefix("traceback : ") for line in refused.output.splitlines()}, refused.output
    assert "usage: " not in refused.output
    assert refused.folder is None


def refused_by(tmp_path, overlay):
    """What is said before workers start: no folder of the run is there yet."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"reason: a test\nparameters:\n{overlay}")
    refused = plain_pytest(make_suite(tmp_path / "suite", "passes"), f"--limits={path}")
    assert refused.returncode == 4, refused.output
    assert refused.folder is None
    return refused.output


def test_parameters_that_cannot_be_right(tmp_path):
    output = refused_by(tmp_path, "  nccl.block_s: 0\n  gemm.sizes: 32\n")
    assert "ERROR: mine.yaml: parameters.nccl.block_s (line 3): 0 is not allowed; allowed: a number from 0.001 to 60 s " in output
    assert "mine.yaml: parameters.gemm.sizes (line 4): unknown parameter; " in output
    assert "; did you mean 'gemm.size'?" in output


def test_a_drill_on_a_rank_that_is_not_there(tmp_path):
    output = refused_by(tmp_path, "  memory.planted_words: 1\n  memory.planted_rank: 1\n")
    assert "ERROR: parameter memory.planted_rank=1: allowed: a rank of this job, 0 to 0; memory.planted_words=1 would be" in output


def test_localise_asked_by_a_file_on_one_node(tmp_path):
    output = refused_by(tmp_path, "  localise.asked: true\n")
    assert "ERROR: --localise compares nodes, and this job has 1; it wants at least 2" in output


def test_ranks_that_collect_different_validations(tmp_path):
    refused = torchrun(make_suite(tmp_path, "differs_between_ranks"))
    assert_refused(refused, "ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?")
    assert refused.output.count("  + rank 1 adds  acceptance/test_differs_between_ranks.py::test_only_here") == 1 + 2
    assert "test_value" not in refused.output


def test_a_rank_that_cannot_collect(tmp_path):
    refused = torchrun(make_suite(tmp_path, "cannot_be_collected"))
    assert_refused(refused, "rank 1 cannot take part:")
    assert "ImportError: libexample.so.1: cannot open shared object file" in refused.output


def test_nothing_selected_proves_nothing(tmp_path):
    nothing = torchrun(make_suite(tmp_path, "passes"), "-k nothing")
    assert nothing.rank_exit_codes == {0: 5, 1: 5}, nothing.output
    assert "nothing was selected, 1 validation deselected" in nothing.verdict_line
    assert "ACCEPTED" not in nothing.output


def test_without_the_plugin_no_fixture_works(tmp_path):
    bare = torchrun(make_suite(tmp_path, "passes", "never_measures"), "-p", "no:gpu_acceptance.plugin")
    assert bare.returncode != 0
    assert "no supervisor started this process, so nothing here would be judged" in bare.output
    assert not bare.has_results


def test_xdist(tmp_path):
    refused = plain_pytest(make_suite(tmp_path, "passes"), "-pxdist.plugin", "-n2")
    assert refused.returncode == 4, refused.output
    assert (
        "ERROR: pytest-xdist may not share out an acceptance run, every rank runs every validation: leave out -n and --dist"
        in refused.output
    )
    assert not refused.has_results


def test_wrong_limits_stop_all_ranks_before_anything_starts(tmp_path):
    suite = make_suite(tmp_path, "passes")
    (suite / "typo.yaml").write_text(
        "limits:\n  passes.value:\n    at_laest: 1\n    unit: GB/s\n    scope: rank\n    source: 'policy: a typo for the tests'\n"
    )
    refused = torchrun(suite, "--limits=typo.yaml")
    assert_refused(refused, "typo.yaml: limits.passes.value.at_laest (line 3): unknown key; known: at_least, ")
    assert "did you mean 'at_least'?" in refused.output
    assert refused.folder is None


REPEATS = """
def pytest_addoption(parser):
    parser.addoption("--times", type=int, default=1)


def pytest_generate_tests(metafunc):
    if (times := metafunc.config.option.times) > 1:
        metafunc.fixturenames.append("__number")
        metafunc.parametrize("__number", range(times))
"""


@pytest.mark.parametrize(
    ("option", "env", "text"),
    [
        ("-v", {"PYTEST_TIMEOUT": "5"}, "leave out PYTEST_TIMEOUT=5 of the environment; "),
        ("-otimeout=40", {}, "leave out the ini value timeout=40 (or -o); "),
        ("--session-timeout=40", {}, "leave out --session-timeout; "),
        (
            "--times=2",
            {},
            "2 validations multiplied or renamed by one of repeats, such as acceptance/test_passes.py::test_value[0]: no worker ",
        ),
    ],
    ids=["variable", "ini", "session", "multiplied"],
)
def test_what_other_plugins_would_do_is_refused_wherever_it_was_set(tmp_path, option, env, text):
    """The multiplying plugin is one as pytest-repeat and pytest-flakefinder are: both add a parameter that no function asks for."""
    suite = make_suite(tmp_path / "suite", "passes")
    (tmp_path / "repeats.py").write_text(REPEATS)
    refused = torchrun(suite, "-prepeats", "-ppytest_timeout", option, env={"PYTHONPATH": str(tmp_path), **env})
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert text in refused.output
    assert not refused.has_results


def test_a_plugin_that_could_multiply_and_does_not_is_no_hindrance(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    (tmp_path / "repeats.py").write_text(REPEATS)
    ended = plain_pytest(suite, "-prepeats", "-ppytest_timeout", "-otimeout=240", env={"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == 0, ended.output


LOOPS = """
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    for item in session.items * 2:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return True
"""
LATE = """
import pytest


class Late:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        return True


def pytest_configure(config):
    config.pluginmanager.register(Late(), "late")
"""
AGAIN = """
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    result = yield
    item = session.items[-1]
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return result
"""


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (LOOPS, "foreign would run validations in its own way (pytest_runtestloop): leave it out (a plugin: -p no:NAME)"),
        (LATE, "late would run validations in its own way (pytest_runtest_protocol): leave it out (a plugin: -p no:NAME)"),
    ],
    ids=["loop", "protocol"],
)
def test_a_plugin_that_runs_validations_itself_is_refused_by_its_name(tmp_path, plugin, text):
    suite = make_suite(tmp_path / "suite", "passes")
    (tmp_path / "foreign.py").write_text(plugin)
    refused = torchrun(suite, "-pforeign", env={"PYTHONPATH": str(tmp_path)})
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert text in refused.output
    assert not refused.has_results


def test_a_conftest_that_runs_validations_itself_is_refused_by_its_path(tmp_path):
    suite = make_suite(tmp_path, "passes")
    (suite / "acceptance" / "conftest.py").write_text(LOOPS)
    refused = plain_pytest(suite)
    assert refused.returncode == 4, refused.output
    assert f"{suite}/acceptance/conftest.py would run validations in its own way (pytest_runtestloop)" in refused.output


def test_a_validation_that_is_run_again_is_no_attempt(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    (tmp_path / "foreign.py").write_text(AGAIN)
    ended = plain_pytest(suite, "-pforeign", env={"PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, ended.verdict_line) == (3, "INCOMPLETE: internal error (cpu profile: no GPU was tested)"), ended.output
    assert "was run already: a plugin or a conftest runs validations again; leave it out" in ended.output


def test_a_variable_of_a_debugger_is_refused_on_all_ranks_by_its_name(tmp_path):
    refused = torchrun(make_suite(tmp_path, "passes"), env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "CUDA_LAUNCH_BLOCKING": "1"})
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert "counts: TORCH_DISTRIBUTED_DEBUG=DETAIL: torch checks each collective with another one, and crashes in DDP; " in refused.output
    assert "; unset TORCH_DISTRIBUTED_DEBUG CUDA_LAUNCH_BLOCKING\n" in refused.output
    assert not refused.has_results


def test_a_batch_script_on_one_node_of_a_job_of_four_says_so(tmp_path):
    ended = torchrun(make_suite(tmp_path, "passes"), env={"SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "17"})
    assert ended.returncode == 0, ended.output
    assert "1 of 4 nodes of the Slurm job" in ended.verdict_line
