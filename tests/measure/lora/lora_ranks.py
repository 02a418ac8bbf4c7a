"""One rank whose figures of acceptance/test_lora_convergence.py are printed as JSON: `sound`, of three ranks, then the first two of them
without the third, and the third alone; or of two ranks with each of the `faults`, and a small model that trains in the other ways.
Started by test_convergence.py.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

sys.path.append(str(Path(__file__).parents[3]))

from acceptance.test_lora_convergence import test_training
from fixtures import lora, training
from gpu_acceptance.measure.lora import convergence
from gpu_acceptance.measure.train import adapters
from gpu_acceptance.measure.train.models import CrossEntropy, Sharding
from gpu_acceptance.measure.train.shapes import Adapter, Decoder, Workload
from gpu_acceptance.measure.train.step import Schedule, TrainStep
from tests.judging import shipped_profile

FEW = {"lora.batch_size": 1}
SHORT = {**FEW, "lora.num_steps": 16, "lora.warmup_steps": 4}  # not enough to come to the floor
BAD_STEP = 12


def figures(fault: AbstractContextManager[object] | None = None, hopeless_s: float = math.inf, **changes: object) -> dict[str, object]:
    """Return the figures and curves of the shipped validation (metric, value, unit, detail), with the sizes for CPUs.

    `hopeless_s`: what a step may take.
    """
    checked, recorded, curves = list[object](), {}, {}
    parameter = {**shipped_profile("cpu").parameters, **changes}.__getitem__
    ranks = SimpleNamespace(device=torch.device("cpu"), rank=dist.get_rank(), num_nodes=1)

    def check(metric: str, value: object, unit: str, spread: object = None, detail: str = "") -> None:
        checked.append((metric, value if isinstance(value, bool | int | float | str) else None, unit, detail))

    def record(metric: str, value: object, unit: str) -> None:
        recorded[metric] = (value, unit)

    def record_curve(name: str, values: tuple[float, ...], unit: str) -> None:
        curves[name] = values

    check_model = training.check_model.__wrapped__(ranks, lambda *_: None, check, record, record_curve)
    with fault or nullcontext():
        test_training(
            lora.fine_tune.__wrapped__(ranks, parameter, SimpleNamespace(hopeless_s=lambda metric, work: hopeless_s)),
            check_trained=training.check_trained.__wrapped__(ranks, check_model, parameter, check),
            check_lora=lora.check_lora.__wrapped__(ranks, parameter, check, record, record_curve),
            parameter=parameter,
        )
    return {"checked": checked, "recorded": recorded, "curves": curves}


def own_gradients(change: Callable[[Tensor, int], None]) -> AbstractContextManager[object]:
    """Change the reduced gradients before they are clipped."""
    real = TrainStep._follow

    def follow(self: TrainStep, schedule: Schedule) -> None:
        for parameter in self._trained:
            change(parameter.grad, self.num_done)
        real(self, schedule)

    return patch.object(TrainStep, "_follow", follow)


def add_noise(gradient: Tensor, _: int) -> None:
    gradient.add_(0.01 * torch.randn_like(gradient))


def with_adapters_that_are(change: Callable[[nn.Module], None]) -> AbstractContextManager[object]:
    real = adapters.adapted

    def adapted(*arguments: Any) -> nn.Module:
        model = real(*arguments)
        change(model)
        return model

    return patch.object(adapters, "adapted", adapted)


def scaled_twice(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling = {name: 2 * scale for name, scale in layer.scaling.items()}


def trained_as_well(model: nn.Module) -> None:
    model.requires_grad_(True)


def with_targets(change: Callable[[Tensor, Tensor], Tensor]) -> AbstractContextManager[object]:
    """`change` makes them of the inputs and of what the targets should be."""
    real = convergence.drawn

    def drawn(*arguments: Any) -> tuple[Tensor, Tensor]:
        inputs, targets = real(*arguments)
        return inputs, change(inputs, targets)

    return patch.object(convergence, "drawn", drawn)


def a_loss_that_is_no_number(num_calls: int) -> AbstractContextManager[object]:
    """Make only the last loss NaN."""
    real, losses = CrossEntropy.forward, iter([1.0] * (num_calls - 1) + [math.nan])

    def forward(self: CrossEntropy, logits: Tensor, targets: Tensor) -> Tensor:
        return real(self, logits, targets) * next(losses, 1.0)

    return patch.object(CrossEntropy, "forward", forward)


def share_of_rank_0() -> AbstractContextManager[object]:
    real = convergence.Share
    return patch.object(convergence, "Share", lambda num_parts, _, world_size: real(num_parts, 0, world_size))


def faults(rank: int) -> dict[str, dict[str, object]]:
    """Faults on two ranks, trained for a short time unless the last losses must show them."""
    return {
        "every step is hopeless": figures(hopeless_s=0.0, **SHORT),
        "hopeless on rank 0 alone": figures(hopeless_s=1e9 if rank else 0.0, **SHORT),
        "rank 1 adds noise": figures(own_gradients(add_noise) if rank else None, **SHORT),
        "scaled twice": figures(with_adapters_that_are(scaled_twice), **SHORT),
        "base is trained": figures(with_adapters_that_are(trained_as_well), **SHORT),
        "rank 1 loses a loss": figures(a_loss_that_is_no_number(2 * BAD_STEP) if rank else None, **SHORT),
        "a gradient explodes": figures(own_gradients(lambda grad, step: grad.mul_(1e4 if step == BAD_STEP else 1)), **SHORT),
        "all train the share of rank 0": figures(share_of_rank_0(), **SHORT),
        "100 times as fast": figures(**SHORT, **{"lora.learning_rate": 0.5}),
        "labels are shifted": figures(with_targets(lambda _, targets: targets.roll(-1, dims=1)), **FEW, **{"lora.num_steps": 36}),
        "labels are what is seen": figures(with_targets(lambda inputs, _: inputs), **SHORT),
    }


@contextmanager
def world(store_file: str, name: str, rank: int, world_size: int) -> Iterator[None]:
    store = dist.PrefixStore(name, dist.FileStore(store_file, -1))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    yield
    dist.destroy_process_group()


def sound(rank: int, store_file: str) -> dict[str, object]:
    found = {}
    with world(store_file, "three", rank, 3):
        found["three"] = figures(**SHORT)
    if rank == 2:
        with world(store_file, "one", 0, 1):
            found["one"] = figures(**SHORT)
    else:
        with world(store_file, "two", rank, 2):
            reference = " ".join(map(str, found["three"]["curves"].get("lora_convergence.loss", ()))) or "none"
            found["two"] = figures(**SHORT, **{"lora.reference": reference})
            found["sound"] = figures()
    return found


# --- other ways, of a smaller model ----------------------------------------------------------------------------------------------

SMALL = Workload("qwen2", Decoder("qwen2", 2, 128, 4, 256, 32, 2, 128, 0.1, Adapter(8, 16)), 2, "lora.batch_size")
SCHEDULE = Schedule(16, 2, 5e-3)
HOW: dict[str, Any] = {"num_parts": 4, "device": torch.device("cpu")}


def tuned(**options: Any) -> convergence.LoraResult:
    return convergence.measure(SMALL, SCHEDULE, compiled=False, **HOW, **options)


def spoiled(load: Callable[..., None]) -> Callable[..., None]:
    """One number of one adapter comes back as another."""

    def faulty(module: torch.nn.Module, folder: Path, **how: bool) -> None:
        load(module, folder, **how)
        adapters.trained(module)[0].view(-1)[0] += 1

    return faulty


def modes(folder: Path) -> dict[str, object]:
    sharding = Sharding(init_device_mesh("cpu", (dist.get_world_size(),)))
    by_ddp = tuned()
    ways = {"alone": tuned(alone=True), "fsdp": tuned(sharding=sharding), "recomputed": tuned(recomputes=True)}
    with own_gradients(lambda gradient, _: gradient.add_(torch.randn_like(gradient))) if dist.get_rank() else nullcontext():
        ways["noisy"] = tuned(alone=True)
    for name in ("sound", "spoiled"):
        (folder / name).mkdir(parents=True)
    answer = {
        "departures": {way: convergence.departure(found.trained.losses, by_ddp.trained.losses) for way, found in ways.items()},
        "digests": {way: found.tuned.digest for way, found in ways.items()},
        "scales": {way: found.tuned.scale for way, found in ways.items()},
        "base_changed": [found.tuned.base_changed for found in ways.values()],
        "optimizer_bytes": [by_ddp.trained.optimizer_bytes, ways["fsdp"].trained.optimizer_bytes],
        "num_samples": {way: found.trained.workload.batch_size for way, found in ways.items()},
        "saved": vars(convergence.measure_saved(SMALL, SCHEDULE, folder / "sound", **HOW)),
        "files": sorted(path.name for path in (folder / "sound").iterdir()),
    }
    with patch.object(adapters, "load", spoiled(adapters.load)):
        answer["spoiled"] = vars(convergence.measure_saved(SMALL, SCHEDULE, folder / "spoiled", **HOW))
    return answer


def main(rank: int, store_file: str, what: str) -> None:
    if what == "sound":
        print(json.dumps(sound(rank, store_file)))
        return
    with world(store_file, "two", rank, 2):
        print(json.dumps({**faults(rank), "modes": modes(Path(f"{store_file}.{rank}"))}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
