"""The parameters of a profile: type, unit, and the range outside of which a parameter measures nothing or never ends.

The one place where a parameter is declared: files are read by it, and docs/parameters.md lists it. Its value stands in base.yaml.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import core_schema

from gpu_acceptance.thresholds.limit import LOCALISE_ASKED, SOAK_DURATION, Value

Kind = Literal["whole number", "number", "words", "truth"]

_GLOB = r"[A-Za-z0-9_.*?\[\]!-]+"  # characters of device names and globs; `,`, `=`, `^` and `:` would match none
_WORDS = rf"^{_GLOB}( {_GLOB})*$"
# A parameter that says how much is spoiled, and the one that says on which rank.
DRILLS: Mapping[str, str] = {
    "checkpoint.planted_bytes": "checkpoint.planted_rank",
    "corruption.planted_flip_every": "corruption.planted_flip_rank",
    "memory.planted_words": "memory.planted_rank",
    "nccl_exact.planted_elements": "nccl_exact.planted_rank",
}


@dataclass(frozen=True)
class Parameter:
    """A number has a range, both ends allowed; `step`: it must be a multiple. `why`: what would be wrong outside, in a few words.

    `unit` is empty for a count, a part of something, and what is no number.
    """

    kind: Kind
    unit: str
    least: float = 0
    most: float = 0
    why: str = ""
    step: int = 1

    @property
    def allowed(self) -> str:
        """`a number from 0.01 to 3600 s (why)`."""
        if self.kind == "truth":
            return "true or false"
        if self.kind == "words":
            return f"words with a blank between them: {self.why}"
        multiple = f", a multiple of {self.step}" if self.step > 1 else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"a {self.kind} from {_plain(self.least)} to {_plain(self.most)}{unit}{multiple} ({self.why})"


def _plain(number: float) -> str:
    return f"{number:.15g}"


def _count(unit: str, least: int, most: int, why: str, step: int = 1) -> Parameter:
    return Parameter("whole number", unit, least, most, why, step)


def _bytes(least: int, most: int, why: str, step: int = 1) -> Parameter:
    return _count("bytes", least, most, why, step)


def _seconds(least: float, most: float, why: str) -> Parameter:
    return Parameter("number", "s", least, most, why)


_MONTH_S = 30 * 86_400
_BLOCKS = _count("", 2, 1000, "one block has no spread")
_BLOCK_S = _seconds(0.001, 60, "starting a block must not count, and all of them must end before the deadline")
_COPIES = _count("", 1, 10_000, "each is enqueued before the first begins")
_MESSAGE = _bytes(4, 2**37, "one fp32 element; more than 128 GiB fit no GPU")
_SQUARE = _count("elements", 16, 65_536, "fp8 multiplies in steps of 16; three larger matrices of fp64 fit no GPU", 16)
_SHARE = _seconds(0.01, 3600, "it is divided into blocks, and a round must end before the deadline")
_KERNEL_S = _seconds(0.001, 600, "of each of 42 works, which must end before the deadline")
_BATCH = _count("samples", 1, 2**20, "of one rank")
_LAYERS = _count("", 1, 10_000, "one after the other")
_WIDTH = _count("", 2, 2**20, "what passes from layer to layer, or inside of one")
_HEADS = _count("", 1, 2**16, "they share the width")
_VOCABULARY = _count("tokens", 64, 2**24, "the data is made of 64")
_SEQUENCE = _count("tokens", 2, 2**24, "one is told from those before")
_PLANTED = _count("", 0, 2**20, "0 plants nothing")
_RANK = _count("", 0, 2**20, "ranks count from 0; it must be one of the job's")

PARAMETERS: Mapping[str, Parameter] = {
    "timing.num_blocks": _BLOCKS,
    "gemm.size": _SQUARE,
    "gemm.preheat_s": _seconds(0, 600, "it must end before the deadline"),
    "gemm.block_s": _BLOCK_S,
    "gemm.num_blocks": _BLOCKS,
    "gemm.idle_s": _seconds(0, 10, "a rest in front of each of 15 bursts, which must end before the deadline"),
    "gemm.num_iterations": _count("", 2, 100_000, "half as many warm up"),
    "gemm.flush_bytes": _bytes(2**20, 2**36, "less leaves the matrices in the cache; more than 64 GiB leave no room for them"),
    "gemm_dtypes.size": _SQUARE,
    "hbm.array_bytes": _bytes(2**20, 2**37, "less is a cache's rate; three arrays of more than 128 GiB fit no GPU", 4),
    "hbm.block_s": _BLOCK_S,
    "memory.fraction": Parameter("number", "", 0.01, 0.99, "of what is free; the rest is room to compare in"),
    "memory.hold_s": _seconds(0, 600, "once for each of 6 patterns, which must end before the deadline"),
    "memory.min_bytes": _bytes(2**20, 2**45, "less is no test of a memory; more than 32 TiB no GPU has"),
    "memory.cpu_bytes": _bytes(2**20, 2**40, "less is no test of a memory; it is taken from the host"),
    "memory.planted_words": _PLANTED,
    "memory.planted_rank": _RANK,
    "p2p.num_bytes": _bytes(8, 2**36, "one word; three buffers of more than 64 GiB fit no GPU", 8),
    "p2p.num_copies": _COPIES,
    "p2p.num_round_trips": _COPIES,
    "pcie.buffer_bytes": _bytes(4096, 2**36, "one word of each 4 KiB is compared; more than 64 GiB are not pinned", 8),
    "pcie.num_copies": _COPIES,
    "corruption.seconds": _KERNEL_S,
    "corruption.planted_flip_every": _count("", 0, 10**9, "0 plants nothing"),
    "corruption.planted_flip_rank": _RANK,
    "infiniband.devices": Parameter("words", "", why="nearest, or globs of RDMA devices, without the `,`, `=`, `^` and `:` of NCCL_IB_HCA"),
    "nccl.large_bytes": _MESSAGE,
    "nccl.medium_bytes": _MESSAGE,
    "nccl.block_s": _BLOCK_S,
    "nccl.latency_block_s": _BLOCK_S,
    "nccl.latency_reference": Parameter(
        "words", "", why="collective, GPUs of the one node, then sizes with us of a sound run in a CUDA graph; `none`: there is none"
    ),
    "nccl_exact.largest_bytes": _MESSAGE,
    "nccl_exact.planted_elements": _PLANTED,
    "nccl_exact.planted_rank": _RANK,
    "nccl_sizes.largest_bytes": _bytes(2**21, 2**37, "up to 1 MiB a rate says nothing; more than 128 GiB fit no GPU"),
    "nccl_sizes.block_s": _BLOCK_S,
    "nccl_sizes.num_blocks": _BLOCKS,
    "nccl_sizes.min_iterations": _count("", 1, 10_000, "of a block, which must end before the deadline"),
    "nccl_sizes.reference": Parameter(
        "words", "", why="collective, GPUs of the one node, then sizes with GB/s of a sound run; `none`: there is none"
    ),
    "nic.asked": Parameter("truth", ""),
    "nic.num_bytes": _MESSAGE,
    "nic.num_iterations": _count("", 1, 100_000, "of a block, which must end before the deadline"),
    "nic.num_blocks": _count("", 1, 1000, "the median counts"),
    "nic.contact_s": _seconds(0.1, 600, "two ranks must have time to connect, and be missed before the deadline"),
    "train.peak_tflop_per_s": Parameter("number", "TFLOP/s", 0, 100_000, "dense, in bf16, by the datasheet; 0: not known"),
    "train.compiled": Parameter("truth", ""),
    "train.warmup_s": _seconds(0, 600, "it must end before the deadline"),
    "train.block_s": _BLOCK_S,
    "train.num_blocks": _BLOCKS,
    "train.min_steps": _count("", 1, 10_000, "of a block, which must end before the deadline"),
    "train.resnet.depth": _count("layers", 18, 152, "those of He et al. 2015, table 1: 18, 34, 50, 101, 152"),
    "train.resnet.width": _count("channels", 1, 4096, "of the first stage; 64 is the published network"),
    "train.resnet.image_size": _count("pixels", 32, 4096, "each way; it is halved five times"),
    "train.resnet.batch_size": _BATCH,
    "train.gpt2.num_layers": _LAYERS,
    "train.gpt2.width": _WIDTH,
    "train.gpt2.num_heads": _HEADS,
    "train.gpt2.vocabulary": _VOCABULARY,
    "train.gpt2.sequence": _SEQUENCE,
    "train.gpt2.batch_size": _BATCH,
    "train.llama.num_layers": _LAYERS,
    "train.llama.width": _WIDTH,
    "train.llama.num_heads": _HEADS,
    "train.llama.num_kv_heads": _HEADS,
    "train.llama.mlp_width": _WIDTH,
    "train.llama.vocabulary": _VOCABULARY,
    "train.llama.sequence": _SEQUENCE,
    "train.llama.batch_size": _BATCH,
    "lora.num_layers": _LAYERS,
    "lora.width": _WIDTH,
    "lora.num_heads": _HEADS,
    "lora.num_kv_heads": _HEADS,
    "lora.mlp_width": _WIDTH,
    "lora.vocabulary": _VOCABULARY,
    "lora.sequence": _SEQUENCE,
    "lora.initial_std": Parameter("number", "", 0.0001, 10, "of the frozen weights; the loss of the first step follows from it"),
    "lora.rank": _count("", 1, 65_536, "of the adapters"),
    "lora.alpha": _count("", 1, 2**20, "what adapters add is multiplied by alpha / rank"),
    "lora.batch_size": _count("samples", 1, 2**20, "of a micro-batch"),
    "lora.num_parts": _count("micro-batches", 1, 2**16, "of a step, over all ranks, however many there are"),
    "lora.num_steps": _count("", 20, 1_000_000, "the mean of the last 10 counts; all must end before the deadline"),
    "lora.warmup_steps": _count("", 1, 100_000, "fewer than all steps"),
    "lora.learning_rate": Parameter("number", "", 0.0001, 1, "the largest, after the warm-up"),
    "lora.in_bf16": Parameter("truth", ""),
    "lora.recomputes": Parameter("truth", ""),
    "lora.reference": Parameter("words", "", why="the losses of a sound run, by step, in nats; `none`: there is none"),
    "lora_modes.num_layers": _LAYERS,
    "lora_modes.num_steps": _count("", 11, 1_000_000, "means of 10 are compared; four trainings must end before the deadline"),
    "lora_modes.warmup_steps": _count("", 1, 100_000, "fewer than all steps"),
    "shared_fs.asked": Parameter("truth", ""),
    "shared_fs.expected_s": _seconds(0.1, 86_400, "what a budget reckons with"),
    "shared_fs.patience_s": _seconds(1, 600, "for a file that another node made to be seen, and for locks"),
    "shared_fs.file_bytes": _count("bytes", 4 * 2**20, 2**40, "that each rank writes, and another one reads"),
    "shared_fs.small_files": _count("files", 1, 100_000, "of 4 KiB, that each rank makes and removes"),
    "connectivity.patience_s": _seconds(0.1, 60, "for a connection, an answer over it, and a batch of names"),
    "connectivity.num_rounds": _count("", 1, 1000, "of disjoint pairs of nodes above 16 nodes; up to 16 every two meet"),
    "connectivity.seed": _count("", 0, 2**31 - 1, "who meets whom above 16 nodes"),
    "connectivity.num_round_trips": _count("", 1, 100_000, "of 8 bytes, of which the median counts"),
    "connectivity.num_bytes": _count("bytes", 2**20, 2**34, "at most, from each node of a pair to the other; sending ends after 1 s"),
    "lora_model.asked": Parameter("truth", ""),
    "lora_model.expected_s": _seconds(0.1, 86_400, "what a budget reckons with"),
    "lora_model.held_out": Parameter("number", "", 0.001, 0.9, "the part of the dialogues that nobody trains"),
    "lora_model.num_held_out": _count("dialogues", 1, 1_000_000, "at most; their loss is told, before and after"),
    "lora_model.num_prompts": _count("", 1, 100_000, "at most, of those held out: each is answered before and after"),
    "lora_model.num_new_tokens": _count("tokens", 1, 65_536, "of an answer, at most"),
    "lora_model.sequence": _SEQUENCE,
    "lora_model.batch_size": _count("sequences", 1, 2**20, "of a micro-batch; dialogues are packed into them"),
    "lora_model.num_parts": _count("micro-batches", 1, 2**16, "of a step, over all ranks, however many there are"),
    "lora_model.num_steps": _count("", 11, 1_000_000, "the mean of the last 10 is told; all must end before the deadline"),
    "lora_model.warmup_steps": _count("", 1, 100_000, "fewer than all steps"),
    "lora_model.learning_rate": Parameter("number", "", 0.0001, 1, "the largest, after the warm-up"),
    "ddp_short.batch_size": _BATCH,
    "ddp_short.num_blocks": _BLOCKS,
    "parity.num_steps": _count("", 2, 1000, "one would show no loss that falls; three trainings must end before the deadline"),
    "parity.batch_size": _count("samples", 1, 1024, "of one rank; a process alone trains those of up to 8, one after the other"),
    "checkpoint.batch_size": _BATCH,
    "checkpoint.num_steps": _count("", 1, 1000, "as many again after it, and after each resume; all must end before the deadline"),
    "checkpoint.planted_bytes": _PLANTED,
    "checkpoint.planted_rank": _RANK,
    "sampler.num_workers": _count("", 1, 64, "of each rank; each must read some of 1000 samples"),
    "failure_propagation.exits": Parameter("truth", ""),
    LOCALISE_ASKED: Parameter("truth", ""),
    "localise.expected_s": _seconds(0.1, 86_400, "what a budget reckons with"),
    "localise.num_bytes": _MESSAGE,
    "localise.num_iterations": _count("", 1, 100_000, "of a block, which must end before the deadline"),
    "localise.num_blocks": _count("", 1, 1000, "the median counts"),
    "localise.contact_s": _seconds(0.1, 600, "two ranks must have time to connect, and be missed before the deadline"),
    "localise.num_rounds": _count("", 1, 1000, "in none nobody meets"),
    "localise.suspect_percent": Parameter("number", "%", 0.1, 99, "nodes always differ a little; at 100 nobody is a suspect"),
    "localise.seed": _count("", 0, 2**32, "any"),
    SOAK_DURATION: _seconds(1, _MONTH_S, "more than 30 days are a typing error"),
    "soak.min_duration_s": _seconds(1, _MONTH_S, "more than 30 days are a typing error"),
    "soak.gemm_s": _SHARE,
    "soak.hbm_s": _SHARE,
    "soak.nccl_s": _SHARE,
    "soak.corruption_s": _KERNEL_S,
    "soak.pulse_s": _seconds(0.001, 60, "of load and of rest, in turns within the time of one work"),
}


def _type_of(parameter: Parameter) -> Any:
    """Return the type that pydantic checks and an editor shows."""
    if parameter.kind == "truth":
        return Annotated[bool, Field(strict=True, description=parameter.allowed)]
    if parameter.kind == "words":
        return Annotated[str, Field(strict=True, pattern=_WORDS, description=parameter.allowed)]
    kind, step = int if parameter.kind == "whole number" else float, parameter.step if parameter.step > 1 else None
    bounds = Field(strict=True, ge=parameter.least, le=parameter.most, multiple_of=step, description=parameter.allowed)
    return Annotated[kind, bounds]


def _any_of_them(_source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
    types = {name: handler.generate_schema(_type_of(parameter)) for name, parameter in PARAMETERS.items()}
    fields = {name: core_schema.typed_dict_field(schema, required=False) for name, schema in types.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid")


ParameterValues = Annotated[dict[str, Value], GetPydanticSchema(_any_of_them)]  # any of them, and no other
