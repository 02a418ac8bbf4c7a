"""Read how fast Llama-3-8B trains under FSDP2 by several recipes, in one sitting: what each change to the train step of the suite is worth.

    torchrun --nproc-per-node gpu tools/gpu/fsdp_recipes.py plain cudnn cudnn+fused+batch=2 ... plain [--profile=plain] [--device=cpu]

A recipe is a list of changes, joined by `+`; `plain` has none and is what `fsdp` measures: give it first and last. Each trains the same
model from the same weights by the measure of the suite. Prints JSON lines from rank 0: rate of one GPU, MFU, memory, first and last loss;
with --profile also the kernels that take most of a step. pytest does not collect this file.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
import transformers
from readings import say  # first of ours: it finds the checkout
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from train_readings import SHAPES, of

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure.train import models, throughput
from gpu_acceptance.measure.train.shapes import Decoder, Workload

SMALL = Decoder("llama", 2, 64, 4, 512, 128, num_kv_heads=2, mlp_width=128)
_PIECE = 2_048  # tokens whose softmax is in fp32 at once


@dataclass
class Recipe:
    """Differences from the suite's own step."""

    batch_size: int = 1
    reshards: bool = True
    attend: Callable[..., Tensor] | None = None  # query, key, value of as many heads each
    is_fused: bool = False  # the loss from hidden states
    in_fp8: bool = False  # the projections of each layer
    layers_at_once: int = 1  # gathered and reduced together
    reduce_dtype: torch.dtype = torch.float32
    mode: str | None = None  # of torch.compile


def _backends(cudnn: bool, flash: bool) -> None:
    """Choose between torch's kernels of attention: all that is not named is off, so that nothing slower is taken in silence."""
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    torch.backends.cuda.enable_flash_sdp(flash)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def _cudnn(recipe: Recipe) -> None:
    _backends(cudnn=True, flash=False)


def _flash(recipe: Recipe) -> None:
    _backends(cudnn=False, flash=True)


