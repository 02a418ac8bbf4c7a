"""Rules between parameters, and the two parameters that are texts: reference losses and reference figures by message size."""

import math
import re
from collections.abc import Callable, Iterator, Mapping

from gpu_acceptance.thresholds.limit import Value, show
from gpu_acceptance.thresholds.parameters import DRILLS

NO_REFERENCE = "none"
_NUMBER = re.compile(r"\d+(\.\d+)?")
_NAME = re.compile(r"[a-z][a-z_]{2,30}")
_GPUS = re.compile(r"[1-9][0-9]{0,3}")
_SIZE = re.compile(r"([1-9][0-9]{0,5})([bkmg])")
_FIGURE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}

Curve = Mapping[int, float]  # by bytes
KERNEL_SHAPES = 42  # 14 kernels at 3 shapes
MEMORY_PATTERNS = 6
NUM_BURSTS = 15
LATENCY_SIZES = 3
MOST_CURVE_SIZES = 7  # from 8 B to 128 GiB
_CALIBRATION = 2  # blocks: to warm up, and to find their length
_SINGLES = 1  # a block more, of operations that are timed one by one
_WAYS = 2  # on a CPU, to send and to receive are waited for one after the other
_OF_DEADLINE = 0.5

_SMALLER = (  # the smaller of two parameters, the larger one, and whether they may be equal
    ("nccl.medium_bytes", "nccl.large_bytes", True, "the second size is the smaller one"),
    ("soak.pulse_s", "soak.corruption_s", True, "there would be no pulse in the time of a work"),
    ("lora.warmup_steps", "lora.num_steps", False, "a warm-up comes to an end"),
    ("lora_modes.warmup_steps", "lora_modes.num_steps", False, "a warm-up comes to an end"),
    ("lora_model.warmup_steps", "lora_model.num_steps", False, "a warm-up comes to an end"),
    ("lora_model.num_new_tokens", "lora_model.sequence", False, "an answer comes after its prompt"),
)


def reference_of(words: str, num_steps: int) -> list[float]:
    """Its losses; empty where there is none. Raises ValueError where they are no losses, or not of so many steps."""
    if words == NO_REFERENCE:
        return []
    losses = [float(word) if _NUMBER.fullmatch(word) else math.nan for word in words.split()]
    if len(losses) != num_steps or not all(map(math.isfinite, losses)):
        found = f"{len(losses)} words, {sum(map(math.isnan, losses))} of them no numbers"
        raise ValueError(f"{found}; wants {NO_REFERENCE!r}, or one loss for each of {num_steps} steps")
    return losses


def size_reference(words: str) -> Mapping[tuple[str, int], Curve]:
    """By collective and number of GPUs; empty where there is none. Raises ValueError where the words say nothing of the kind."""
    if words == NO_REFERENCE:
        return {}
    found: dict[tuple[str, int], dict[int, float]] = {}
    rest = words.split()
    while rest:
        name, gpus, *rest = [*rest, ""] if len(rest) == 1 else rest
        if not (_NAME.fullmatch(name) and _GPUS.fullmatch(gpus)):
            raise ValueError(f"{name} {gpus}".strip() + f" where a collective and its number of GPUs should stand, {_ALLOWED}")
        if (name, int(gpus)) in found:
            raise ValueError(f"{name} {gpus} stands there twice")
        found[name, int(gpus)], rest = _curve(rest)
        if not found[name, int(gpus)]:
            raise ValueError(f"{name} {gpus} without a size and its figure, {_ALLOWED}")
    return found


_ALLOWED = f"as in `all_reduce 8 64m 318.8 4g 365.4`; or {NO_REFERENCE!r}"


def _curve(words: list[str]) -> tuple[dict[int, float], list[str]]:
    """Sizes with their figures as far as they go, and the words after them."""
    curve: dict[int, float] = {}
    while len(words) > 1 and (size := _SIZE.fullmatch(words[0])) and _FIGURE.fullmatch(words[1]):
        curve[int(size[1]) * _BYTES[size[2]]] = float(words[1])
        words = words[2:]
    return curve, words


