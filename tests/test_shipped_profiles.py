import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest
import torch
from fabrics import directory as with_stand_ins

from fixtures.training import workload as read_workload
from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.gemm.operands import DTYPES, allowed_error, unsupported
from gpu_acceptance.measure.gemm.rates import CANDIDATES
from gpu_acceptance.measure.train import models, throughput
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import PlannedValidation
from gpu_acceptance.thresholds.fabrics import fabrics
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.limit import ByNodes, matching_reason
from gpu_acceptance.thresholds.profile import json_schema, load_profile, profile_names, select_profile, shipped_dir
from gpu_acceptance.verdict.attempts import bare_row, too_small
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_attempt, make_job, make_plan, shipped_profile

pytestmark = pytest.mark.repository

DIRECTORY = shipped_dir()
ROOT = Path(__file__).parents[1]
GPUS = {  # name, SMs, GB of memory, compute capability
    "a100-pcie": ("NVIDIA A100 80GB PCIe", 108, 80, (8, 0)),
    "a100-sxm": ("NVIDIA A100-SXM4-80GB", 108, 80, (8, 0)),
    "a100-sxm-40gb": ("NVIDIA A100-SXM4-40GB", 108, 40, (8, 0)),
    "a10g": ("NVIDIA A10G", 80, 24, (8, 6)),
    "b200": ("NVIDIA B200", 148, 180, (10, 0)),
    "b300": ("NVIDIA B300 SXM6 AC", 148, 288, (10, 3)),
    "gb200": ("NVIDIA GB200", 152, 186, (10, 0)),
    "gb300": ("NVIDIA GB300", 152, 288, (10, 3)),
    "gh200-120gb": ("NVIDIA GH200 120GB", 132, 96, (9, 0)),
    "gh200-144gb": ("NVIDIA GH200 144G HBM3e", 132, 144, (9, 0)),
    "gh200-480gb": ("NVIDIA GH200 480GB", 132, 96, (9, 0)),
    "h100-nvl": ("NVIDIA H100 NVL", 132, 94, (9, 0)),
    "h100-pcie": ("NVIDIA H100 PCIe", 114, 80, (9, 0)),
    "h100-sxm": ("NVIDIA H100 80GB HBM3", 132, 80, (9, 0)),
    "h20": ("NVIDIA H20", 78, 96, (9, 0)),
    "h200-nvl": ("NVIDIA H200 NVL", 132, 141, (9, 0)),
    "h200-sxm": ("NVIDIA H200", 132, 141, (9, 0)),
    "l40s": ("NVIDIA L40S", 142, 48, (8, 9)),
    "rtx-pro-6000-maxq": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188, 96, (12, 0)),
    "rtx-pro-6000-server": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 96, (12, 0)),
    "rtx-pro-6000-workstation": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 96, (12, 0)),
}
DEVICES, SM_COUNTS, MEMORY_GB, CAPABILITIES = ({name: row[column] for name, row in GPUS.items()} for column in range(4))
SUBJECTS = {path.stem.removeprefix("test_") for path in (ROOT / "acceptance").glob("test_*.py")}
ON_REQUEST = {subject for subject in SUBJECTS if f"{subject}.*" in shipped_profile("base").not_applicable}
EVERYTHING = SUBJECTS - ON_REQUEST - {"connectivity", "nccl_scaling"} | {"counters"}  # one node has no others to reach
WITHOUT_SWITCHES = {"h100-sxm-4gpu": "h100-sxm", "h200-sxm-4gpu": "h200-sxm"}  # boards of 4 GPUs, and the profile of 8
BOTH = {"unidirectional", "bidirectional"}
BEHIND_A_SWITCH = {"a100-sxm", "a100-sxm-40gb", "b200", "b300", "gb200", "gb300", "h100-sxm", "h20", "h200-sxm"}  # paths are alike
HAS_P2P_READINGS = {name: {"unidirectional"} for name in BEHIND_A_SWITCH - {"h20"}} | {"cpu": BOTH, "h100-sxm": BOTH, "h200-sxm": BOTH}
HAS_LINK_READINGS = {"a100-sxm", "a100-sxm-40gb", "cpu", "gb200", "gb300", "h100-sxm", "h200-sxm"}  # all others declare the rate
ALONE, WITH_DDP = ("train_single.gpt2", "train_single.resnet"), ("ddp.gpt2", "ddp.resnet", "ddp_short.gpt2")
FSDP_WAYS = tuple(f"fsdp_variants.{way}" for way in ("by_block", "whole", "keeping", "offloaded", "hybrid"))
TRAINED = (*ALONE, *WITH_DDP, "fsdp.llama")
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")
OTHERS = ("fp16", "tf32", "fp32", "fp64", "fp8")  # what `gemm_dtypes` measures; fp8 is in `gemm` too

