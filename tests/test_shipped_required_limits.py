"""Each shipped profile judges all that it requires, and declares what it does not judge."""

import pytest

from gpu_acceptance.measure.collectives import NAMES
from gpu_acceptance.thresholds.limit import matching_reason
from gpu_acceptance.thresholds.profile import load_profile
from tests.shipped import (
    ALONE,
    BEHIND_A_SWITCH,
    COLLECTIVES,
    DEVICES,
    DIRECTORY,
    EVERYTHING,
    FSDP_WAYS,
    HAS_LINK_READINGS,
    HAS_P2P_READINGS,
    OTHERS,
    TRAINED,
    WITH_DDP,
)

pytestmark = pytest.mark.repository

WITHOUT_NVLINK = EVERYTHING - {"nccl", "nccl_ring", "nccl_sizes", "ddp_scaling"}
REQUIRED = {
    "a100-pcie": WITHOUT_NVLINK,
    "a10g": WITHOUT_NVLINK - {"hbm"},
    "h100-pcie": WITHOUT_NVLINK,
    "cpu": EVERYTHING - {"binding", "counters", "gpu_health"} | {"nic"},
}
IN_PCIE_SLOTS = {"a100-pcie", "a10g", "h100-pcie"}  # what a collective costs there depends on the host
KERNELS = ("add", "copy", "read", "scale", "triad", "write")
CORRUPTION = ("inputs.changed", "kernels.run", "peers.hash", "planted.flips", "repeats.mismatches")
SOAK = ("load.fraction", "gemm.error", *(f"{work}.{what}" for work in ("gemm", "hbm", "nccl") for what in ("wrong", "drift")))
SOAK += tuple(f"corruption.{name}" for name in ("inputs.changed", "peers.hash", "repeats.mismatches"))
LORA = ("parameters", "flop_per_sample", "loss_ratio", "first_loss", "excess", "rise", "not_finite", "gradient_norm")
LORA += ("trainable", "samples_missing", "scale", "base_changed", "weights")
LORA_MODES = tuple(f"{way}.{what}" for way in ("fsdp", "recomputed") for what in ("departure", "weights", "base_changed"))
LORA_MODES += ("alone.departure", "alone.base_changed", "saved.loss_error", "saved.loss_ratio")
PARITY = ("loss_ratio", *(f"{way}.{what}" for way in ("ddp", "fsdp") for what in ("loss_first", "loss", "gradient_norm", "weights")))
THERMAL = tuple(f"throttle.{name}" for name in ("hw_thermal", "hw_slowdown", "hw_power_brake", "sw_thermal", "unknown"))
THERMAL += (
    "utilisation.mean",
    "clock.memory_min",
    "clock.cv",
    "temperature.margin_min",
    "sampling.rate",
    "sampling.longest_gap",
    "sampling.unread",
)
CHECKPOINT = ("directory.shared", "planted.bytes")
CHECKPOINT += tuple(
    f"{way}.{name}"
    for way in ("ddp", "fsdp", "lora")
    for name in ("files.changed", "tensors.changed", "losses.differing", "fewer.tensors_changed", "fewer.loss_error")
)
TELLS_NO_MARGIN = {"a100-pcie", "a100-sxm", "a10g"}
SAMPLER = ("samples.missing", "samples.repeated", "padding.difference", "epochs.same_order", "workers.missing", "workers.left")
SAMPLER += ("step.data_wait_fraction",)
NVLS = {"nccl.all_reduce.algorithm", "nccl.transport.intranode", "nccl.network.staged"}
PHYSICS = {"cpu": set(), "a100-sxm": NVLS - {"nccl.all_reduce.algorithm"}, "b200": NVLS, "h100-sxm": NVLS, "h200-sxm": NVLS}


def training(name):
    """Return the metrics of training that must be judged: content everywhere, rates that have a source."""
    wanted = {f"{one}.{what}" for one in (*TRAINED, *FSDP_WAYS) for what in ("parameters", "flop_per_sample", "loss_ratio")}
    wanted |= {f"{one}.held" for one in ("fsdp.llama", "fsdp_variants.memory", *FSDP_WAYS)} | {"fsdp_variants.hybrid.weights"}
    wanted |= {f"{one}.{what}" for one in WITH_DDP for what in ("unexplained", "weights")}
    if name not in IN_PCIE_SLOTS:
        wanted |= {f"{one}.communication_efficiency" for one in WITH_DDP} | {"ddp_scaling.gpt2.efficiency_all"}
    if name != "cpu":
        wanted |= {f"{one}.mfu" for one in TRAINED} | {f"{one}.busy" for one in ALONE}
    by_name = {"a100-sxm": ("train_single.resnet", "ddp.resnet"), "h100-sxm": ("fsdp.llama",), "h200-sxm": TRAINED, "cpu": TRAINED}
    wanted |= {f"{one}.throughput" for one in by_name.get(name, ())}
    wanted |= {f"{one}.compute" for one in WITH_DDP if name in {"h200-sxm", "cpu"}}
    return wanted | {f"{one}.compute_per_clock" for one in WITH_DDP if name == "h200-sxm"}


