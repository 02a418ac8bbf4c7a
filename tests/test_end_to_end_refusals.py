"""Ways to start a run that would make its verdict worth nothing: exit code 4 or 5, one text and no results. A busy GPU is one."""

from pathlib import Path

import pytest
import yaml
from faults import Fault
from suite import limits_of, make_suite, plain_pytest, torchrun, two_nodes

pytestmark = pytest.mark.launcher


RESTARTS = Fault("launcher that restarts failed ranks (--max-restarts=1)", "usage error, exit code 4")
REPEATS = """
def pytest_addoption(parser):
    parser.addoption("--times", type=int, default=1)


def pytest_generate_tests(metafunc):
    if (times := metafunc.config.option.times) > 1:
        metafunc.fixturenames.append("__number")
        metafunc.parametrize("__number", range(times))
"""
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
TYPO = "limits:\n  passes.value:\n    at_laest: 1\n    unit: GB/s\n    scope: rank\n    source: 'policy: a typo for the tests'\n"
H200 = yaml.safe_dump({"extends": "base", "match": {"device_name": "NVIDIA H200"}, **limits_of("passes")})


WRONG = "reason: a test\nparameters:\n  nccl.block_s: 0\n  gemm.sizes: 32\n"
NO_SUCH_RANK = "reason: a test\nparameters:\n  memory.planted_words: 1\n  memory.planted_rank: 1\n"
ONE_GPU = "reason: a test\nmatch: {gpus_per_node: 1}\n"
LOCALISE = "reason: a test\nparameters:\n  localise.asked: true\n"
DEBUGGED = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "CUDA_LAUNCH_BLOCKING": "1"}
PLACES = {"mine": "mine.yaml", "h200": "thresholds/h200-sxm.yaml", "conftest": "acceptance/conftest.py"}


@pytest.fixture
def start(tmp_path):
    """Start ranks of an example with these files in its suite, of which plugins can be imported."""

    def start(ranks, *arguments, env=None, example="passes", launcher=(), **files):
        suite = make_suite(tmp_path / "suite", example)
        for name, text in files.items():
            (suite / PLACES.get(name, f"{name}.py")).write_text(text)
        if ranks == 1:
            return plain_pytest(suite, *arguments, env=env)
        return torchrun(suite, *arguments, ranks=ranks, env=env, launcher=launcher)

    return start


def assert_refused(ended, ranks, *texts):
    """Exit code 4 on all ranks, each text printed once and once more for each rank by torchrun, no results."""
    if ranks > 1:
        assert ended.rank_exit_codes == dict.fromkeys(range(ranks), 4), ended.output
    assert ranks > 1 or ended.returncode == 4, ended.output
    for text in texts:
        assert ended.output.count(text) == (1 + ranks if ranks > 1 else 1), ended.output
    assert ended.output.count("ERROR: ") == 1, ended.output
    assert not ended.has_results


def case(name, ranks, arguments, *texts, env=None, **files):
    return pytest.param(ranks, arguments.split(), env, files, texts, id=name)


MINE = "--limits=mine.yaml"
TIMEOUT = "-ppytest_timeout"
OWN_WAY = "would run validations in its own way"
DEBUG = "TORCH_DISTRIBUTED_DEBUG=DETAIL: torch checks each collective with another one, and crashes in DDP; "
NUMBER = "mine.yaml: parameters.nccl.block_s (line 3): 0 is not allowed; allowed: a number from 0.001 to 60 s "
DRILL = "parameter memory.planted_rank=1: allowed: a rank of this job, 0 to 0; memory.planted_words=1 would be"
CASES = [
    case("a typo", 2, MINE, "mine.yaml: limits.passes.value.at_laest (line 3): unknown key; known: at_least, ", "'at_least'?", mine=TYPO),
    case("parameters", 1, MINE, NUMBER, "parameters.gemm.sizes (line 4): unknown parameter; ", "; did you mean 'gemm.size'?", mine=WRONG),
    case("a drill on a rank that is not there", 1, MINE, DRILL, mine=NO_SUCH_RANK),
    case("an overlay of other nodes", 2, MINE, "mine.yaml: match.gpus_per_node: this overlay is for nodes with 1 GPU, and ", mine=ONE_GPU),
    case("localise on one node", 1, MINE, "--localise compares nodes, and this job has 1; it wants at least 2", mine=LOCALISE),
    case("other hardware", 1, "--hardware=h200-sxm", "--hardware=h200-sxm is for 'NVIDIA H200', but rank 0's machine (", h200=H200),
    case("xdist", 1, "-pxdist.plugin -n2", "every rank runs every validation: leave out -n and --dist"),
    case("a debugger", 2, "", DEBUG, "; unset TORCH_DISTRIBUTED_DEBUG CUDA_LAUNCH_BLOCKING\n", env=DEBUGGED),
    case("a variable", 2, f"{TIMEOUT} -v", "leave out PYTEST_TIMEOUT=5 of the environment; ", env={"PYTEST_TIMEOUT": "5"}),
    case("an ini value", 2, f"{TIMEOUT} -otimeout=40", "leave out the ini value timeout=40 (or -o); "),
    case("an option", 2, f"{TIMEOUT} --session-timeout=40", "leave out --session-timeout; "),
    case("multiplied", 2, "-prepeats --times=2", "2 validations multiplied or renamed by one of repeats, such as ", repeats=REPEATS),
    case("a loop", 2, "-pforeign", f"foreign {OWN_WAY} (pytest_runtestloop): leave it out (a plugin: -p no:NAME)", foreign=LOOPS),
    case("a protocol", 1, "-pforeign", f"late {OWN_WAY} (pytest_runtest_protocol): leave it out (a plugin: -p no:NAME)", foreign=LATE),
    case("a conftest", 1, "", f"/acceptance/conftest.py {OWN_WAY} (pytest_runtestloop)", conftest=LOOPS),
]