def _wide(recipe: Recipe) -> None:
    recipe.attend = lambda query, key, value, scale: nn.functional.scaled_dot_product_attention(
        query, *(one.repeat_interleave(query.shape[1] // one.shape[1], dim=1) for one in (key, value)), is_causal=True, scale=scale
    )


CHANGES: dict[str, Callable[[Recipe], object]] = {
    "plain": lambda recipe: None,
    "cudnn": _cudnn,  # attention by cuDNN alone
    "flash": _flash,  # by torch's FlashAttention alone
    "wide": _wide,  # keys and values repeated for each head of the query, where a kernel knows no groups
    "kept": lambda recipe: setattr(recipe, "reshards", False),  # parameters stay gathered from forward to backward
    "fused": lambda recipe: setattr(recipe, "is_fused", True),  # no logits in fp32, and none kept
    "fp8": lambda recipe: setattr(recipe, "in_fp8", True),  # projections by torch's scaled products; the loss must fall as well
    "pairs": lambda recipe: setattr(recipe, "layers_at_once", 2),
    "reduce16": lambda recipe: setattr(recipe, "reduce_dtype", torch.bfloat16),  # what fp32 in the reduction costs; not to be shipped
    "tuned": lambda recipe: setattr(recipe, "mode", "max-autotune-no-cudagraphs"),
    "batch=2": lambda recipe: setattr(recipe, "batch_size", 2),
    "batch=3": lambda recipe: setattr(recipe, "batch_size", 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train Llama-3-8B under FSDP2 by several recipes; print JSON lines.")
    parser.add_argument("recipes", nargs="+", metavar="CHANGE+CHANGE", help=f"of {', '.join(CHANGES)}")
    parser.add_argument("--profile", action="append", default=[], metavar="RECIPE", help="name the kernels of this one, too")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--num-blocks", type=int, default=3)
    options = parser.parse_args()
    device = torch.device(options.device, *([int(os.environ["LOCAL_RANK"])] if options.device == "cuda" else []))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    say({"versions": versions.read(), "world_size": dist.get_world_size()})
    for name in options.recipes:
        with as_it_was():
            say({"recipe": name, **train(name, device, options)})
        if device.type == "cuda":
            torch.cuda.empty_cache()
    dist.destroy_process_group()


@contextmanager
def as_it_was() -> Iterator[None]:
    """Undo what a recipe changed in the modules of the suite, and in torch."""
    kept = {(where, name): getattr(where, name) for where, name in _CHANGED}
    yield
    for (where, name), value in kept.items():
        setattr(where, name, value)
    transformers.AttentionInterface.register(models._ATTENTION, models._attend)
    for enable in ("cudnn", "flash", "mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{enable}_sdp")(True)


_CHANGED = [(throughput, "build"), (models, "blocks_of"), (throughput, "compile_by_blocks")]
_CHANGED += [(models, "_IN_BF16"), (models.Loss, "forward")]


def train(name: str, device: torch.device, options: argparse.Namespace) -> dict[str, object]:
    """Return one line; of a failure its text. Collective."""
    recipe = Recipe()
    for change in name.split("+"):
        CHANGES[change](recipe)
    change_suite(recipe)
    shape = SHAPES["llama"] if device.type == "cuda" else SMALL
    workload = Workload("llama", shape, recipe.batch_size, "BATCH")
    times = throughput.Times(warmup_s=3.0, block_s=1.0, num_blocks=options.num_blocks, min_iterations=4)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    sharding = models.Sharding(mesh, reshards=recipe.reshards)
    try:
        found = throughput.measure_fsdp(workload, sharding, device=device, compiled=device.type == "cuda", times=times)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1_500]}
    trained = found.trained
    kernels = profiled(workload, sharding, device) if name in options.profile else {}
    return {
        **of(trained),
        "step_s": round(trained.step_s, 4),
        "losses": [round(trained.losses[at], 4) for at in (0, 1, 4, -1)],
        "exposed_s": found.overlap and found.overlap.exposed_s,
        **kernels,
    }


def change_suite(recipe: Recipe) -> None:
    """Put the recipe in the place of what the suite does."""
    build, blocks_of = throughput.build, models.blocks_of
    if recipe.attend:
        attend = recipe.attend

        def attended(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **options: object) -> tuple[Tensor, None]:
            return attend(query, key, value, options.get("scaling")).transpose(1, 2).contiguous(), None

        transformers.AttentionInterface.register(models._ATTENTION, attended)
    if recipe.in_fp8:
        throughput.build = lambda shape, where: in_fp8(build(shape, where))
    if recipe.is_fused:
        models.Loss.forward = fused_loss
    if recipe.mode or recipe.layers_at_once > 1:  # `blocks_of` gives pairs then, which are no modules
        throughput.compile_by_blocks = lambda module: compile_with(module, recipe.mode, blocks_of)
    if (many := recipe.layers_at_once) > 1:
        models.blocks_of = lambda module: [blocks_of(module)[first : first + many] for first in range(0, len(blocks_of(module)), many)]
    models._IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=recipe.reduce_dtype)


def compile_with(module: nn.Module, mode: str | None, blocks_of: Callable[[nn.Module], list[nn.Module]]) -> None:
    for part in [*blocks_of(module), *(one for one in module.modules() if isinstance(one, models.CrossEntropy))]:
        part.compile(mode=mode) if mode else part.compile()


def fused_loss(self: models.Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the next token, from hidden states: of logits only bf16 is ever kept, and that as their gradient."""
    hidden = self.model.model(inputs).last_hidden_state
    return _FromHidden.apply(hidden.flatten(0, -2), self.model.lm_head.weight, targets.flatten())


class _FromHidden(torch.autograd.Function):
    """Linear layer and cross entropy in one. The gradient of the logits, over their own memory, is made in the forward."""

    @staticmethod
    def forward(ctx, hidden_TH: Tensor, weight_VH: Tensor, targets_T: Tensor) -> Tensor:
        logits_TV = hidden_TH @ weight_VH.t()
        losses = [_softmax_less_target(logits, targets) for logits, targets in _pieces(logits_TV, targets_T)]
        logits_TV /= len(targets_T)
        ctx.save_for_backward(hidden_TH, weight_VH, logits_TV)
        return torch.cat(losses).mean()

    @staticmethod
    def backward(ctx, above: Tensor):
        hidden_TH, weight_VH, gradient_TV = ctx.saved_tensors
        return above * (gradient_TV @ weight_VH), above * (gradient_TV.t() @ hidden_TH), None


def _pieces(logits_TV: Tensor, targets_T: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(logits_TV.split(_PIECE), targets_T.split(_PIECE), strict=True)


def _softmax_less_target(logits: Tensor, targets: Tensor) -> Tensor:
    return (_compiled_softmax if logits.is_cuda else _softmax)(logits, targets)


def _softmax(logits: Tensor, targets: Tensor) -> Tensor:
    """Write the gradient of each token's loss over its logits; return the losses in fp32."""
    exact = logits.float()
    sums = exact.logsumexp(-1, keepdim=True)
    losses = sums.squeeze(-1) - exact.gather(-1, targets[:, None]).squeeze(-1)
    is_target = torch.arange(exact.shape[-1], device=exact.device) == targets[:, None]
    logits.copy_((exact - sums).exp() - is_target.float())
    return losses


_compiled_softmax = torch.compile(_softmax)


def in_fp8(loss: models.Loss) -> models.Loss:
    """Compute the projections of all layers in fp8, with a scale for each tensor of each step; embedding and head stay in bf16."""
    for block in models.blocks_of(loss):
        for linear in (one for one in block.modules() if isinstance(one, nn.Linear)):
            linear.forward = lambda inputs, linear=linear: _InFp8.apply(inputs.flatten(0, -2), linear.weight).unflatten(
                0, inputs.shape[:-1]
            )
    return loss


class _InFp8(torch.autograd.Function):
    """A product of e4m3 by e4m3, its gradients of e5m2 by e4m3; sums are in fp32 and the results in bf16."""

    @staticmethod
    def forward(ctx, inputs_TI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(inputs_TI, weight_OI)
        return _product(inputs_TI, weight_OI.t(), torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx, above_TO: Tensor):
        inputs_TI, weight_OI = ctx.saved_tensors
        return _product(above_TO, weight_OI, torch.float8_e5m2), _product(above_TO.t(), inputs_TI, torch.float8_e5m2)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return left @ right: the left one row by row, the right one column by column in memory, as cuBLAS wants fp8."""
    left8, left_scale = _scaled(left, dtype)
    right8, right_scale = _scaled(right.t(), torch.float8_e4m3fn)
    scales = {"scale_a": left_scale, "scale_b": right_scale}
    return torch._scaled_mm(
        left8.contiguous(), right8.contiguous().t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=dtype is right8.dtype
    )


def _scaled(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = tensor.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (tensor.float() / scale).to(dtype), scale


def profiled(workload: Workload, sharding: models.Sharding, device: torch.device) -> dict[str, object]:
    """Return the kernels of this rank that take most of a step, in ms. Collective."""

    def wrap(model: nn.Module) -> nn.Module:
        throughput.compile_by_blocks(model)
        return models.sharded(model, sharding)

    with throughput.tuned(workload, device):
        training = throughput.Training(workload, dist.get_rank(), device, wrap, autocast=False)
        for _ in range(3):
            training.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(2):
                training.step()
            torch.cuda.synchronize(device)
    kernels = sorted(seen.key_averages(), key=lambda one: -one.device_time_total)[:40]
    return {"kernels_ms": {one.key[:90]: round(one.device_time_total / 2e3, 2) for one in kernels}}


if __name__ == "__main__":
    main()
