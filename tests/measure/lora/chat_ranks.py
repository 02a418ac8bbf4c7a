"""One rank of two: the figures of acceptance/test_lora_model.py as JSON, sound and with each fault. Started by test_chat.py."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from lora_ranks import add_noise, own_gradients, scaled_twice, trained_as_well, with_adapters_that_are
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[3]))

from acceptance.test_lora_model import test_fine_tuning
from fixtures import lora_model
from gpu_acceptance.measure.collectives import texts_over_ranks
from gpu_acceptance.measure.lora import chat, packing
from gpu_acceptance.measure.lora.packing import IGNORED, Tokens
from gpu_acceptance.measure.lora.scoring import ScoreError
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.worker.options import Paths
from tests.judging import shipped_profile

CPU = torch.device("cpu")
SHORT = {"asked": True, "num_steps": 3, "warmup_steps": 1, "num_parts": 2, "num_prompts": 3, "num_new_tokens": 4, "num_held_out": 12}


def figures(model: Path, data: Path, fault: AbstractContextManager[object] | None = None) -> dict[str, object]:
    """Return the figures that the shipped validation checks (metric, value, unit, detail), and its error."""
    checked, error = list[object](), ""
    changed = {f"lora_model.{name}": size for name, size in SHORT.items()}
    parameter = {**shipped_profile("cpu").parameters, **changed}.__getitem__
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ranks = SimpleNamespace(
        device=CPU, rank=rank, world_size=world_size, local_world_size=world_size, paths=Paths(lora_model=model, lora_data=data)
    )
    ranks.gather = lambda _, text: texts_over_ranks(text, CPU)

    def check(metric: str, value: object, unit: str, spread: object = None, detail: str = "") -> None:
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


def filled_with(change: Callable[[list[Tokens], Tensor, Tensor], None]) -> AbstractContextManager[object]:
    """`change` makes others of positions and targets, in place."""
    real = packing.filled

    def filled(row: list[Tokens], *sizes: int) -> tuple[Tensor, Tensor]:
        inputs, targets = real(row, *sizes)
        change(row, inputs[1], targets)
        return inputs, targets

    return patch.object(packing, "filled", filled)


def learn_prompts(row: list[Tokens], _: Tensor, targets: Tensor) -> None:
    learned = [target for tokens in row for target in (*tokens.ids[1:], IGNORED)]
    targets[: len(learned)] = torch.tensor(learned)


@contextmanager
def others_are_seen() -> Iterator[None]:
    """By a model to which it matters what it attends to; one that has hardly learned anything loses 0.5 % by it."""
    real = chat.load

    def load(*arguments: Any, **options: Any) -> chat.TokenLoss:
        module = real(*arguments, **options)
        for name, weight in module.named_parameters():
            weight.data *= 20 if "self_attn" in name else 2 if name.endswith("model.norm.weight") else 1
        return module

    with patch.object(chat, "load", load), filled_with(lambda _, positions, __: positions.copy_(torch.arange(len(positions)))):
        yield


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
        "prompts_count": filled_with(learn_prompts),
        "others_are_seen": others_are_seen(),
        "base_not_frozen": with_adapters_that_are(trained_as_well),
        "scaled_twice": with_adapters_that_are(scaled_twice),
        "not_synchronised": own_gradients(add_noise) if dist.get_rank() else None,
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