@pytest.mark.parametrize(("ranks", "arguments", "env", "files", "texts"), CASES)
def test_refused_before_any_worker_starts(start, ranks, arguments, env, files, texts):
    assert_refused(start(ranks, *arguments, env=env, **files), ranks, *texts)


UNLIKE = "ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?"
ONLY_THERE = "  + rank 1 adds  acceptance/test_differs_between_ranks.py::test_only_here"
NO_LIBRARY = "ImportError: libexample.so.1: cannot open shared object file"


@pytest.mark.parametrize(
    ("example", "texts"),
    [("differs_between_ranks", (UNLIKE, ONLY_THERE)), ("cannot_be_collected", ("rank 1 cannot take part:", NO_LIBRARY))],
)
def test_ranks_that_do_not_collect_alike(start, example, texts):
    refused = start(2, example=example)
    assert_refused(refused, 2, *texts)
    assert "test_value" not in refused.output


@pytest.mark.parametrize(("ranks", "arguments"), [(2, []), (1, ["--hardware=cpu"]), (1, ["--measure-only"])])
def test_a_gpu_on_the_bus_is_never_judged_as_a_cpu(start, tmp_path, ranks, arguments):
    """On a /sys with two NVIDIA GPUs, of which the driver shows none."""
    for address in ("0000:01:00.0", "0000:02:00.0"):
        device = tmp_path / "sys" / "bus" / "pci" / "devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    refused = start(ranks, *arguments, env={"GPU_ACCEPTANCE_EXTRA_SYSFS": str(tmp_path / "sys")})
    text = "the cpu profile is for machines without GPUs; the PCI bus or NVML shows 2 on "
    assert_refused(refused, ranks, text)
    assert "is its driver loaded? NVML shows none of them" in refused.output
    assert refused.folder is None


def test_a_node_more_than_was_expected(tmp_path):
    suite = make_suite(tmp_path, "passes")
    refused = two_nodes(*[(suite, ("--expect-nodes=1",), {})] * 2)
    for node, one in enumerate(refused):
        assert one.rank_exit_codes == {node: 4}, one.output
        assert "ERROR: --expect-nodes=1, and 2 nodes take part: " in one.output
        assert not one.has_results


def test_a_node_that_never_came_is_no_acceptance(start):
    ended = start(1, "--expect-nodes=2")
    assert ended.returncode == 6, ended.output
    assert ended.outcomes() == {"test_value": "passed"}
    assert ended.verdict_line.startswith("INCOMPLETE: 1 node took part, and --expect-nodes wants 2")


def assert_refused_by_the_first(refused, text):
    """torchrun ends the other ranks once one has ended: their exit is a signal."""
    assert set(refused.rank_exit_codes.values()) <= {4, -15}, refused.output
    assert 4 in refused.rank_exit_codes.values()
    assert f"ERROR: {text}" in refused.output
    assert not refused.has_results


def test_launcher_restarts(start, seen):
    refused = start(2, launcher=("--max-restarts=1",))
    text = "TORCHELASTIC_MAX_RESTARTS=1: a restarted job runs until it passes, which proves nothing; "
    assert_refused_by_the_first(refused, text)
    assert "start torchrun with --max-restarts=0" in refused.output
    seen.told(RESTARTS, next(line for line in refused.output.splitlines() if f"ERROR: {text}" in line), 0)