OF_A_SAMPLE = ("train.resnet.image_size", "train.gpt2.sequence", "train.llama.sequence")
LINKED = ("ddp_scaling", "fsdp", "fsdp_variants", "nccl", "nccl_ring", "nccl_sizes", "nic", "p2p")  # subjects that need two ranks
README = (DIRECTORY / "README.md").read_text()


def numbers(bound):
    if isinstance(bound, ByNodes):
        return [number for number in bound.nodes.values() if number is not None]
    return list(bound.values()) if isinstance(bound, Mapping) else [] if bound is None else [bound]


def test_these_profiles_are_shipped():
    assert set(profile_names(DIRECTORY)) == {*DEVICES, *WITHOUT_SWITCHES, "cpu"}
    assert {path.stem for path in DIRECTORY.glob("site-*.yaml")} == {"site-kubernetes", "site-nvls-off", "site-one-gpu", "site-slurm"}


@pytest.mark.parametrize(("name", "device_name"), DEVICES.items())
def test_a_gpu_chooses_its_profile_and_must_be_what_it_says(name, device_name):
    assert select_profile(device_name, DIRECTORY) == name
    profile = shipped_profile(name)
    assert profile.device_name == device_name
    assert profile.limits["environment.gpu.name"].equals == device_name
    assert profile.limits["environment.gpu.sm_count"].equals == SM_COUNTS[name]
    assert profile.files[0].file == "base.yaml"


@pytest.mark.parametrize(("board", "usual"), WITHOUT_SWITCHES.items())
def test_a_board_without_switches_is_told_by_its_nvlinks_and_has_less_between_two_gpus(board, usual):
    name = DEVICES[usual]
    assert [select_profile(name, DIRECTORY, end) for end in ("", "switch", "npu", "gpu")] == [usual, usual, usual, board]
    less, whole = (shipped_profile(one) for one in (board, usual))
    other = {metric for metric, limit in less.limits.items() if limit != whole.limits[metric]}
    assert other == {f"p2p.{way}.{end}.bandwidth" for way in BOTH for end in ("in", "out")}
    assert {int(whole.limits[metric].at_least / 3) - less.limits[metric].at_least for metric in other} == {0}
    assert {less.limits[metric].ceiling for metric in other} == {150}
    assert less.not_applicable.keys() - whole.not_applicable.keys() == {"gpu_health.fabric*"}
    assert [less.is_for(name, end) for end in ("", "gpu", "switch")] == [True, True, False]


@pytest.mark.parametrize(
    "like", ["A100-PCIE-40GB", "A100-SXM-64GB", "A10", "H100", "H20-3e", "H20 NVL16", "H800", "L40", "RTX 6000D", "GB300 NVL"]
)
def test_another_board_of_a_like_name_has_no_profile(like):
    with pytest.raises(LimitsError, match=f"^no profile for the GPU 'NVIDIA {like}'; profiles: "):
        select_profile(f"NVIDIA {like}", DIRECTORY)


WITHOUT_NVLINK = EVERYTHING - {
    "nccl",
    "nccl_ring",
    "nccl_sizes",
    "ddp_scaling",
}  # what a collective costs in PCIe slots depends on the host
REQUIRED = {
    **dict.fromkeys(DEVICES.keys() - BEHIND_A_SWITCH, WITHOUT_NVLINK),
    "cpu": EVERYTHING - {"binding", "counters", "gpu_health"} | {"nic"},
}


def test_profiles_require_what_can_be_judged_on_any_gpu():
    assert {name: shipped_profile(name).requires for name in (*DEVICES, "cpu")} == {
        name: REQUIRED.get(name, EVERYTHING) for name in (*DEVICES, "cpu")
    }


