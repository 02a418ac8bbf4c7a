"""Options, variables and nodes that a run refuses."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_acceptance.inventory.fabric import FabricPort, NodeFabric
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.job import Job
from gpu_acceptance.run.refusals import (
    debugging_variables,
    find_debugging,
    find_misfit,
    find_mismatch,
    find_nvlink_beside_cards,
    find_refusal,
    refuse_inside_a_worker,
)
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.thresholds.limit import LOCALISE_ASKED, Profile
from gpu_acceptance.thresholds.profile import shipped_dir
from tests.judging import make_identity, make_job

ROOT = Path("/suite")
INI = ROOT / "pytest.ini"


def make_config(root=ROOT, ini=INI, plugins=(), args=(), **options):
    """As much of pytest's config as a refusal looks at."""
    conftest = SimpleNamespace(__file__=str(ROOT / "conftest.py"), pytest_plugins=["gpu_acceptance.plugin"])
    manager = SimpleNamespace(get_plugins=lambda: [object(), conftest], hasplugin=lambda name: name in plugins)
    started = SimpleNamespace(args=args)
    option = SimpleNamespace(**options)
    return SimpleNamespace(
        rootpath=root, inipath=ini, invocation_params=started, pluginmanager=manager, option=option, getini={}.__getitem__
    )


def test_a_plain_run_is_not_refused():
    assert find_refusal(make_config(), world_size=8) is None
    assert find_refusal(make_config(dist="no", numprocesses=None, timeout=None, usepdb=False, reruns=0), world_size=8) is None


