"""A model over several ranks: replicated (DDP), or sharded (FSDP2)."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpu_acceptance.measure.collectives import Group
from gpu_acceptance.measure.corruption.hashing import as_text, hash_tensors
from gpu_acceptance.measure.train.models import blocks_of
from gpu_acceptance.measure.train.step import whole

# torch's 25 MB cut GPT-2 into twenty parts that are compiled one by one: on 2 H200 512,921 tokens/s for one GPU, and 522,390 with these
# (reports/evidence/h200-training/x2-tuning.jsonl).
_BUCKET_MB = 130
# Statistics of a batch stay with the rank that saw it: to send them round at each step would train nothing. Renamed in torch 2.13.
_IS_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_LOCAL_STATISTICS: dict[str, Any] = {"forward_sync_buffers" if _IS_RENAMED else "broadcast_buffers": False}
_IN_BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@dataclass(frozen=True)
class Sharding:
    """Over which ranks, and how. A mesh of two dimensions shards over the second, and replicates over the first."""

    mesh: DeviceMesh
    by_block: bool = True  # each layer for itself, or the whole model at once
    reshards: bool = True  # after the forward: the backward gathers again
    offloads: bool = False  # what is sharded lies in the memory of the host
    in_bf16: bool = True  # parameters and activations; gradients are reduced in fp32

    @property
    def num_shards(self) -> int:
        return self.mesh.size(self.mesh.ndim - 1)

    @property
    def shard(self) -> int:
        """Which of them this rank has."""
        return self.mesh.get_local_rank(self.mesh.ndim - 1)


def replicated(module: nn.Module, *, group: Group = None) -> DistributedDataParallel:
    """Over all ranks unless a group is given. Collective there."""
    return DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=_BUCKET_MB, **_LOCAL_STATISTICS)


def sharded(module: nn.Module, sharding: Sharding) -> nn.Module:
    """The same module, its parameters sharded. Collective in the mesh."""
    offload = CPUOffloadPolicy(pin_memory=sharding.mesh.device_type == "cuda") if sharding.offloads else OffloadPolicy()
    precision = _IN_BF16 if sharding.in_bf16 else MixedPrecisionPolicy()
    for part in [*blocks_of(module), module] if sharding.by_block else [module]:
        fully_shard(part, mesh=sharding.mesh, reshard_after_forward=sharding.reshards, mp_policy=precision, offload_policy=offload)
    return module


def digest(module: nn.Module) -> str:
    """Of all its weights, bit for bit: those of this rank, or what is gathered from shards. Collective where they are sharded."""
    return as_text(hash_tensors([whole(parameter.detach()).contiguous() for parameter in module.parameters()]))