@pytest.mark.parametrize("name", DEVICES)
def test_each_speed_has_a_ceiling_and_a_largest_spread(name):
    for metric, limit in shipped_profile(name).limits.items():
        if metric.endswith((".sustained", ".burst", ".best", ".bandwidth", ".busbw", ".busbw_medium")):
            assert limit.spread_at_most == (None if metric.endswith(".best") else 2)
            assert limit.ceiling is not None
            assert all(0.28 * limit.ceiling < number < limit.ceiling for number in numbers(limit.at_least))  # 4 A100 have a third
        if metric.endswith((".busbw", ".busbw_medium")):
            assert (limit.scope, limit.nodes) == ("job", "one")
            assert isinstance(limit.at_least, Mapping)


@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_a_rate_of_training_that_was_read_inside_a_node_holds_there_alone(name):
    """A GPU by itself reduces nothing, so its limits hold everywhere."""
    rates = [limit for metric, limit in shipped_profile(name).limits.items() if ".throughput" in metric and limit.subject != "connectivity"]
    where = {"train_single": "any"}
    assert {limit.metric: limit.nodes for limit in rates} == {
        limit.metric: "several" if limit.metric.endswith("_internode") else where.get(limit.subject, "one") for limit in rates
    }


@pytest.mark.parametrize("name", DEVICES)
def test_only_what_has_evidence_claims_to_have_been_measured(name):
    measured = {limit.subject for limit in shipped_profile(name).limits.values() if limit.source.startswith("measured ")}
    if name == "h200-sxm":
        assert measured > {"hbm", "gemm", "nccl"}
    else:
        assert measured == ({"hbm", "gemm", "gemm_dtypes"} if name == "h100-sxm" else set())  # reports/evidence/h100x*


def test_the_cpu_profile_asks_only_for_life():
    profile = shipped_profile("cpu")
    assert profile.device_name is None
    speeds = [
        limit
        for metric, limit in profile.limits.items()
        if metric.endswith((".sustained", ".burst", ".best", ".bandwidth", ".busbw", ".busbw_medium"))
    ]
    assert len(speeds) == 38
    for limit in speeds:
        assert limit.source == "policy: liveness only; shows that the operation ran and was timed, says nothing of speed"
        assert 0 < limit.at_least < 0.01
        assert limit.spread_at_most is None


def test_a_world_of_one_says_that_nccl_and_p2p_were_left_out():
    profile, job = shipped_profile("cpu"), make_job(1, has_gpus=False)
    held = {metric: limit for metric, limit in profile.limits.items() if limit.applies(1, 1) and limit.subject in profile.requires}
    assert not set(LINKED) & {limit.subject for limit in held.values()}
    rows = [
        make_row(f"acceptance/test_{limit.subject}.py::test_a", [good_attempt(limit)], profile, job, {}, 60.0) for limit in held.values()
    ]
    least = {subject: "min_ranks_per_node" if subject == "p2p" else "min_ranks" for subject in LINKED}
    planned = [PlannedValidation(nodeid=f"acceptance/test_{name}.py::test_a", deadline_s=60.0, **{most: 2}) for name, most in least.items()]
    rows += [bare_row(one.nodeid, Outcome.NOT_APPLICABLE, str(too_small(one, job)), 60.0) for one in planned]
    conclusion = conclude(make_plan(profile, validations=tuple(planned)), job, rows)
    left_out = ", ".join(f"{subject} not applicable: needs at least 2 ranks{' on a node' * (subject == 'p2p')}" for subject in LINKED)
    assert conclusion.line == f"ACCEPTED (cpu profile: no GPU was tested, {left_out})"


@functools.cache
def num_parameters(shape):
    return sum(parameter.numel() for parameter in models.build(shape, torch.device("meta")).parameters())