def test_a_mistake_in_the_command_is_printed_by_one_rank_of_the_node_whichever_ends_first(start):
    text = "--level=quik: allowed: health, quick, full, soak; did you mean 'quick'?"
    refused = start(3, "--level=quik")
    assert_refused_by_the_first(refused, f"{text}\n")
    assert refused.output.count(f"ERROR: {text}\n") == 1, refused.output
    assert text in {line.strip().removeprefix("traceback : ") for line in refused.output.splitlines()}, refused.output
    assert "usage: " not in refused.output
    assert refused.folder is None


def test_nothing_selected_proves_nothing(start):
    nothing = start(2, "-k nothing")
    assert nothing.rank_exit_codes == {0: 5, 1: 5}, nothing.output
    assert nothing.record.conclusion.exit_code == 5
    assert "nothing was selected, 1 validation deselected" in nothing.verdict_line
    assert nothing.verdict_line.startswith("INCOMPLETE: ")
    assert nothing.verdict_line in nothing.output
    assert "ACCEPTED" not in nothing.output


def test_without_the_plugin_no_fixture_works(start):
    bare = start(2, "-p", "no:gpu_acceptance.plugin")
    assert bare.returncode != 0
    assert "no supervisor started this process, so nothing here would be judged" in bare.output
    assert not bare.has_results


def test_a_plugin_that_could_multiply_and_does_not_is_allowed(start):
    ended = start(1, "-prepeats", "-ppytest_timeout", "-otimeout=240", repeats=REPEATS)
    assert ended.returncode == 0, ended.output


def test_a_validation_that_is_run_again_is_no_attempt(start):
    ended = start(1, "-pforeign", foreign=AGAIN)
    assert (ended.returncode, ended.verdict_line) == (3, "INCOMPLETE: internal error (cpu profile: no GPU was tested)"), ended.output
    assert "was run already: a plugin or a conftest runs validations again; leave it out" in ended.output


def test_a_batch_script_on_one_node_of_a_job_of_four_says_so(start):
    ended = start(1, env={"SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "17"})
    assert ended.returncode == 0, ended.output
    assert "1 of 4 nodes of the Slurm job" in ended.verdict_line


WITH_GPUS = {"PYTHONPATH": str(Path(__file__).with_name("fakegpus"))}


@pytest.fixture
def busy_suite(tmp_path):
    made = make_suite(tmp_path, "passes")
    limits = (made / "thresholds" / "cpu.yaml").read_text()
    (made / "thresholds" / "h200-sxm.yaml").write_text(f"match: {{device_name: NVIDIA H200}}\n{limits}")
    return made


def test_it_is_refused_by_name_before_any_worker_starts(busy_suite):
    refused = torchrun(busy_suite, env=WITH_GPUS)
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    text = "ERROR: another program uses 1 GPU of this job, so that no figure would be that of the hardware:"
    assert refused.output.count(text) == 1, refused.output
    (line,) = {line.strip() for line in refused.output.splitlines() if "(pid 1607" in line and "Error" not in line}
    assert line.endswith(", GPU 1, serial 1653924100002: 1 process (pid 1607: 1204 MiB), 616 MiB in use")
    assert "--allow-busy runs all the same, and the verdict says so" in refused.output
    assert refused.folder is None


def test_asked_to_it_goes_on_and_the_verdict_line_says_so(busy_suite):
    allowed = torchrun(busy_suite, "--allow-busy", env=WITH_GPUS)
    record = allowed.record
    assert record.plan.allow_busy
    assert record.plan.waivers == {"gpu_health.processes.*": "GPUs that other programs use are allowed (--allow-busy)"}
    assert "busy GPUs allowed" in record.conclusion.line
    assert [process.pid for process in record.ranks[0].gpus[1].use.processes] == [1607]
    assert "this node has GPUs, but torch" in allowed.output
    page = (allowed.folder / "report.html").read_text()
    assert "GPUs that another user or process uses were allowed (--allow-busy)" in page
    assert "1 process (pid 1607: 1204 MiB), 616 MiB in use" in page


def test_the_other_gpu_alone_is_free(busy_suite):
    """It goes on to its worker, which finds that torch sees no GPU."""
    found = plain_pytest(busy_suite, "--gpus=1", env=WITH_GPUS)
    assert "another program uses" not in found.output
    assert "this node has GPUs, but torch" in found.output
