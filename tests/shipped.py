"""The shipped profiles: their GPUs, and what they judge."""

from pathlib import Path

from gpu_acceptance.thresholds.profile import load_profile, shipped_dir

DIRECTORY = shipped_dir()
ROOT = Path(__file__).resolve().parents[1]
DEVICES = {
    "a100-pcie": "NVIDIA A100 80GB PCIe",
    "a100-sxm": "NVIDIA A100-SXM4-80GB",
    "a10g": "NVIDIA A10G",
    "b200": "NVIDIA B200",
    "h100-pcie": "NVIDIA H100 PCIe",
    "h100-sxm": "NVIDIA H100 80GB HBM3",
    "h200-sxm": "NVIDIA H200",
}
SUBJECTS = {path.stem.removeprefix("test_") for path in (ROOT / "acceptance").glob("test_*.py")}
ON_REQUEST = {subject for subject in SUBJECTS if f"{subject}.*" in load_profile("base", DIRECTORY).not_applicable}
EVERYTHING = SUBJECTS - ON_REQUEST - {"connectivity", "nccl_scaling"} | {"counters"}  # one node has no others to reach
BOTH = {"unidirectional", "bidirectional"}
HAS_P2P_READINGS = {"cpu": BOTH, "h200-sxm": BOTH, "h100-sxm": {"unidirectional"}}
BEHIND_A_SWITCH = {"a100-sxm", "b200", "h100-sxm", "h200-sxm"}  # of NVLink: paths between all pairs of GPUs are alike
HAS_LINK_READINGS = {"cpu", "h200-sxm"}  # all others declare that the rate of their host link has no limit
ALONE, WITH_DDP = ("train_single.gpt2", "train_single.resnet"), ("ddp.gpt2", "ddp.resnet", "ddp_short.gpt2")
FSDP_WAYS = tuple(f"fsdp_variants.{way}" for way in ("by_block", "whole", "keeping", "offloaded", "hybrid"))
TRAINED = (*ALONE, *WITH_DDP, "fsdp.llama")
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")
OTHERS = ("fp16", "tf32", "fp32", "fp64", "fp8")  # what `gemm_dtypes` measures; fp8 is in `gemm` too