LACKS = {"a100-pcie": {"fp8"}, "a100-sxm": {"fp8"}, "a10g": {"fp8"}, "cpu": {"tf32"}}
RATES = {  # of `gemm`, and whether there are any of `gemm_dtypes`: all other profiles declare them
    "a100-sxm": ({"bf16.best"}, False),
    "h100-sxm": ({"bf16.best", "bf16.burst", "bf16.cycle_efficiency", "fp8.best"}, False),
    "h200-sxm": ({"bf16.best", "bf16.burst", "bf16.cycle_efficiency", "fp8.best"}, True),
    "cpu": ({"bf16.best", "bf16.burst", "fp8.best"}, True),
}


def products(name):
    """Return the metrics of matrix products that must be judged: content of every dtype of the device, rates that have a source."""
    of_bf16, of_others = RATES.get(name, (set(), False))
    others = [dtype for dtype in OTHERS if dtype not in LACKS.get(name, ())]
    wanted = {"gemm.bf16.sustained", *(f"gemm.{rate}" for rate in of_bf16)}
    wanted |= {f"gemm.{dtype}.{what}" for dtype in ("bf16", "fp8") for what in ("error", "wrong") if dtype not in LACKS.get(name, ())}
    wanted |= {f"gemm_dtypes.{dtype}.{what}" for dtype in others for what in ("error", "wrong")}
    if of_others:
        wanted |= {f"gemm_dtypes.{dtype}.sustained" for dtype in others}
        wanted |= {f"gemm_dtypes.{dtype}.best" for dtype in others if dtype != "fp8"}
    return wanted


def links(name):
    """The metrics of links between GPUs, and between a GPU and its host, that this profile judges."""
    wanted = {f"p2p.{mode}.wrong" for mode in ("unidirectional", "bidirectional", "latency")}
    wanted |= {f"p2p.{mode}.{way}.bandwidth" for mode in HAS_P2P_READINGS.get(name, ()) for way in ("out", "in")}
    if name in BEHIND_A_SWITCH:
        wanted |= {"p2p.unidirectional.path", "p2p.bidirectional.path"}
    if name in HAS_LINK_READINGS:
        wanted |= {f"pcie.{direction}.bandwidth" for direction in ("h2d", "d2h")}
    return wanted


def rates_of_collectives(name):
    """The rates of collectives that this profile judges beside those of `nccl` at 4 GiB."""
    return {
        "cpu": {
            *("nccl_ring.all_reduce.busbw", "nic.loopback.bandwidth", "nic.loopback.wrong", "nic.share.wrong"),
            *(f"nccl.{one}.busbw_medium" for one in COLLECTIVES),
            *(f"nccl_sizes.{one}.busbw" for one in NAMES),
        },
        "h200-sxm": {
            "nccl.all_reduce.busbw_medium",
            "nccl_ring.all_reduce.busbw",
            *(f"nccl_sizes.{one}.busbw" for one in (*COLLECTIVES, "all_to_all", "send_recv")),
        },
    }.get(name, set())


@pytest.mark.parametrize("name", [*DEVICES, "cpu"])
def test_required_subjects_have_all_their_limits(name):
    profile = load_profile(name, DIRECTORY)
    assert profile.requires == REQUIRED.get(name, EVERYTHING)
    wanted = {"memory.fill.wrong", "memory.fill.fraction", "memory.planted.words", *(f"corruption.{name}" for name in CORRUPTION)}
    wanted |= products(name)
    wanted |= {f"sampler.{one}" for one in SAMPLER}
    wanted |= {
        f"failure_propagation.{way}.{what}"
        for way in (("kill",) if name == "cpu" else ("exit", "kill"))
        for what in ("end_s", "processes_left", "misnamed")
    }
    wanted |= {f"hbm.{kernel}.wrong" for kernel in KERNELS} | {f"nccl.{collective}.wrong" for collective in COLLECTIVES}
    wanted |= {f"nccl_sizes.{collective}.wrong" for collective in NAMES} | {
        "nccl_exact.elements.wrong",
        "nccl_exact.planted.elements",
        "nccl_ring.all_reduce.wrong",
    }
    wanted |= set() if name == "cpu" else {"nccl_ring.all_reduce.algorithm"}
    wanted |= {f"pcie.{direction}.wrong" for direction in ("h2d", "d2h", "bidirectional")}
    wanted |= PHYSICS.get(name, {"nccl.network.staged"})
    wanted |= {f"soak.{name}" for name in (*SOAK, *(() if name == "cpu" else THERMAL))}
    wanted -= {"soak.temperature.margin_min"} if name in TELLS_NO_MARGIN else set()
    wanted |= {f"checkpoint.{name}" for name in CHECKPOINT} | training(name)
    wanted |= {f"parity.{dtype}.{what}" for dtype in ("fp32", "bf16") for what in PARITY}
    wanted |= {f"lora_modes.{what}" for what in LORA_MODES}
    wanted |= {f"lora_convergence.{what}" for what in LORA} | {
        "cpu": {"lora_convergence.throughput"},
        "h200-sxm": {"lora_convergence.throughput", "lora_convergence.mfu"},
    }.get(name, {"lora_convergence.mfu"})
    wanted |= links(name) | rates_of_collectives(name)
    if "hbm" in profile.requires:
        wanted |= {f"hbm.{kernel}.bandwidth" for kernel in KERNELS}
    if "nccl" in profile.requires:
        wanted |= {f"nccl.{collective}.busbw" for collective in COLLECTIVES}
    assert wanted <= {metric for metric in profile.limits if not matching_reason(metric, profile.not_applicable)}