XDIST = "pytest-xdist may not share out an acceptance run, every rank runs every validation: leave out -n and --dist"
RANDOM = "a random order differs between ranks: add -p no:randomly (or -p no:random_order)"
MULTIPLIES = "would multiply the validations, and no worker knows the copies: leave it out; --confirm=N measures a missed limit again"
RERUNS = "--reruns would run a validation until it passes: leave it out; repeats are announced and recorded by the suite itself"
SHOWS = "shows fixtures, and none runs in this process: leave it out; --plan shows what would run"
OVERRIDES = "=... would change what is collected or how: leave it out; the suite's own settings hold"
REFUSED = [
    ({"numprocesses": 2}, XDIST),
    ({"dist": "load"}, XDIST),
    ({"plugins": ["randomly"]}, RANDOM),
    ({"random_order_bucket": "module"}, RANDOM),
    ({"random_order": True}, RANDOM),
    *(({name: 2}, f"--{name} {MULTIPLIES}") for name in ("hours", "minutes", "seconds")),
    ({"leaks": ":"}, f"-R {MULTIPLIES}"),
    ({"reruns": 1}, RERUNS),
    *(({f"setup{name}": True}, f"--setup-{name} {SHOWS}") for name in ("plan", "only", "show")),
    *(
        ({"override_ini": ["log_level=INFO", f"{name}=test_1*"]}, f"-o {name}{OVERRIDES}")
        for name in ("python_functions", "python_files", "addopts", "filterwarnings")
    ),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_options_of_pytest_that_change_what_is_measured(changes, text):
    assert find_refusal(make_config(**changes), world_size=1) == text


@pytest.mark.parametrize("changes", [{"hours": 0}, {"minutes": 0}, {"seconds": 0}, {"leaks": None}, {"override_ini": ["log_level=INFO"]}])
def test_options_of_pytest_that_change_nothing(changes):
    assert find_refusal(make_config(**changes), world_size=2) is None


@pytest.mark.parametrize(
    ("options", "text"), [({"timeout": 60}, "pytest-timeout would end one rank alone"), ({"usepdb": True}, "--pdb would")]
)
def test_settings_that_stop_one_rank_alone_are_refused_above_one_rank(options, text):
    assert find_refusal(make_config(**options), world_size=2).startswith(text)
    assert find_refusal(make_config(**options), world_size=1) is None


def test_a_run_inside_a_validation():
    refuse_inside_a_worker({})
    with pytest.raises(pytest.UsageError) as caught:
        refuse_inside_a_worker({"GPU_ACCEPTANCE_SUPERVISOR": "17"})
    assert str(caught.value) == (
        "this pytest was started by a validation (GPU_ACCEPTANCE_SUPERVISOR is set): an acceptance run inside an acceptance run "
        "would answer in its place; start it from a shell of its own"
    )


@pytest.mark.parametrize("changes", [{"root": Path("/elsewhere"), "ini": Path("/elsewhere/pytest.ini")}, {"ini": None}])
def test_a_moved_root(changes):
    text = find_refusal(make_config(**changes), world_size=1)
    assert text.startswith(
        f"pytest took {changes.get('root', ROOT)} ({changes['ini'] or 'no configuration file'}) for the suite's root, not /suite: "
    )
    assert text.endswith("write options as --option=VALUE (a path after a blank moves the root) and name acceptance/")


# --- the machines --------------------------------------------------------------------------------------------------------------


def identities(num_ranks, num_gpus, on_bus=0):
    gpus = tuple(Gpu(index=index, name="NVIDIA H200", uuid=f"GPU-{index}") for index in range(num_gpus))
    update = {"gpus": gpus, "num_gpus_on_bus": on_bus}
    return [make_identity(rank, num_ranks, num_ranks, has_gpus=False).model_copy(update=update) for rank in range(num_ranks)]


@pytest.mark.parametrize(
    ("ranks", "declared"), [(identities(8, 8), None), (identities(4, 8), None), (identities(4, 8), 4), (identities(2, 0), None)]
)
def test_ranks_that_can_be_a_job(ranks, declared):
    assert find_mismatch(ranks, declared) is None


@pytest.mark.parametrize(
    ("ranks", "declared", "text"),
    [
        (identities(2, 1), None, "2 ranks on node-00, which has 1 GPUs: start one rank per GPU (--nproc-per-node gpu)"),
        (identities(2, 0, on_bus=1), None, "2 ranks on node-00, which has 1 GPUs: start one rank per GPU (--nproc-per-node gpu)"),
        (identities(2, 8), 4, "--gpus=4 declares that many GPUs of each node, but node-00 has 2 ranks"),
        (identities(2, 0), 2, "--gpus=2, but node-00 has 0 GPUs"),
    ],
)
def test_ranks_that_cannot_be_a_job(ranks, declared, text):
    assert find_mismatch(ranks, declared) == text


APART = "each rank wants to see all GPUs of its node; srun: --gpus-per-node, no --gpus-per-task or --gpu-bind"


def seeing(*seen, **visible):
    """A node of as many ranks, of 4 GPUs on its bus: which of them NVML shows to each, and what CUDA_VISIBLE_DEVICES says."""
    ranks = [make_identity(rank, len(seen), len(seen)) for rank in range(len(seen))]
    gpus = make_identity(0, 4, 4).gpus
    update = [{"gpus": tuple(gpus[index] for index in shown), "num_gpus_on_bus": 4} for shown in seen]
    told = [{"environment": {"CUDA_VISIBLE_DEVICES": visible[f"rank{rank}"]}} if visible else {} for rank in range(len(seen))]
    return [one.model_copy(update={**shown, **said}) for one, shown, said in zip(ranks, update, told, strict=True)]


def test_ranks_that_each_see_a_gpu_of_their_own_are_refused():
    text = f"NVML shows GPU-0-0 on rank 0 and NVML shows GPU-0-1 on rank 1 of node-00: {APART}"
    assert find_mismatch(seeing([0], [1]), None) == text
    text = f"CUDA_VISIBLE_DEVICES is 0 on rank 0 and CUDA_VISIBLE_DEVICES is 2 on rank 2 of node-00: {APART}"
    assert find_mismatch(seeing(*[[0, 1, 2, 3]] * 3, rank0="0", rank1="0", rank2="2"), None) == text


def test_a_gpu_that_is_lost_is_no_mistake_of_the_start():
    assert find_mismatch(seeing([0], [0]), None) is None  # of both ranks
    assert find_mismatch(seeing([0, 1], [0]), None) is None  # between the first rank's look and the second's
    assert find_mismatch(seeing([], []), None) is None
    assert find_mismatch(seeing([0, 1], [0, 1], rank0="0,1", rank1="1,0"), None) is None
    assert find_mismatch(seeing([0, 1], [0, 1], rank0="0", rank1="0"), None) is None


NODES = list(make_job(3, 1, has_gpus=False).ranks)
TWENTY = list(make_job(20, 1, has_gpus=False).ranks)
EIGHT = ", ".join(f"node-{node:02d}" for node in range(8))
UNSEEN = [identities(2, num_gpus, on_bus=2)[0].model_copy(update={"nvml_problem": "no driver"}) for num_gpus in (0, 2)]
B200 = "--hardware=b200 is for 'NVIDIA B200', but rank 0's machine (node-00) has "
FOR_ONE = "one.yaml: match.gpus_per_node: this overlay is for nodes with 1 GPU, and node-00 has {}"
OTHERS = "the cpu profile is for machines without GPUs; the PCI bus or NVML shows 2 on node-00: "


@pytest.mark.parametrize(
    ("ranks", "profile", "changes", "text"),
    [
        *((NODES, "cpu", {"expected": expected}, None) for expected in (None, 3, 4)),
        (NODES, "cpu", {"expected": 2}, "--expect-nodes=2, and 3 nodes take part: node-00, node-01, node-02"),
        (
            TWENTY,
            "cpu",
            {"expected": 2},
            f"--expect-nodes=2, and 20 nodes take part: {', '.join(f'node-{node:02d}' for node in range(8))} and 12 more",
        ),
        ([UNSEEN[1]], "cpu", {"named": True}, f"{OTHERS}leave --hardware out"),
        ([UNSEEN[0]], "cpu", {"named": True}, f"{OTHERS}is its driver loaded? NVML shows none of them (no driver)"),
        (
            identities(1, 1),
            "b200",
            {"named": True},
            "--hardware=b200 is for 'NVIDIA B200', but rank 0's machine (node-00) has 'NVIDIA H200'",
        ),
        (identities(1, 0), "b200", {"named": True}, f"{B200}no GPU that NVML shows"),
        *((identities(8, 8), "h200-sxm", {"named": named}, None) for named in (True, False)),
        (identities(2, 0), "cpu", {"named": True}, None),
        (identities(2, 8), "h200-sxm", {"localise": True}, "--localise compares nodes, and this job has 1; it wants at least 2"),
        (identities(2, 8), "h200-sxm", {"localise": False}, None),
        (NODES, "cpu", {"localise": True}, None),
        (identities(1, 1, on_bus=1), "h200-sxm", {"gpus_per_node": 1}, None),
        (identities(1, 1, on_bus=8), "h200-sxm", {"gpus_per_node": 1}, FOR_ONE.format(8)),
        ([*identities(8, 8), *identities(2, 2)], "h200-sxm", {"gpus_per_node": 8}, FOR_ONE.format(2).replace("1 GPU", "8 GPUs")),
    ],
)
def test_nodes_and_profile_fit(ranks, profile, changes, text):
    """More nodes than expected, other hardware than that of the profile or an overlay, and nothing to compare are refused."""
    device = None if profile == "cpu" else f"NVIDIA {profile.removesuffix('-sxm').upper()}"
    parameters = {LOCALISE_ASKED: changes.get("localise", False)}
    overlays = {"one.yaml": changes["gpus_per_node"]} if "gpus_per_node" in changes else {}
    found = Profile(profile, device, frozenset(), {}, parameters, 60.0, gpus_per_node=overlays)
    assert find_misfit(ranks, found, changes.get("expected"), named=changes.get("named", False)) == text


def nodes_in(*domains):
    """A job of one node of 4 GPUs and 4 network cards in each of these NVLink domains: "" is none."""
    cards = tuple(FabricPort(name=f"mlx5_{number}/1", link="IB", gbit_per_s=400.0) for number in range(4))
    fabrics = [NodeFabric(num_gpus=4, ports=cards, nvlink_domain=domain) for domain in domains]
    ranks = make_job(4 * len(domains), 4, model="NVIDIA GB200").ranks
    return Job(tuple(rank.model_copy(update={"fabric": fabrics[rank.node]}) for rank in ranks))


def refused_fabric(name, job, **environ):
    settings = Settings(report_dir=Path(), profiles=shipped_dir(), suite=Path(), fabric=name)
    return find_nvlink_beside_cards(settings, job, environ)


@pytest.mark.parametrize("domains", ["AA", "AABB", "AAB"], ids=["one rack", "two racks", "a node outside"])
@pytest.mark.parametrize("name", ["4x400-ib-gb", "ethernet"])
def test_limits_of_cards_are_refused_where_nvlink_joins_nodes(domains, name):
    job = nodes_in(*domains)
    assert f"--fabric={name} is for nodes that only a network joins, and NVLink joins some of these (" in refused_fabric(name, job)
    assert refused_fabric(name, job, NCCL_MNNVL_ENABLE="0") is None
    assert [refused_fabric(name, job) for name in (None, "none", "nvl72")] == [None, None, None]


@pytest.mark.parametrize("domains", ["A", "AB", ["", ""]], ids=["one node", "one node of each rack", "no NVLink between nodes"])
def test_limits_of_cards_are_taken_where_only_cards_join_nodes(domains):
    assert refused_fabric("4x400-ib-gb", nodes_in(*domains)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("NCCL_DEBUG", "trace"),
        ("PYTHONMALLOC", "malloc_debug"),
        ("PYTHONWARNINGS", "default,error::DeprecationWarning"),
        ("MALLOC_PERTURB_", "165"),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.perturb=7"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2:/usr/lib/gcc/x86_64-linux-gnu/12/libasan.so"),
        ("LD_PRELOAD", "/opt/llvm/lib/clang/17/lib/linux/libclang_rt.tsan-x86_64.so"),
        ("LD_PRELOAD", "/opt/nsight-compute/target/linux-desktop-glibc_2_11_3-x64/./libTreeLauncherTargetInjection.so"),
        ("LD_PRELOAD", "/venv/lib/python3.12/site-packages/scalene/libscalene.so"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libeatmydata.so"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"),  # its file may hold anything
        ("CUDA_INJECTION64_PATH", "/opt/nvidia/nsight-systems/target-linux-x64/libToolsInjection64.so"),
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("PYTORCH_JIT", "0"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
        ("TORCH_LOGS", "-inductor,+dynamo"),
        ("TORCH_TRACE", "/tmp/trace"),
        ("TORCHINDUCTOR_NAN_ASSERTS", "1"),
        ("TRITON_ALWAYS_COMPILE", "1"),
        ("MLIR_ENABLE_DUMP", "my_kernel"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G"),
        ("CUDA_DISABLE_PERF_BOOST", "1"),
        ("NCCL_PROFILER_PLUGIN", "/opt/libnccl-profiler-inspector.so"),
        ("NVSHMEM_DEBUG", "TRACE"),
        ("PYTHONPERFSUPPORT", "1"),
        ("COVERAGE_PROCESS_CONFIG", ":data:{}"),
    ],
)
def test_a_variable_that_is_on_is_named_with_its_value_and_the_way_out(name, value):
    text = find_debugging({name: value, "PATH": "/bin"})
    assert text.startswith(f"left in the environment from debugging, and no figure under it counts: {name}={value}: ")
    assert text.endswith(f"; unset {name}")


def test_a_variable_that_needs_another_one():
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL: NCCL writes down each call" in find_debugging(
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL"}
    )
    assert find_debugging({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}) is None