flops_per_sample = functools.cache(throughput.flops_per_sample)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_what_is_trained_is_pinned_by_the_shape_that_the_profile_gives_it(name):
    """Its parameters, and what a sample of it costs: a smaller image or a shorter sequence has as many parameters."""
    profile = shipped_profile(name)
    sizes = profile.parameters
    workload = read_workload.__wrapped__(sizes.__getitem__)
    smaller = read_workload.__wrapped__({**sizes, **{size: sizes[size] * 3 // 4 for size in OF_A_SAMPLE}}.__getitem__)
    for one in (*TRAINED, *FSDP_WAYS):
        model = one.split(".")[1] if one in TRAINED else "gpt2"
        assert profile.limits[f"{one}.parameters"].equals == num_parameters(workload(model).shape)
        told = profile.limits[f"{one}.flop_per_sample"].equals
        assert told == float(f"{flops_per_sample(workload(model).shape) / 1e9:.4g}")
        assert told > flops_per_sample(smaller(model).shape) / 1e9


def good_attempt(limit):
    value = limit.equals if limit.equals is not None else limit.at_least or limit.at_most or (0 if limit.at_most == 0 else "2.9.1")
    return make_attempt({0: value}, metric=limit.metric, unit=limit.unit)


@pytest.mark.parametrize(("name", "gb"), MEMORY_GB.items())
def test_nearly_all_memory_that_a_gpu_is_sold_with_is_tested(name, gb):
    profile = shipped_profile(name)
    assert profile.parameters["memory.min_bytes"] == 85 * gb * 10**7
    assert profile.limits["memory.fill.fraction"].at_least < profile.parameters["memory.fraction"] < 1


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_host_link_cannot_be_faster_than_its_lanes(direction):
    """PCIe 5.0 x16: 32 GT/s on each of 16 lanes, 128 of 130 bits are data."""
    assert shipped_profile("h200-sxm").limits[f"pcie.{direction}.bandwidth"].ceiling == int(32 * 16 * 128 / 130 / 8)


@pytest.mark.parametrize("name", sorted(DEVICES.keys() - HAS_LINK_READINGS))
def test_who_has_no_reading_of_the_host_link_says_so_and_still_judges_what_was_copied(name):
    declared = shipped_profile(name).not_applicable
    assert (
        matching_reason("pcie.h2d.bandwidth", declared)
        == "no reading of its host link has a source here: copies are judged by their content alone"
    )
    assert matching_reason("pcie.h2d.wrong", declared) is None


@pytest.mark.parametrize("name", DEVICES)
def test_who_has_no_reading_of_copies_between_gpus_says_so_and_still_judges_what_was_copied(name):
    declared = shipped_profile(name).not_applicable
    for mode in ("unidirectional", "bidirectional"):
        has_reading = mode in HAS_P2P_READINGS.get(name, ())
        assert (matching_reason(f"p2p.{mode}.in.bandwidth", declared) is None) == has_reading
        assert (matching_reason(f"p2p.{mode}.path", declared) is None) == (name in BEHIND_A_SWITCH)
        assert matching_reason(f"p2p.{mode}.wrong", declared) is None


@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_every_kernel_that_a_device_can_run_must_run_and_no_fault_is_planted(name, monkeypatch):
    device = torch.device("cpu" if name == "cpu" else "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: CAPABILITIES[name])
    profile = shipped_profile(name)
    able = [kernel for kernel in kernels.NAMES if not kernels.unsupported(kernel, device)]
    assert profile.limits["corruption.kernels.run"].equals == len(able)
    assert profile.parameters["corruption.planted_flip_every"] == 0


@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_a_dtype_that_a_device_lacks_is_declared_and_no_other(name, monkeypatch):
    device = torch.device("cpu" if name == "cpu" else "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: CAPABILITIES[name])
    declared = shipped_profile(name).not_applicable
    for dtype in DTYPES:
        for metric in (f"gemm_dtypes.{dtype}.wrong", f"gemm.{dtype}.wrong"):
            is_wanted = metric in shipped_profile("base").limits
            assert not is_wanted or (matching_reason(metric, declared) is None) == (not unsupported(dtype, device)), metric


def test_the_error_of_a_product_may_be_what_its_arithmetic_loses_and_little_more():
    """Over the largest K that is multiplied: by a candidate of the best shape, or in the largest square."""
    profiles = [shipped_profile(name) for name in [*DEVICES, "base"]]
    seen = set()
    for subject, dtypes in (("gemm", ("bf16", "fp8")), ("gemm_dtypes", OTHERS)):
        for dtype in dtypes:
            largest = max(shape.K for shape in CANDIDATES[dtype])
            for profile in profiles:
                allowed = allowed_error(dtype, max(largest, profile.parameters[f"{subject}.size"]))
                assert allowed <= profile.limits[f"{subject}.{dtype}.error"].at_most <= 1.3 * allowed
                seen.add((subject, dtype))
    assert len(seen) == 7


def test_base_can_be_loaded_for_a_gpu_nobody_knows():
    profile = shipped_profile("base")
    assert profile.requires <= EVERYTHING
    assert not [metric for metric in profile.limits if metric.endswith(("bandwidth", "busbw", "sustained"))]


def test_nvls_off_brings_the_rings_and_says_what_it_loosened():
    profile = load_profile("h200-sxm", DIRECTORY, [Path("site-nvls-off")])
    assert profile.parameters["nccl.large_bytes"] == 4 * 2**30  # of which the sources tell
    assert profile.limits["nccl.all_reduce.busbw"].at_least == {2: 326, 4: 343, 8: 346}
    loosened = [(change.key, change.old, change.new) for change in profile.changes if change.kind == "loosened"]
    assert loosened == [
        ("nccl.all_reduce.busbw at_least at 8", "449", "346"),
        ("nccl.all_reduce.busbw_medium at_least at 8", "381", "302"),
        ("nccl_sizes.all_reduce.busbw at_least at 8", "453", "347"),
    ]
    assert not {one for one in profile.not_applicable if one.startswith("nccl.")}  # the rings of 128 MiB were measured


def test_an_overlay_for_a_gpu_does_not_fit_a_machine_without_one():
    with pytest.raises(LimitsError, match=r"this overlay is for 'NVIDIA H200', and profile cpu is for no GPU$"):
        load_profile("cpu", DIRECTORY, [Path("site-nvls-off")])


DERIVED_ALONE = {"a100-pcie", "gh200-120gb", "gh200-144gb", "h20", "rtx-pro-6000-server", "rtx-pro-6000-workstation"}
LESS = re.compile(r"(?P<reference>[\d.]+)(?:-[\d.]+)?[^\d]*; (?:lowest )?less (?P<percent>\d+) %")


FABRICS = [(profile, name) for name, match in fabrics(DIRECTORY).items() for profile in getattr(match, "profiles", ["h200-sxm"])]


@pytest.mark.parametrize(("name", "fabric"), [*((name, "") for name in DEVICES), *FABRICS])
def test_a_floor_is_its_reference_less_what_the_source_says(name, fabric):
    """A source such as `...: 4295; less 5 %` (or `652-666; lowest less 10 %`) must agree with the number above it."""
    checked = 0
    for limit in load_profile(name, with_stand_ins() if fabric else DIRECTORY, fabric=fabric).limits.values():
        match = LESS.search(limit.source)
        if match and limit.source.startswith(("measured", "published")):
            wanted = float(match["reference"]) * (1 - int(match["percent"]) / 100)
            assert any(abs(floor - wanted) < 1 for floor in numbers(limit.at_least)), limit.metric
            checked += 1
    assert checked or name in DERIVED_ALONE


@pytest.fixture(scope="module")
def schema():
    found = jsonschema.validators.validator_for(json_schema())
    found.check_schema(json_schema())
    return found(json_schema())


def test_the_schema_is_that_of_the_code():
    """`gpu_acceptance.thresholds.profile.json_schema()` as JSON, indented by 2."""
    assert json.loads((DIRECTORY / "schema.json").read_text()) == json_schema()


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.yaml")), ids=lambda path: path.stem)
def test_files_fit_the_schema_and_a_screen(path, schema):
    content = json.loads(json.dumps(parse(path.read_bytes()).data))  # JSON has no whole numbers as keys
    schema.validate(content)
    assert [line for line in path.read_text().splitlines() if len(line) > 140] == []


def test_the_readme_names_all_profiles_and_all_keys():
    properties = json_schema()["properties"], json_schema()["$defs"]["Entry"]["properties"]
    words = [f"`{name}`" for name in [*DEVICES, "cpu", "base", "hopper-sxm", "site-nvls-off"]]
    words += [f"`{key}`" for keys in properties for key in keys]
    assert [word for word in words if word not in README] == []
