"""Values that a profile may give a parameter, and the error for any other."""

import ast
import inspect
from pathlib import Path

import pytest

from gpu_acceptance.measure import memory_fill, nccl
from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.gemm import rates
from gpu_acceptance.thresholds.file import LimitsError, read_file
from gpu_acceptance.thresholds.parameter_relations import (
    KERNEL_SHAPES,
    LATENCY_SIZES,
    MEMORY_PATTERNS,
    MOST_CURVE_SIZES,
    NUM_BURSTS,
    contradictions,
    drill_on_nobody,
)
from gpu_acceptance.thresholds.parameters import DRILLS, PARAMETERS
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from tests.judging import shipped_profile

ROOT = Path(__file__).parents[2]
BASE = shipped_profile("base").parameters
BLOCK_S = "a number from 0.001 to 60 s (starting a block must not count, and all of them must end before the deadline)"
DEVICES = "words with a blank between them: nearest, or globs of RDMA devices, without the `,`, `=`, `^` and `:` of NCCL_IB_HCA"
OF_NCCL = "nccl.large_bytes, nccl.medium_bytes, nccl.block_s, nccl.latency_block_s, nccl.latency_reference"
SUBJECTS = ", ".join(dict.fromkeys(name.split(".")[0] for name in PARAMETERS))


def overlay(folder, *lines):
    path = folder / "mine.yaml"
    path.write_text("\n".join(["reason: a test", "parameters:", *(f"  {line}" for line in lines)]))
    return path


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nccl.blocks: 1", f"unknown parameter; there are those of nccl: {OF_NCCL}; did you mean 'nccl.block_s'?"),
        ("ncl.block_s: 1", f"unknown parameter; there are those of {SUBJECTS}; did you mean 'nccl.block_s'?"),
        ("size: 1", f"unknown parameter; there are those of {SUBJECTS}; did you mean 'gemm.size'?"),
        ("5: 1", f"unknown parameter; there are those of {SUBJECTS}"),
        ('nccl.block_s: "x"', f"'x' is not allowed; allowed: {BLOCK_S}"),
        ("nccl.block_s: true", f"True is not allowed; allowed: {BLOCK_S}"),
        ("nccl.block_s: [1]", f"[1] is not allowed; allowed: {BLOCK_S}"),
        ("nccl.block_s: 0", f"0 is not allowed; allowed: {BLOCK_S}"),
        ("nccl.block_s: -1", f"-1 is not allowed; allowed: {BLOCK_S}"),
        ("nccl.block_s: 1.0e+300", f"1e+300 is not allowed; allowed: {BLOCK_S}"),
        ("nccl.block_s: 1e1", f"'1e1' is not allowed; allowed: {BLOCK_S}; 1e1 is text in YAML, write 1.0e+1"),
        ("timing.num_blocks: 1", "1 is not allowed; allowed: a whole number from 2 to 1000 (one block has no spread)"),
        ("timing.num_blocks: 2.5", "2.5 is not allowed; allowed: a whole number from 2 to 1000 (one block has no spread)"),
        ("timing.num_blocks: 1e1", "'1e1' is not allowed; allowed: a whole number from 2 to 1000 (one block has no spread)"),
        (
            "gemm.size: 8200",
            "8200 is not allowed; allowed: a whole number from 16 to 65536 elements, a multiple of 16 "
            "(fp8 multiplies in steps of 16; three larger matrices of fp64 fit no GPU)",
        ),
        ("localise.asked: 1", "1 is not allowed; allowed: true or false"),
        ('infiniband.devices: ""', f"'' is not allowed; allowed: {DEVICES}"),
        ("infiniband.devices: 7", f"7 is not allowed; allowed: {DEVICES}"),
        ("infiniband.devices: mlx5_0,mlx5_1", f"'mlx5_0,mlx5_1' is not allowed; allowed: {DEVICES}"),
        ("infiniband.devices: =mlx5_0", f"'=mlx5_0' is not allowed; allowed: {DEVICES}"),
        ("infiniband.devices: ^mlx5_0", f"'^mlx5_0' is not allowed; allowed: {DEVICES}"),
        ("infiniband.devices: mlx5_0:1", f"'mlx5_0:1' is not allowed; allowed: {DEVICES}"),
    ],
)
def test_a_mistake_is_named_with_file_line_value_and_what_is_allowed(line, text, tmp_path):
    with pytest.raises(LimitsError) as caught:
        read_file(overlay(tmp_path, "soak.hbm_s: 5", line))
    name = line.split(":", 1)[0]
    assert str(caught.value) == f"mine.yaml: parameters.{name} (line 4): {text}"


def test_not_a_number_is_refused_where_the_file_is_read(tmp_path):
    with pytest.raises(LimitsError, match=r"^mine.yaml: line 3, column 17: '\.nan' is not a finite number"):
        read_file(overlay(tmp_path, "nccl.block_s: .nan"))


@pytest.mark.parametrize("name", [name for name, parameter in PARAMETERS.items() if "number" in parameter.kind])
def test_both_ends_of_a_range_are_allowed_and_nothing_outside(name, tmp_path):
    parameter = PARAMETERS[name]
    assert parameter.least < parameter.most
    assert parameter.why
    for value in (parameter.least, parameter.most):
        assert read_file(overlay(tmp_path, f"{name}: {value}")).content.parameters == {name: value}
    for value in (parameter.least - parameter.step, parameter.most + parameter.step):
        with pytest.raises(LimitsError, match=r" is not allowed; allowed: a (whole )?number from "):
            read_file(overlay(tmp_path, f"{name}: {value}"))


def test_every_parameter_has_a_value_in_each_profile():
    for profile in ["base", *profile_names(shipped_dir())]:
        assert shipped_profile(profile).parameters.keys() == PARAMETERS.keys()