@pytest.mark.parametrize("setting", ["+1y x2", "+0 x0.5", "+2,5y i2,0", "@2020-12-24 20:30:00 x10", "2020-12-24 20:30:00", "%"])
def test_a_clock_of_another_speed(setting):
    text = find_debugging({"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "FAKETIME": setting})
    assert text.endswith(f"FAKETIME={setting}: the clock stands still or runs at another speed; unset FAKETIME")
    assert find_debugging({"FAKETIME": setting}) is None


@pytest.mark.parametrize("setting", ["+1h", "-120", "+2,5y", "@2020-12-24 20:30:00"])
def test_a_clock_that_is_wrong_and_as_fast_is_no_reason(setting):
    assert find_debugging({"LD_PRELOAD": "libfaketime.so.1", "FAKETIME": setting}) is None


_OFF_WITH_0 = [name for one in debugging_variables() for name in one.names if not one.values.fullmatch("0") or one.off.fullmatch("0")]


@pytest.mark.parametrize("off", ["", "0", "OFF", "off", "no", "False"])
def test_a_value_that_says_off_is_off(off):
    assert find_debugging(dict.fromkeys(_OFF_WITH_0, off)) is None


def test_variables_that_0_turns_on():
    assert {name for one in debugging_variables() for name in one.names} - set(_OFF_WITH_0) == {"NVIDIA_TF32_OVERRIDE", "PYTORCH_JIT"}


@pytest.mark.parametrize(
    "environ",
    [
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
            "TORCH_CPP_LOG_LEVEL": "INFO",
            "PYTHONMALLOC": "malloc",
            "PYTHONWARNINGS": "ignore",
        },
        {
            "LD_PRELOAD": "/usr/lib/libjemalloc.so.2",
            "GLIBC_TUNABLES": "glibc.malloc.check=0",
            "CUBLASLT_LOG_LEVEL": "1",
            "UCX_LOG_LEVEL": "warn",
            "TORCH_LOGS": "-dynamo, -inductor",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
            "PYTORCH_JIT": "1",
            "NCCL_PROFILER_PLUGIN": "none",
            "NVSHMEM_DEBUG": "WARN",
        },
    ],
)
def test_harmless_variables_are_allowed(environ):
    assert find_debugging(environ) is None