RESNET_DEPTHS = (18, 34, 50, 101, 152)  # He et al. 2015, table 1
_DIVIDES = (
    ("train.gpt2.num_heads", "train.gpt2.width", "heads share the width evenly"),
    ("train.llama.num_heads", "train.llama.width", "heads share the width evenly"),
    ("train.llama.num_kv_heads", "train.llama.num_heads", "as many heads share each key"),
    ("lora.num_heads", "lora.width", "heads share the width evenly"),
    ("lora.num_kv_heads", "lora.num_heads", "as many heads share each key"),
)
# A validation, and its duration as far as these parameters determine it.
_LASTING: tuple[tuple[str, tuple[str, ...], Callable[..., float]], ...] = (
    (
        "a sustained GEMM",
        ("gemm.preheat_s", "gemm.block_s", "gemm.num_blocks"),
        lambda preheat_s, block_s, num_blocks: preheat_s + block_s * (num_blocks + _CALIBRATION),
    ),
    ("a GEMM in bursts", ("gemm.idle_s",), lambda idle_s: NUM_BURSTS * idle_s),
    ("the bandwidth of a memory", ("hbm.block_s", "timing.num_blocks"), lambda block_s, number: block_s * (number + _CALIBRATION)),
    ("a test of memory", ("memory.hold_s",), lambda hold_s: MEMORY_PATTERNS * hold_s),
    ("a survey of corruption", ("corruption.seconds",), lambda seconds: KERNEL_SHAPES * seconds),
    ("the survey after a soak", ("soak.corruption_s",), lambda seconds: KERNEL_SHAPES * seconds),
    (
        "a validation of nccl_scaling",
        ("nccl.block_s", "timing.num_blocks"),
        lambda block_s, number: 9 * block_s * (number + _CALIBRATION + _SINGLES),
    ),
    (
        "a latency of nccl",
        ("nccl.latency_block_s", "timing.num_blocks"),
        lambda block_s, number: LATENCY_SIZES * block_s * (number + _CALIBRATION),
    ),
    (
        "a curve of nccl_sizes",
        ("nccl_sizes.block_s", "nccl_sizes.num_blocks"),
        lambda block_s, number: MOST_CURVE_SIZES * block_s * (number + _CALIBRATION + _SINGLES),
    ),
    ("a missing peer of nic", ("nic.contact_s",), lambda contact_s: _WAYS * contact_s),
    ("a missing peer of localise", ("localise.contact_s",), lambda contact_s: _WAYS * contact_s),
    (
        "a training by turns with reduction and without",
        ("train.warmup_s", "train.block_s", "train.num_blocks"),
        lambda warmup_s, block_s, number: warmup_s + 2 * block_s * number,
    ),
    ("a round of a soak", ("soak.gemm_s", "soak.hbm_s", "soak.nccl_s"), lambda *shares_s: sum(shares_s)),
)


def contradictions(parameters: Mapping[str, Value], deadline_s: float) -> Iterator[str]:
    """Yield one line for each contradiction: parameters, values, and what is allowed. Absent parameters are ignored."""
    for smaller, larger, may_be_equal, why in _SMALLER:
        named = _named((smaller, larger), parameters)
        if named and (named[smaller] > named[larger] or (named[smaller] == named[larger] and not may_be_equal)):
            relation = "above" if may_be_equal else "not below"
            yield f"parameters.{smaller} is {show(named[smaller])}, {relation} {larger}, {show(named[larger])}: {why}"
    yield from _of_references(parameters)
    for part, whole, why in _DIVIDES:
        if (named := _named((part, whole), parameters)) and named[whole] % named[part]:
            yield f"parameters.{whole} is {show(named[whole])}, which {part}, {show(named[part])}, does not divide: {why}"
    if parameters.get("train.resnet.depth", RESNET_DEPTHS[0]) not in RESNET_DEPTHS:
        depths = ", ".join(map(str, RESNET_DEPTHS))
        yield f"parameters.train.resnet.depth is {show(parameters['train.resnet.depth'])}; allowed: {depths}"
    for what, names, duration_s in _LASTING:
        named = _named(names, parameters)
        seconds = duration_s(*named.values()) if named else 0.0
        if seconds > deadline_s * _OF_DEADLINE:
            values = ", ".join(f"{name} {show(value)}" for name, value in named.items())
            most = f"half of deadline_s, {show(deadline_s * _OF_DEADLINE)} s"
            yield f"parameters: {what} takes {show(seconds)} s by these alone ({values}); allowed: {most}"


def _of_references(parameters: Mapping[str, Value]) -> Iterator[str]:
    words, num_steps = parameters.get("lora.reference"), parameters.get("lora.num_steps")
    if isinstance(words, str) and isinstance(num_steps, int):
        try:
            reference_of(words, num_steps)
        except ValueError as error:
            yield f"parameters.lora.reference: {error} (lora.num_steps)"
    for name in ("nccl_sizes.reference", "nccl.latency_reference"):
        if isinstance(words := parameters.get(name), str):
            try:
                size_reference(words)
            except ValueError as error:
                yield f"parameters.{name}: {error}"


def drill_on_nobody(parameters: Mapping[str, Value], world_size: int) -> str | None:
    """Return the problem if a drill names a rank that this job does not have."""
    for name, rank_name in DRILLS.items():
        rank = parameters.get(rank_name)
        if parameters.get(name) and isinstance(rank, int) and rank >= world_size:
            asked = f"{name}={show(parameters[name])}"
            return f"parameter {rank_name}={rank}: allowed: a rank of this job, 0 to {world_size - 1}; {asked} would be planted on nobody"
    return None


def _named(names: tuple[str, ...], parameters: Mapping[str, Value]) -> dict[str, float]:
    """These numbers by name; none where one of them is not there."""
    values = {name: parameters.get(name) for name in names}
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return numbers if len(numbers) == len(names) else {}