@pytest.mark.parametrize(
    ("changes", "deadline_s", "text"),
    [
        (
            {"train.resnet.depth": 49},
            300,
            "parameters.train.resnet.depth is 49; allowed: 18, 34, 50, 101, 152",
        ),
        (
            {"train.gpt2.num_heads": 11},
            300,
            "parameters.train.gpt2.width is 768, which train.gpt2.num_heads, 11, does not divide: heads share the width evenly",
        ),
        (
            {"train.llama.num_kv_heads": 5},
            300,
            "parameters.train.llama.num_heads is 32, which train.llama.num_kv_heads, 5, does not divide: as many heads share each key",
        ),
        (
            {"lora.num_heads": 24},
            300,
            "parameters.lora.width is 3584, which lora.num_heads, 24, does not divide: heads share the width evenly",
        ),
        (
            {"lora.warmup_steps": 60},
            300,
            "parameters.lora.warmup_steps is 60, not below lora.num_steps, 60: a warm-up comes to an end",
        ),
        (
            {"lora_model.sequence": 256, "lora_model.num_new_tokens": 256},
            300,
            "parameters.lora_model.num_new_tokens is 256, not below lora_model.sequence, 256: an answer comes after its prompt",
        ),
        (
            {"lora.reference": "12.71 no"},
            300,
            "parameters.lora.reference: 2 words, 1 of them no numbers; wants 'none', or one loss for each of 60 steps (lora.num_steps)",
        ),
        (
            {"nccl.latency_reference": "8 all_reduce"},
            300,
            "parameters.nccl.latency_reference: 8 all_reduce where a collective and its number of GPUs should stand, "
            "as in `all_reduce 8 64m 318.8 4g 365.4`; or 'none'",
        ),
        (
            {"nccl_sizes.reference": "all_reduce 8"},
            300,
            "parameters.nccl_sizes.reference: all_reduce 8 without a size and its figure, "
            "as in `all_reduce 8 64m 318.8 4g 365.4`; or 'none'",
        ),
        (
            {"train.block_s": 20},
            300,
            "parameters: a training by turns with reduction and without takes 203 s by these alone (train.warmup_s 3, train.block_s 20, "
            "train.num_blocks 5); allowed: half of deadline_s, 150 s",
        ),
        (
            {"nccl.block_s": 30},
            300,
            "parameters: a validation of nccl_scaling takes 2700 s by these alone (nccl.block_s 30, timing.num_blocks 7); "
            "allowed: half of deadline_s, 150 s",
        ),
        (
            {"gemm.preheat_s": 0.5, "gemm.num_blocks": 40},
            60,
            "parameters: a sustained GEMM takes 42.5 s by these alone (gemm.preheat_s 0.5, gemm.block_s 1, gemm.num_blocks 40); "
            "allowed: half of deadline_s, 30 s",
        ),
        (
            {"soak.nccl_s": 140},
            300,
            "parameters: a round of a soak takes 165 s by these alone (soak.gemm_s 20, soak.hbm_s 5, soak.nccl_s 140); "
            "allowed: half of deadline_s, 150 s",
        ),
        (
            {"nccl.medium_bytes": 2**33},
            300,
            "parameters.nccl.medium_bytes is 8589934592, above nccl.large_bytes, 4294967296: the second size is the smaller one",
        ),
        (
            {"soak.pulse_s": 5},
            300,
            "parameters.soak.pulse_s is 5, above soak.corruption_s, 1.67: there would be no pulse in the time of a work",
        ),
    ],
)
def test_parameters_that_leave_a_run_without_an_end_or_without_sense(changes, deadline_s, text):
    wanted = {name: value for name, value in BASE.items() if not name.startswith("soak") or "soak" in str(changes)}
    assert list(
        contradictions({**wanted, "corruption.seconds": 0.1, "nic.contact_s": 10, "localise.contact_s": 10, **changes}, deadline_s)
    ) == [text]


def test_such_parameters_are_found_once_the_files_are_merged(tmp_path):
    with pytest.raises(LimitsError) as caught:
        load_profile("h200-sxm", shipped_dir(), [overlay(tmp_path, "hbm.block_s: 40")])
    assert str(caught.value) == (
        "mine.yaml: parameters: the bandwidth of a memory takes 360 s by these alone (hbm.block_s 40, timing.num_blocks 7); "
        "allowed: half of deadline_s, 150 s"
    )


def test_a_drill_on_a_rank_that_is_not_there():
    asked = {**BASE, "memory.planted_words": 3, "memory.planted_rank": 8}
    said = "parameter memory.planted_rank=8: allowed: a rank of this job, 0 to 7; memory.planted_words=3 would be planted on nobody"
    assert drill_on_nobody(asked, world_size=8) == said
    assert drill_on_nobody(asked, world_size=9) is None
    assert drill_on_nobody({**asked, "memory.planted_words": 0}, world_size=8) is None


def test_the_drills_are_those_that_validations_ask_for():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "acceptance").glob("test_*.py"))]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "drill"]
    assert dict([ast.literal_eval(argument) for argument in call.args] for call in calls) == dict(DRILLS)


def test_what_a_validation_repeats_is_what_its_measurement_repeats():
    assert len(kernels.NAMES) * len(kernels.SIZES) == KERNEL_SHAPES
    assert len(memory_fill.PATTERNS) == MEMORY_PATTERNS
    assert inspect.signature(rates.measure_burst).parameters["num_bursts"].default == NUM_BURSTS
    assert len(nccl.LATENCY_SIZES) == LATENCY_SIZES
    assert len(nccl.curve_sizes(int(PARAMETERS["nccl_sizes.largest_bytes"].most))) == MOST_CURVE_SIZES
