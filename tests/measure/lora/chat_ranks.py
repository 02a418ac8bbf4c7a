"""One rank of two: the figures of acceptance/test_lora_model.py as JSON, sound and with each fault. Started by test_chat.py."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from lora_ranks import with_adapters_that_are
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[3]))

from acceptance.test_lora_model import test_fine_tuning
from fixtures import lora_model
from gpu_acceptance.measure.collectives import texts_over_ranks
from gpu_acceptance.measure.lora.calls import ScoreError
from gpu_acceptance.measure.lora.packing import Packed, Tokens
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.tuned import LrSchedule
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from gpu_acceptance.worker.options import Paths

CPU = torch.device("cpu")
SHORT = {"asked": True, "num_steps": 3, "warmup_steps": 1, "num_parts": 2, "num_prompts": 3, "num_new_tokens": 4, "num_held_out": 12}


def figures(model: Path, data: Path, fault: AbstractContextManager[object] | None = None) -> dict[str, object]:
    """Return the figures that the shipped validation checks (metric, value, unit, detail), and its error."""
    checked, error = list[object](), ""
    changed = {f"lora_model.{name}": size for name, size in SHORT.items()}
    parameter = {**load_profile("cpu", shipped_dir()).parameters, **changed}.__getitem__
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ranks = SimpleNamespace(
        device=CPU, rank=rank, world_size=world_size, local_world_size=world_size, paths=Paths(lora_model=model, lora_data=data)
    )
    ranks.gather = lambda _, text: texts_over_ranks(text, CPU)

    def check(metric: str, value: object, unit: str, spread_percent: float | None = None, detail: str = "") -> None:
        checked.append((metric, value, unit, detail))

    def ignore(*_: object) -> None:
        """Nobody judges it."""

    with fault or nullcontext():
        try:
            test_fine_tuning(
                lora_model.fine_tune_checkpoint.__wrapped__(ranks, parameter, Path(mkdtemp())),
                lora_model.check_checkpoint.__wrapped__(ranks, parameter, check, ignore, ignore),
            )
        except (ScoreError, RuntimeError) as raised:
            error = str(raised)
    return {"checked": checked, "error": error}


def added(change: Callable[[Packed, Tokens], None]) -> AbstractContextManager[object]:
    real = Packed.add

    def add(self: Packed, tokens: Tokens) -> None:
        real(self, tokens)
        change(self, tokens)

    return patch.object(Packed, "add", add)


def learn_prompts(packed: Packed, tokens: Tokens) -> None:
    packed.targets[-len(tokens.ids) :] = [*tokens.ids[1:], -100]


def see_others(packed: Packed, _: Tokens) -> None:
    packed.positions[:] = range(len(packed.ids))


def unfreeze(model: nn.Module) -> None:
    model.requires_grad_(requires_grad=True)


def scale_twice(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling = {name: 2 * scale for name, scale in layer.scaling.items()}


def noise_on_rank_1() -> AbstractContextManager[object]:
    real = LrSchedule._prepare

    def noisy(schedule: LrSchedule, optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        real(schedule, optimizer, *arguments)
        for parameter in optimizer.param_groups[0]["params"] if dist.get_rank() == 1 else ():
            parameter.grad.add_(torch.randn(parameter.grad.shape))

    return patch.object(LrSchedule, "_prepare", noisy)


def spoiled_on_its_way() -> AbstractContextManager[object]:
    real = adapters.load

    def load(module: nn.Module, folder: Path, **how: bool) -> None:
        real(module, folder, **how)
        trained: Tensor = adapters.trained(module)[0]
        trained.add_(1)

    return patch.object(adapters, "load", load)


def of(model: Path, data: Path, other: Path) -> dict[str, object]:
    faults = {
        "sound": None,
        "prompts_count": added(learn_prompts),
        "others_are_seen": added(see_others),
        "base_not_frozen": with_adapters_that_are(unfreeze),
        "scaled_twice": with_adapters_that_are(scale_twice),
        "not_synchronised": noise_on_rank_1(),
        "spoiled": spoiled_on_its_way(),
    }
    found: dict[str, object] = {name: figures(model, data, fault) for name, fault in faults.items()}
    found["other_data"] = figures(model, other if dist.get_rank() else data)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=int(sys.argv[1]), world_size=2)
    print(json.dumps(of(*map(Path, sys.argv[3:]))), flush=True)
    dist.destroy_process_group()
